//! Credentials in, users out.

use super::impersonation::{self, Impersonation};
use super::jwt::SigningKey;
use super::service_account::{Kubernetes, Reference};
use super::tokens::{self, Account};
use super::*;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL;
use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const NOW: i64 = 1_800_000_000;
const SECRET: &str = "an-admin-token-nobody-may-see";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn authenticator() -> Authenticator {
    let mut static_tokens = StaticTokens::new();
    static_tokens.add(SECRET, User::authenticated("kubernetes-admin", &[MASTERS]));
    let key = SigningKey::generate().unwrap();
    let service_accounts = ServiceAccountTokens::with_key(key, ISSUER, &[]);
    let bootstrap_tokens = BootstrapTokens::new(|_| None);
    Authenticator { static_tokens, bootstrap_tokens, service_accounts }
}

fn claims() -> Claims {
    let reference = |name: &str| Reference { name: name.into(), uid: format!("{name}-uid") };
    Claims {
        aud: vec![ISSUER.into()],
        exp: NOW + 3600,
        iat: NOW,
        iss: ISSUER.into(),
        jti: "an-id".into(),
        kubernetes: Kubernetes {
            namespace: "golden".into(),
            serviceaccount: reference("default"),
            pod: Some(reference("p1")),
            node: Some(reference("n1")),
            ..Kubernetes::default()
        },
        nbf: NOW,
        sub: "system:serviceaccount:golden:default".into(),
    }
}

/// Every object exists, with the uid of the claims.
fn all_exist(_: &str, _: &str, name: &str) -> Option<Bound> {
    Some(Bound { uid: format!("{name}-uid"), deleted_since: None })
}

fn headers(list: &[(&str, &str)]) -> HeaderMap {
    let parse = |&(name, value): &(&str, &str)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_str(value).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in list.iter().filter_map(parse) {
        headers.append(name, value);
    }
    headers
}

fn authenticated(list: &[(&str, &str)]) -> Result<User, Unauthorized> {
    authenticator().authenticate(&headers(list), None, at(NOW), &all_exist)
}

#[test]
fn a_170_credentials_are_tried_in_order_and_schemes_ignore_case() {
    let bearer = format!("bEaReR {SECRET}");
    assert_eq!(authenticated(&[("authorization", &bearer)]).unwrap().name, "kubernetes-admin");

    let peer = User::authenticated("from-certificate", &[]);
    let both = headers(&[("authorization", "Bearer nonsense")]);
    let user = authenticator().authenticate(&both, Some(&peer), at(NOW), &all_exist).unwrap();
    assert_eq!(user.name, "from-certificate");
}

#[test]
fn a_170_a_websocket_may_carry_its_token_in_a_subprotocol() {
    let token = format!("base64url.bearer.authorization.k8s.io.{}", BASE64URL.encode(SECRET));
    let upgrade = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
    let with = |protocols: &str| {
        authenticated(&[upgrade[0], upgrade[1], ("sec-websocket-protocol", protocols)])
    };
    assert_eq!(with(&format!("v5.channel.k8s.io, {token}")).unwrap().name, "kubernetes-admin");
    assert_eq!(with("v5.channel.k8s.io").unwrap(), User::anonymous());
    for refused in [
        token.clone(),
        format!("v5.channel.k8s.io, {token}, {token}"),
        "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.!!".to_owned(),
    ] {
        assert!(with(&refused).is_err(), "{refused}");
    }
    let mut headers = headers(&[
        ("authorization", "Bearer x"),
        ("sec-websocket-protocol", &format!("{token}, v5.channel.k8s.io")),
    ]);
    bearer::strip_credentials(&mut headers);
    assert!(!headers.contains_key("authorization"));
    assert_eq!(headers["sec-websocket-protocol"], "v5.channel.k8s.io");
}

