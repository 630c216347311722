//! The operations of a kind: paths, methods, parameters, bodies and responses.
//!
//! They are independent of the version of OpenAPI; `v2` and `v3` encode them. The names of operations are upstream's, because
//! generated clients name their methods after them.
//!
//! Not here: the types (`types`, `custom`).

use super::names::{self, Gvk};
use super::parameters::{self as p, Parameter};
use api::kind::{self, Kind, Subresource};

const JSON: &[&str] = &["application/json", "application/yaml"];
const BUILT_IN: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const BUILT_IN_STREAMS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const CUSTOM_STREAMS: &[&str] =
    &["application/json", "application/yaml", "application/json;stream=watch"];
const BUILT_IN_PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];
const ANY: &[&str] = &["*/*"];

/// One path and its operations.
pub(super) struct Endpoint {
    pub(super) path: String,
    /// The parameters of all its operations.
    pub(super) parameters: Vec<&'static Parameter>,
    pub(super) operations: Vec<Operation>,
}

pub(super) struct Operation {
    pub(super) method: &'static str,
    /// `x-kubernetes-action`; the list of resources has none.
    pub(super) action: Option<&'static str>,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) tag: String,
    pub(super) gvk: Option<Gvk>,
    pub(super) parameters: Vec<&'static Parameter>,
    /// The type of the body and whether there must be one.
    pub(super) body: Option<(String, bool)>,
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: &'static [&'static str],
    /// The type of the response; plain text if there is none.
    pub(super) answer: Option<String>,
    pub(super) codes: &'static [(u16, &'static str)],
}

const OK: &[(u16, &str)] = &[(200, "OK")];
const OK_CREATED: &[(u16, &str)] = &[(200, "OK"), (201, "Created")];
const OK_ACCEPTED: &[(u16, &str)] = &[(200, "OK"), (202, "Accepted")];
const ALL: &[(u16, &str)] = &[(200, "OK"), (201, "Created"), (202, "Accepted")];

/// `/api/v1/`, `/apis/apps/v1/`: the list of resources.
pub(super) fn resources(group: &str, version: &str) -> Endpoint {
    let operation = Operation {
        method: "get",
        action: None,
        id: format!("get{}APIResources", names::group_version_words(group, version)),
        description: "get available resources".into(),
        tag: names::tag(group, version),
        gvk: None,
        parameters: vec![],
        body: None,
        consumes: BUILT_IN,
        produces: BUILT_IN,
        answer: Some(names::meta("APIResourceList")),
        codes: OK,
    };
    let path = format!("{}/", names::root(group, version));
    Endpoint { path, parameters: vec![], operations: vec![operation] }
}

/// Every path of a kind, its subresources included.
pub(super) fn of(kind: &Kind) -> Vec<Endpoint> {
    let root = names::root(&kind.group, &kind.version);
    let of = Of { kind, name: names::definition(kind) };
    let (collection, mut common) = if kind.namespaced {
        let path = format!("{root}/namespaces/{{namespace}}/{}", kind.plural);
        (path, vec![&p::NAMESPACE, &p::PRETTY])
    } else {
        (format!("{root}/{}", kind.plural), vec![&p::PRETTY])
    };
    let mut endpoints = Vec::new();
    if kind.namespaced && of.can("list") {
        endpoints.push(Endpoint {
            path: format!("{root}/{}", kind.plural),
            parameters: vec![&p::PRETTY],
            operations: vec![of.list("ForAllNamespaces")],
        });
    }
    endpoints.push(Endpoint {
        path: collection.clone(),
        parameters: common.clone(),
        operations: of.collection_operations(),
    });
    common.insert(0, &p::NAME);
    let item = format!("{collection}/{{name}}");
    endpoints.push(Endpoint {
        path: item.clone(),
        parameters: common.clone(),
        operations: of.item_operations(),
    });
    for name in &kind.subresources {
        let Some(sub) = kind::subresource(&kind.plural, name) else { continue };
        let path = format!("{item}/{name}");
        if name == "proxy" {
            let mut parameters = common.clone();
            parameters.push(&p::PATH);
            endpoints.push(Endpoint {
                path: format!("{path}/{{path}}"),
                parameters,
                operations: of.connections(name, &sub, "WithPath"),
            });
        }
        let operations = match name.as_str() {
            "attach" | "exec" | "portforward" | "proxy" => of.connections(name, &sub, ""),
            _ => sub.verbs.iter().map(|verb| of.subresource(name, &sub, verb)).collect(),
        };
        endpoints.push(Endpoint { path, parameters: common.clone(), operations });
    }
    endpoints.retain(|endpoint| !endpoint.operations.is_empty());
    endpoints
}

struct Of<'a> {
    kind: &'a Kind,
    /// The kind's type.
    name: String,
}

