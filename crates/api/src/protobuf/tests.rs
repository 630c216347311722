//! Decodes messages that the tests encode field by field, as a Go client would.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Writes messages for these tests.
#[derive(Default, Clone)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn int(mut self, number: u64, value: i64) -> Self {
        self.varint(number << 3);
        self.varint(value as u64);
        self
    }

    fn bytes(mut self, number: u64, value: impl AsRef<[u8]>) -> Self {
        self.varint(number << 3 | 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }

    fn double(mut self, number: u64, value: f64) -> Self {
        self.varint(number << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn msg() -> Message {
    Message::default()
}

fn body(api_version: &str, kind: &str, raw: Message) -> Vec<u8> {
    let meta = msg().bytes(1, api_version).bytes(2, kind);
    let envelope = msg().bytes(1, meta).bytes(2, raw).bytes(3, "").bytes(4, "");
    [MAGIC, &envelope.0].concat()
}

fn read(ty: &str, raw: Message) -> Value {
    let schema = Schema::built_in();
    let resolve = |_: &str, _: &str| schema.named(ty);
    decode(&schema, resolve, &body("", "", raw)).unwrap().2
}

#[test]
fn a_14_a_pod_becomes_its_json() {
    let metadata = msg()
        .bytes(1, "web")
        .bytes(2, "")
        .bytes(3, "default")
        .bytes(5, "")
        .int(7, 0)
        .bytes(8, "")
        .bytes(11, msg().bytes(1, "app").bytes(2, "web"))
        .bytes(11, msg().bytes(1, "empty"));
    let requests = msg().bytes(1, "cpu").bytes(2, msg().bytes(1, "1000m"));
    let probe = msg()
        .bytes(
            1,
            msg()
                .bytes(2, msg().bytes(1, "/").bytes(2, msg().int(1, 1).int(2, 0).bytes(3, "http"))),
        )
        .int(2, 0)
        .int(3, 5);
    let container = msg()
        .bytes(1, "app")
        .bytes(2, "nginx")
        .bytes(3, "sh")
        .bytes(3, "-c")
        .bytes(5, "")
        .bytes(6, msg().bytes(1, "").int(2, 0).int(3, 80).bytes(4, "TCP").bytes(5, ""))
        .bytes(8, msg().bytes(2, requests))
        .bytes(10, probe)
        .int(16, 0)
        .int(18, 1);
    let volume =
        msg().bytes(1, "host").bytes(2, msg().bytes(1, msg().bytes(1, "/srv").bytes(2, "")));
    let spec = msg()
        .bytes(1, volume)
        .bytes(2, container)
        .int(4, 0)
        .int(11, 0)
        .bytes(14, msg().int(2, 0))
        .bytes(3, "Never");
    let pod = msg().bytes(1, metadata).bytes(2, spec).bytes(3, msg().bytes(1, ""));
    let bytes = body("v1", "Pod", pod);

    let schema = Schema::built_in();
    let resolve = |api_version: &str, kind: &str| {
        assert_eq!((api_version, kind), ("v1", "Pod"));
        schema.named("io.k8s.api.core.v1.Pod")
    };
    let (api_version, kind, value) = decode(&schema, resolve, &bytes).unwrap();
    assert_eq!((api_version.as_str(), kind.as_str()), ("v1", "Pod"));
    assert_eq!(
        value,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default",
                         "labels": {"app": "web", "empty": ""}},
            "spec": {
                "containers": [{
                    "name": "app", "image": "nginx", "command": ["sh", "-c"],
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "1"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "timeoutSeconds": 5},
                    "tty": true
                }],
                "restartPolicy": "Never",
                "securityContext": {"runAsUser": 0},
                "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "host", "hostPath": {"path": "/srv", "type": ""}}]
            },
            "status": {}
        })
    );
}

#[test]
fn a_14_options_and_subresources_are_read() {
    let options =
        msg().int(1, 5).bytes(2, msg().bytes(1, "u-1")).bytes(4, "Background").bytes(5, "All");
    let expected = json!({"gracePeriodSeconds": 5, "preconditions": {"uid": "u-1"},
                          "propagationPolicy": "Background", "dryRun": ["All"]});
    assert_eq!(
        read("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", options.clone()),
        expected
    );
    let eviction = msg().bytes(1, msg().bytes(1, "web")).bytes(2, options);
    assert_eq!(
        read("io.k8s.api.policy.v1.Eviction", eviction),
        json!({"metadata": {"name": "web"}, "deleteOptions": expected})
    );
    let binding =
        msg().bytes(1, msg().bytes(1, "web")).bytes(2, msg().bytes(1, "Node").bytes(3, "n1"));
    assert_eq!(
        read("io.k8s.api.core.v1.Binding", binding),
        json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}})
    );
    let scale = msg().bytes(2, msg().int(1, 3));
    assert_eq!(read("io.k8s.api.autoscaling.v1.Scale", scale), json!({"spec": {"replicas": 3}}));
    let token = msg().bytes(2, msg().bytes(1, "aud").int(4, 600));
    assert_eq!(
        read("io.k8s.api.authentication.v1.TokenRequest", token),
        json!({"spec": {"audiences": ["aud"], "expirationSeconds": 600}})
    );
    let extra = msg().bytes(1, "k").bytes(2, msg().bytes(1, "a").bytes(1, "b"));
    let review = msg().bytes(2, msg().bytes(3, "jane").bytes(5, extra));
    assert_eq!(
        read("io.k8s.api.authorization.v1.SubjectAccessReview", review),
        json!({"spec": {"user": "jane", "extra": {"k": ["a", "b"]}}})
    );
    let status = msg().bytes(2, "Failure").bytes(3, "no").int(6, 404);
    assert_eq!(
        read("io.k8s.apimachinery.pkg.apis.meta.v1.Status", status),
        json!({"status": "Failure", "message": "no", "code": 404})
    );
}