#[test]
fn a_171_no_credential_is_anonymous_and_a_bad_one_is_refused() {
    for anonymous in [&[][..], &[("authorization", "Basic YTpi")], &[("authorization", "Bearer")]] {
        assert_eq!(authenticated(anonymous).unwrap(), User::anonymous(), "{anonymous:?}");
    }
    let mut strange = HeaderMap::new();
    strange.insert("authorization", HeaderValue::from_bytes(b"Bearer \xff").unwrap());
    assert!(authenticator().authenticate(&strange, None, at(NOW), &all_exist).is_err());
    let refused = authenticated(&[("authorization", "Bearer nonsense")]).unwrap_err();
    assert_eq!(refused.status().message, "Unauthorized");
    assert_eq!(refused.status().code, 401);
}

#[test]
fn a_174_a_token_authenticates_as_its_service_account() {
    let authenticator = authenticator();
    let token = authenticator.service_accounts.sign(&claims());
    let user = authenticator.user_of_token(&token, at(NOW), &all_exist).unwrap();
    assert_eq!(
        user.to_json(),
        json!({
            "username": "system:serviceaccount:golden:default",
            "uid": "default-uid",
            "groups":
                ["system:serviceaccounts", "system:serviceaccounts:golden", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/credential-id": ["JTI=an-id"],
                "authentication.kubernetes.io/pod-name": ["p1"],
                "authentication.kubernetes.io/pod-uid": ["p1-uid"],
                "authentication.kubernetes.io/node-name": ["n1"],
                "authentication.kubernetes.io/node-uid": ["n1-uid"],
            },
        })
    );
}

#[test]
fn a_175_a_token_with_wrong_dates_audience_issuer_or_signature_is_refused() {
    let tokens = authenticator().service_accounts;
    let sign = |change: &dyn Fn(&mut Claims)| {
        let mut claims = claims();
        change(&mut claims);
        tokens.sign(&claims)
    };
    let good = sign(&|_| {});
    let verify = |token: &str| tokens.verify(token, at(NOW)).map(|_| ());
    assert_eq!(verify(&good), Ok(()));
    assert_eq!(verify(&good), Ok(()), "known from before");
    assert_eq!(tokens.verify(&good, at(NOW + 3600)), Err(TokenError::Expired), "known from before");

    type Change<'a> = &'a dyn Fn(&mut Claims);
    let table: [(&str, TokenError, Change); 5] = [
        ("expired", TokenError::Expired, &|claims| claims.exp = NOW),
        ("from the future", TokenError::NotYetValid, &|claims| claims.nbf = NOW + 1),
        ("for others", TokenError::Audience, &|claims| claims.aud = vec!["vault".into()]),
        ("for nobody", TokenError::Audience, &|claims| claims.aud.clear()),
        ("by others", TokenError::Issuer, &|claims| claims.iss = "https://elsewhere".into()),
    ];
    for (story, error, change) in table {
        assert_eq!(verify(&sign(change)), Err(error), "{story}");
    }

    let [header, claims, signature]: [&str; 3] =
        good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let other = authenticator().service_accounts.sign(&self::claims());
    let none = BASE64URL.encode(json!({"alg": "none"}).to_string());
    let kid = tokens.jwks()["keys"][0]["kid"].clone();
    let hmac = BASE64URL.encode(json!({"alg": "HS256", "kid": kid}).to_string());
    let mut more = self::claims();
    more.kubernetes.serviceaccount.name = "admin".into();
    let more = BASE64URL.encode(json!(more).to_string());
    for (story, token) in [
        ("another key", other),
        ("alg none", format!("{none}.{claims}.")),
        ("alg none, signed", format!("{none}.{claims}.{signature}")),
        ("another algorithm", format!("{hmac}.{claims}.{signature}")),
        ("other claims", format!("{header}.{more}.{signature}")),
        ("no signature", format!("{header}.{claims}.")),
        ("half a signature", format!("{header}.{claims}.{}", &signature[..40])),
        ("four parts", format!("{good}.x")),
        ("two parts", format!("{header}.{claims}")),
        ("nothing", String::new()),
        ("too long", "a".repeat(1 << 20)),
    ] {
        assert!(matches!(verify(&token), Err(TokenError::Invalid(_))), "{story}");
    }
}