impl Of<'_> {
    fn can(&self, verb: &str) -> bool {
        self.kind.verbs.list().contains(&verb)
    }

    fn collection_operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        if self.can("list") {
            operations.push(self.list(""));
        }
        if self.can("create") {
            let mut create = self.operation("post", "post", "create", "create an object");
            create.parameters = p::WRITE.to_vec();
            create.body = Some((self.name.clone(), true));
            create.codes = ALL;
            operations.push(create);
        }
        if self.can("deletecollection") {
            let mut delete =
                self.operation("delete", "deletecollection", "delete", "delete a collection");
            delete.id = self.id("delete", "Collection", "");
            delete.parameters = [p::LIST, p::DELETE].concat();
            delete.body = Some((names::meta("DeleteOptions"), false));
            delete.answer = Some(names::meta("Status"));
            operations.push(delete);
        }
        operations
    }

    fn item_operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        if self.can("get") {
            operations.push(self.operation("get", "get", "read", "read the object"));
        }
        if self.can("update") {
            operations.push(self.update("replace the object"));
        }
        if self.can("patch") {
            operations.push(self.patch("change parts of the object"));
        }
        if self.can("delete") {
            let mut delete = self.operation("delete", "delete", "delete", "delete the object");
            delete.parameters = p::DELETE.to_vec();
            delete.body = Some((names::meta("DeleteOptions"), false));
            if !rules::of(self.kind).returns_deleted {
                delete.answer = Some(names::meta("Status"));
            }
            delete.codes = OK_ACCEPTED;
            operations.push(delete);
        }
        operations
    }

    fn list(&self, suffix: &str) -> Operation {
        let mut list = self.operation("get", "list", "list", "list or watch objects");
        if !suffix.is_empty() {
            let words = names::group_version_words(&self.kind.group, &self.kind.version);
            list.id = format!("list{words}{}{suffix}", self.kind.kind);
        }
        list.parameters = [p::LIST, p::WATCH].concat();
        list.answer = Some(names::list_definition(self.kind));
        list.produces = if self.kind.custom.is_some() { CUSTOM_STREAMS } else { BUILT_IN_STREAMS };
        list
    }

    fn update(&self, what: &str) -> Operation {
        let mut update = self.operation("put", "put", "replace", what);
        update.parameters = p::WRITE.to_vec();
        update.body = Some((self.name.clone(), true));
        update.codes = OK_CREATED;
        update
    }

    fn patch(&self, what: &str) -> Operation {
        let mut patch = self.operation("patch", "patch", "patch", what);
        patch.parameters = [p::WRITE, &[&p::FORCE]].concat();
        patch.body = Some((names::meta("Patch"), true));
        patch.consumes = if self.kind.custom.is_some() { CUSTOM_PATCHES } else { BUILT_IN_PATCHES };
        patch.codes = OK_CREATED;
        patch
    }

    fn subresource(&self, name: &str, sub: &Subresource, verb: &str) -> Operation {
        let (gvk, ty) = self.subresource_type(sub);
        let what = format!("the {name} of the object");
        let mut operation = match verb {
            "create" => self.operation("post", "post", "create", &format!("create {what}")),
            "update" => self.update(&format!("replace {what}")),
            "patch" => self.patch(&format!("change parts of {what}")),
            _ => self.operation("get", "get", "read", &format!("read {what}")),
        };
        operation.id = match verb {
            "create" => self.id("create", "", &capital(name)),
            "update" => self.id("replace", "", &capital(name)),
            "patch" => self.id("patch", "", &capital(name)),
            _ => self.id("read", "", &capital(name)),
        };
        operation.answer = Some(ty.clone());
        if verb == "create" {
            operation.parameters = p::WRITE.to_vec();
            operation.codes = ALL;
        }
        if verb == "create" || verb == "update" {
            operation.body = Some((ty, true));
        }
        if name == "log" {
            operation.parameters = p::LOG.to_vec();
            operation.answer = None;
        }
        operation.gvk = Some(gvk);
        operation
    }

    /// Requests that are forwarded to a container or a service: any method, any bytes.
    fn connections(&self, name: &str, sub: &Subresource, suffix: &str) -> Vec<Operation> {
        let methods: &[&str] = match name {
            "proxy" => &["get", "put", "post", "delete", "options", "head", "patch"],
            _ => &["get", "post"],
        };
        let words = names::group_version_words(&self.kind.group, &self.kind.version);
        let scope = if self.kind.namespaced { "Namespaced" } else { "" };
        let (gvk, _) = self.subresource_type(sub);
        let connect = |method: &&'static str| Operation {
            id: format!(
                "connect{words}{}{scope}{}{}{suffix}",
                capital(method),
                self.kind.kind,
                capital(name)
            ),
            description: format!("connect {} requests to {name} of the object", method),
            gvk: Some(gvk.clone()),
            parameters: p::connect(name).to_vec(),
            consumes: ANY,
            produces: ANY,
            answer: None,
            ..self.operation(method, "connect", "connect", "")
        };
        methods.iter().map(connect).collect()
    }

    /// The kind of a subresource and the name of its type.
    fn subresource_type(&self, sub: &Subresource) -> (Gvk, String) {
        let (group, version) = sub.group_version.unwrap_or((&self.kind.group, &self.kind.version));
        let gvk = Gvk::new(group, version, sub.kind.unwrap_or(&self.kind.kind));
        let ty = match sub.kind {
            Some(kind) => kind::type_name(group, version, kind),
            None => self.name.clone(),
        };
        (gvk, ty)
    }

    fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        verb: &str,
        what: &str,
    ) -> Operation {
        let kind = self.kind;
        let types = if kind.custom.is_some() { JSON } else { BUILT_IN };
        Operation {
            method,
            action: Some(action),
            id: self.id(verb, "", ""),
            description: format!("{what} of kind {}", kind.kind),
            tag: names::tag(&kind.group, &kind.version),
            gvk: Some(Gvk::new(&kind.group, &kind.version, &kind.kind)),
            parameters: vec![],
            body: None,
            consumes: types,
            produces: types,
            answer: Some(self.name.clone()),
            codes: OK,
        }
    }

    /// `readCoreV1NamespacedPodStatus`
    fn id(&self, verb: &str, before: &str, after: &str) -> String {
        let words = names::group_version_words(&self.kind.group, &self.kind.version);
        let scope = if self.kind.namespaced { "Namespaced" } else { "" };
        format!("{verb}{words}{before}{scope}{}{after}", self.kind.kind)
    }
}

pub(super) fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