#[test]
fn a_28_times_bytes_and_raw_values_are_written_as_json_has_them() {
    let time = msg().int(1, 1_767_323_045).int(2, 6000);
    let lease = msg().bytes(2, msg().bytes(1, "me").int(2, 15).bytes(4, time.clone()));
    assert_eq!(
        read("io.k8s.api.coordination.v1.Lease", lease),
        json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
                        "renewTime": "2026-01-02T03:04:05.000006Z"}})
    );
    let secret =
        msg().bytes(1, msg().bytes(8, time)).bytes(2, msg().bytes(1, "k").bytes(2, [0xff, 0]));
    assert_eq!(
        read("io.k8s.api.core.v1.Secret", secret),
        json!({"metadata": {"creationTimestamp": "2026-01-02T03:04:05Z"}, "data": {"k": "/wA="}})
    );
    let revision = msg().bytes(2, msg().bytes(1, r#"{"a":[null]}"#)).int(3, -1);
    assert_eq!(
        read("io.k8s.api.apps.v1.ControllerRevision", revision),
        json!({"data": {"a": [null]}, "revision": -1})
    );
    let fields = msg().bytes(1, "m").bytes(7, msg().bytes(1, r#"{"f:spec":{}}"#));
    let config = msg().bytes(1, msg().bytes(17, fields));
    assert_eq!(
        read("io.k8s.api.core.v1.ConfigMap", config),
        json!({"metadata": {"managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}})
    );
}

#[test]
fn the_schema_of_a_custom_resource_is_read() {
    let item = msg().bytes(5, "string");
    let props = msg()
        .bytes(5, "object")
        .double(9, 2.5)
        .bytes(8, msg().bytes(1, "null"))
        .bytes(24, msg().bytes(1, item.clone()))
        .bytes(29, msg().bytes(1, "a").bytes(2, item))
        .bytes(30, msg().int(1, 1))
        .int(38, 1);
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    assert_eq!(
        read(name, props),
        json!({"type": "object", "maximum": 2.5, "items": {"type": "string"},
               "properties": {"a": {"type": "string"}}, "additionalProperties": true,
               "x-kubernetes-preserve-unknown-fields": true})
    );
}

#[test]
fn malformed_bodies_are_rejected() {
    let schema = Schema::built_in();
    let pod = schema.named("io.k8s.api.core.v1.Pod");
    let fails = |bytes: &[u8]| decode(&schema, |_, _| pod, bytes).unwrap_err().to_string();
    assert!(fails(b"{}").contains("expected prefix [107 56 115 0]"));
    assert_eq!(fails(b"k8s\0\x12\xff"), "unexpected EOF");
    let huge = [MAGIC, b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"].concat();
    assert_eq!(fails(&huge), "unexpected EOF");
    assert_eq!(fails(&body("v1", "Pod", msg().int(2, 1))), "proto: wrong wireType");
    let unknown = decode(&schema, |_, _| None, &body("v1", "Bogus", msg())).unwrap_err();
    assert_eq!(unknown.to_string(), r#"no kind "Bogus" is registered for version "v1""#);
}

#[test]
fn depth_is_bounded() {
    let schema = Schema::built_in();
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let deep = (0..5000).fold(msg(), |inner, _| msg().bytes(28, inner));
    assert!(decode(&schema, |_, _| schema.named(name), &body("", "", deep)).is_err());
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let schema = Schema::built_in();
        let names = ["io.k8s.api.core.v1.Pod", "io.k8s.api.apps.v1.Deployment",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"];
        for name in names {
            let bytes = body("", "", Message(bytes.clone()));
            let _ = decode(&schema, |_, _| schema.named(name), &bytes);
        }
        let _ = decode(&schema, |_, _| None, &[MAGIC, &bytes].concat());
    }

    /// Small tags and lengths reach deeper into the decoder than random bytes.
    #[test]
    fn random_small_bytes_do_not_panic(bytes in proptest::collection::vec(0u8..40, 0..200)) {
        let schema = Schema::built_in();
        let bytes = body("", "", Message(bytes));
        let _ = decode(&schema, |_, _| schema.named("io.k8s.api.core.v1.Pod"), &bytes);
    }
}