#[test]
fn a_177_a_token_is_invalid_after_its_bound_object_is_deleted() {
    let check = |claims: Claims, resource: &str, found: Option<Bound>| {
        let lookup = |asked: &str, namespace: &str, name: &str| {
            if asked == resource { found.clone() } else { all_exist(asked, namespace, name) }
        };
        claims.check_bound(at(NOW), &lookup)
    };
    let deleted =
        |uid: &str, ago: i64| Some(Bound { uid: uid.into(), deleted_since: Some(at(NOW - ago)) });
    let gone = Err(TokenError::Invalidated);
    let mut on_node = claims();
    on_node.kubernetes.pod = None;
    for (story, claims, resource, found, expected) in [
        ("account gone", claims(), "serviceaccounts", None, gone.clone()),
        ("account made again", claims(), "serviceaccounts", deleted("other", -9), gone.clone()),
        ("pod gone", claims(), "pods", None, gone.clone()),
        ("pod going", claims(), "pods", deleted("p1-uid", 60), Ok(())),
        ("pod to go", claims(), "pods", deleted("p1-uid", -30), Ok(())),
        ("pod overdue", claims(), "pods", deleted("p1-uid", 61), gone.clone()),
        ("node of a pod gone", claims(), "nodes", None, Ok(())),
        ("node gone", on_node, "nodes", None, gone),
    ] {
        assert_eq!(check(claims, resource, found), expected, "{story}");
    }
}

#[test]
fn a_179_the_published_key_is_the_one_that_signs() {
    let tokens = authenticator().service_accounts;
    let key = &tokens.jwks()["keys"][0];
    let point: Vec<u8> = ["x", "y"]
        .iter()
        .flat_map(|half| BASE64URL.decode(key[half].as_str().unwrap()).unwrap())
        .collect();
    let public = [&[4], point.as_slice()].concat();
    let token = tokens.sign(&claims());
    let (signed, signature) = token.rsplit_once('.').unwrap();
    ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, public)
        .verify(signed.as_bytes(), &BASE64URL.decode(signature).unwrap())
        .unwrap();
    assert_eq!(tokens.openid_configuration()["issuer"], ISSUER);
    assert_eq!((&key["kty"], &key["alg"]), (&json!("EC"), &json!("ES256")));
}

const ACCOUNT: Account = Account { namespace: "golden", name: "default", uid: "default-uid" };

fn none_exist(_: &str, _: &str, _: &str) -> Option<Value> {
    None
}

fn token_request(spec: Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

#[test]
fn a_176_a_token_request_gets_defaults_and_a_token() {
    let authenticator = authenticator();
    let issue = |spec| {
        let body = token_request(spec);
        tokens::request(&body, ACCOUNT, &authenticator.service_accounts, at(NOW), &none_exist)
    };
    let answer = issue(json!({"expirationSeconds": 600})).unwrap();
    assert_eq!(answer["kind"], "TokenRequest");
    assert_eq!(answer["spec"]["expirationSeconds"], 600);
    assert_eq!(answer["spec"]["audiences"], json!([ISSUER]));
    assert_eq!(answer["status"]["expirationTimestamp"], "2027-01-15T08:10:00Z");
    let token = answer["status"]["token"].as_str().unwrap();
    let user = authenticator.user_of_token(token, at(NOW + 599), &all_exist).unwrap();
    assert_eq!(user.name, "system:serviceaccount:golden:default");
    assert!(authenticator.user_of_token(token, at(NOW + 600), &all_exist).is_err());

    assert_eq!(issue(json!({})).unwrap()["spec"]["expirationSeconds"], 3600);
    // The golden answer `token-bad-exp`.
    let short = issue(json!({"expirationSeconds": 5})).unwrap_err();
    assert_eq!(
        short.message,
        "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid \
         value: 5: may not specify a duration less than 10 minutes"
    );
    assert_eq!((short.code, &*short.reason), (422, "Invalid"));
    assert_eq!(issue(json!({"expirationSeconds": 1i64 << 33})).unwrap_err().code, 422);
}

#[test]
fn a_176_a_token_can_be_bound_only_to_an_existing_object_of_the_account() {
    let tokens = authenticator().service_accounts;
    let lookup = |resource: &str, namespace: &str, name: &str| {
        let account = if name == "stranger" { "other" } else { "default" };
        match (resource, namespace, name) {
            ("pods", "golden", "p1" | "stranger") => Some(json!({"metadata": {"uid": "p1-uid"},
                "spec": {"serviceAccountName": account, "nodeName": "n1"}})),
            ("nodes", "", "n1") => Some(json!({"metadata": {"uid": "n1-uid"}})),
            _ => None,
        }
    };
    let issue = |seconds: i64, kind: &str, name: &str, uid: &str| {
        let bound = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
        let body = token_request(json!({"expirationSeconds": seconds, "boundObjectRef": bound}));
        tokens::request(&body, ACCOUNT, &tokens, at(NOW), &lookup)
    };
    for (kind, name, uid, code, message) in [
        ("Pod", "gone", "", 404, "pods \"gone\" not found"),
        ("Secret", "gone", "", 404, "secrets \"gone\" not found"),
        (
            "Pod",
            "stranger",
            "",
            400,
            "cannot bind token for serviceaccount \"default\" to pod running with different serviceaccount name.",
        ),
        (
            "Pod",
            "p1",
            "old",
            409,
            "Operation cannot be fulfilled on Pod \"p1\": the UID in the bound object reference (old) does not match the UID in record. The object might have been deleted and then recreated",
        ),
        ("Job", "j", "", 400, "cannot bind token to object of type /v1, Kind=Job"),
    ] {
        let refused = issue(600, kind, name, uid).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (code, message));
    }
    let answer = issue(3607, "Pod", "p1", "p1-uid").unwrap();
    let token = answer["status"]["token"].as_str().unwrap();
    let claims = tokens.verify(token, at(NOW + 100 * 24 * 3600)).unwrap();
    assert_eq!(claims.kubernetes.warnafter, Some(NOW + 3607));
    assert_eq!(claims.kubernetes.pod.as_ref().unwrap().uid, "p1-uid");
    assert_eq!(claims.kubernetes.node.as_ref().unwrap().uid, "n1-uid");
    assert_eq!(answer["status"]["expirationTimestamp"], "2027-01-15T09:00:07Z");
}

#[test]
fn a_178_a_token_in_a_secret_is_valid_as_long_as_the_secret_exists() {
    let authenticator = authenticator();
    let secret = Reference { name: "s".into(), uid: "s-uid".into() };
    let token = tokens::for_secret(ACCOUNT, secret, &authenticator.service_accounts, at(NOW));
    let later = at(NOW + 20 * 365 * 24 * 3600);
    assert!(authenticator.user_of_token(&token, later, &all_exist).is_ok());
    let without = |resource: &str, namespace: &str, name: &str| {
        (resource != "secrets").then(|| all_exist(resource, namespace, name)).flatten()
    };
    assert!(authenticator.user_of_token(&token, later, &without).is_err());
}

#[test]
fn a_188_impersonation_needs_a_user() {
    let ask = |list: &[(&str, &str)]| impersonation::requested(&headers(list));
    assert_eq!(ask(&[("authorization", "x")]), Ok(None));
    for alone in ["Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-scopes"] {
        assert_eq!(ask(&[(alone, "x")]).unwrap_err().status().code, 400, "{alone}");
    }
    let full = ask(&[
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-acme.com%2Fproject", "a"),
    ])
    .unwrap()
    .unwrap();
    let caller = User::authenticated("root", &[]);
    let checks: Vec<String> =
        full.checks(&caller).iter().map(crate::authz::forbidden_message).collect();
    assert_eq!(
        checks[0],
        "users \"jane\" is forbidden: User \"root\" cannot impersonate resource \"users\" in API \
         group \"\" at the cluster scope"
    );
    assert_eq!(checks.len(), 5);
    assert!(checks[3].contains("resource \"userextras/acme.com/project\""), "{}", checks[3]);
    assert_eq!(full.user().groups, ["dev", "ops", AUTHENTICATED]);
}

#[test]
fn a_188_implied_groups_depend_on_the_impersonated_name() {
    let groups = |user: &str, groups: &[&str]| {
        let groups = groups.iter().map(|group| group.to_string()).collect();
        Impersonation { user: user.into(), groups, ..Impersonation::default() }.user().groups
    };
    let account = "system:serviceaccount:golden:default";
    let implied = ["system:serviceaccounts", "system:serviceaccounts:golden", AUTHENTICATED];
    assert_eq!(groups(account, &[]), implied);
    assert_eq!(groups(account, &["only"]), ["only", AUTHENTICATED]);
    assert_eq!(groups("jane", &[UNAUTHENTICATED]), [UNAUTHENTICATED]);
    assert_eq!(groups(ANONYMOUS, &[]), [UNAUTHENTICATED]);
    let requested = Impersonation { user: account.into(), ..Impersonation::default() };
    let caller = User::default();
    let check = requested.checks(&caller)[0];
    assert_eq!(
        (check.resource, check.namespace, check.name),
        ("serviceaccounts", "golden", "default")
    );
}

#[test]
fn secrets_are_not_in_debug_output() {
    let authenticator = authenticator();
    let shown = format!("{authenticator:?}");
    assert!(shown.contains("kubernetes-admin") && !shown.contains(SECRET), "{shown}");
    let refused = authenticator.user_of_token("tell-nobody", at(NOW), &all_exist).unwrap_err();
    assert!(!format!("{refused:?} {refused}").contains("tell-nobody"));
}

proptest! {
    #[test]
    fn garbage_tokens_are_refused_without_a_panic(token in "\\PC{0,200}|[A-Za-z0-9_-]{0,60}(\\.[A-Za-z0-9_-]{0,60}){0,4}") {
        prop_assert!(authenticator().user_of_token(&token, at(NOW), &all_exist).is_err());
    }

    #[test]
    fn a_token_with_any_byte_changed_is_refused(place in any::<prop::sample::Index>(), letter in "[A-Za-z0-9_.-]") {
        let tokens = authenticator().service_accounts;
        let token = tokens.sign(&claims());
        let place = place.index(token.len());
        let mut changed = token.clone();
        changed.replace_range(place..=place, &letter);
        prop_assert_eq!(tokens.verify(&changed, at(NOW)).is_ok(), changed == token);
    }

    #[test]
    fn garbage_certificates_are_refused_without_a_panic(der in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(user_of_certificate(&der).is_err());
    }

    #[test]
    fn garbage_headers_never_panic(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 6)) {
        let names = ["authorization", "sec-websocket-protocol", "impersonate-user", "impersonate-extra-%ff%2", "upgrade", "connection"];
        let mut headers = HeaderMap::new();
        for (name, value) in names.into_iter().zip(values) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        let _ = authenticator().authenticate(&headers, None, at(NOW), &all_exist);
        if let Ok(Some(requested)) = impersonation::requested(&headers) {
            let caller = User::default();
            let _ = requested.checks(&caller);
            let _ = requested.user();
        }
        bearer::strip_credentials(&mut headers);
        impersonation::strip(&mut headers);
        prop_assert!(!headers.contains_key("authorization"));
    }
}
