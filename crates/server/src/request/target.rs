//! Parses URLs: the resource, namespace, name and subresource, and the query parameters.
//!
//! Pure: a path and a query in, a [`Route`] and a [`Query`] out. Not here: whether the resource exists (the registry)
//! and whether the caller may access it (`access::authz`).

use http::Method;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Route {
    Resource(Target),
    /// Health checks, discovery, OpenAPI, and paths that do not exist.
    Other(String),
}

/// A resource, one of its objects, or a subresource of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    /// Empty for cluster-scoped resources and for all namespaces together.
    pub(crate) namespace: String,
    /// Empty for the collection.
    pub(crate) name: String,
    pub(crate) subresource: String,
    /// The path after `proxy`, with its slashes.
    pub(crate) rest: Option<String>,
    /// The path began with `watch/`.
    pub(crate) watch_prefix: bool,
}

impl Route {
    pub(crate) fn of(path: &str) -> Route {
        Self::resource(path).map_or_else(|| Route::Other(path.to_owned()), Route::Resource)
    }

    fn resource(path: &str) -> Option<Target> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
        let mut target = Target::default();
        match segments.next()? {
            "api" => {}
            "apis" => target.group = decoded(segments.next()?)?,
            _ => return None,
        }
        target.version = decoded(segments.next()?)?;
        if segments.peek() == Some(&"watch") {
            segments.next();
            target.watch_prefix = true;
        }
        let first = decoded(segments.next()?)?;
        let mut parts: Vec<String> = Vec::new();
        for segment in segments.by_ref() {
            parts.push(decoded(segment)?);
        }
        let mut parts = parts.into_iter();
        if first != "namespaces" {
            target.resource = first;
        } else {
            let Some(namespace) = parts.next() else {
                target.resource = first;
                return Some(target);
            };
            target.namespace.clone_from(&namespace);
            match parts.next() {
                // The Namespace object itself, or its two subresources.
                None => {
                    target.resource = first;
                    target.name = namespace;
                    return Some(target);
                }
                Some(sub) if sub == "status" || sub == "finalize" => {
                    target.resource = first;
                    target.name = namespace;
                    target.subresource = sub;
                    return Some(target);
                }
                Some(resource) => target.resource = resource,
            }
        }
        target.name = parts.next().unwrap_or_default();
        target.subresource = parts.next().unwrap_or_default();
        if target.subresource == "proxy" {
            // Unchanged: a trailing slash and escapes may matter to the backend.
            let begin = if target.group.is_empty() { 2 } else { 3 };
            let place = if target.namespace.is_empty() { 1 } else { 3 };
            let before = begin + usize::from(target.watch_prefix) + place + 2;
            target.rest = Some(after_segments(path, before).to_owned());
        } else if parts.next().is_some() {
            return None;
        }
        Some(target)
    }
}

/// The rest of a path after `count` segments, with its slashes.
fn after_segments(path: &str, count: usize) -> &str {
    let mut rest = path;
    for _ in 0..count {
        let segment = rest.trim_start_matches('/');
        rest = &segment[segment.find('/').unwrap_or(segment.len())..];
    }
    rest
}

fn decoded(segment: &str) -> Option<String> {
    percent_decode_str(segment).decode_utf8().ok().map(Cow::into_owned)
}

/// The verb for authorization and metrics.
pub(crate) fn verb(method: &Method, target: &Target, query: &Query) -> &'static str {
    let named = !target.name.is_empty();
    match *method {
        Method::GET | Method::HEAD if target.watch_prefix => "watch",
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD if query.flag("watch") => "watch",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "",
    }
}

/// Query parameters, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Query {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of that name, if it is not empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Absent, `0` and any-case `false` are false; everything else is true, even "".
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// An integer, or the error message.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, String> {
        match self.text(name) {
            None => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| format!("strconv.ParseInt: parsing \"{text}\": invalid syntax")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        match Route::of(path) {
            Route::Resource(target) => target,
            Route::Other(path) => panic!("{path} is not a resource"),
        }
    }

    #[test]
    fn a_1_paths_name_group_version_namespace_resource_name_and_subresource() {
        let pod = target("/api/v1/namespaces/shop/pods/web-1/status");
        assert_eq!(
            (pod.group.as_str(), pod.version.as_str(), pod.namespace.as_str()),
            ("", "v1", "shop")
        );
        assert_eq!((pod.resource.as_str(), pod.name.as_str()), ("pods", "web-1"));
        assert_eq!(pod.subresource, "status");
        assert_eq!(target("/apis/apps/v1/deployments").group, "apps");
        assert_eq!(Route::of("/apis/apps/v1"), Route::Other("/apis/apps/v1".into()));
        assert_eq!(Route::of("/api/v1"), Route::Other("/api/v1".into()));
    }

    #[test]
    fn a_2_a_trailing_slash_is_ignored() {
        assert_eq!(target("/api/v1/nodes/"), target("/api/v1/nodes"));
    }

    #[test]
    fn a_3_only_status_and_finalize_belong_to_the_namespace_itself() {
        let finalize = target("/api/v1/namespaces/shop/finalize");
        assert_eq!((finalize.resource.as_str(), finalize.name.as_str()), ("namespaces", "shop"));
        assert_eq!(finalize.subresource, "finalize");
        assert_eq!(target("/api/v1/namespaces/shop").namespace, "shop");
        assert_eq!(target("/api/v1/namespaces/shop/secrets").resource, "secrets");
    }

    #[test]
    fn a_5_a_boolean_parameter_is_true_unless_it_is_0_or_false() {
        for (query, wanted) in [
            ("watch", true),
            ("watch=", true),
            ("watch=1", true),
            ("watch=False", false),
            ("watch=0", false),
            ("", false),
        ] {
            assert_eq!(Query::parse(Some(query)).flag("watch"), wanted, "{query}");
        }
        assert!(Query::parse(Some("limit=many")).number("limit").is_err());
    }

    #[test]
    fn a_6_the_old_watch_prefix_still_watches() {
        let one = target("/api/v1/watch/namespaces/shop/pods/web");
        assert!(one.watch_prefix);
        assert_eq!(verb(&Method::GET, &one, &Query::default()), "watch");
    }

    #[test]
    fn a_89_the_path_after_proxy_is_kept_unchanged() {
        let rest = |path: &str| target(path).rest.unwrap();
        assert_eq!(rest("/api/v1/namespaces/proxy/pods/proxy/proxy/a%20b//c/"), "/a%20b//c/");
        assert_eq!(rest("/api/v1/nodes/n/proxy/"), "/");
        assert_eq!(rest("/api/v1/nodes/n/proxy"), "");
    }

    #[test]
    fn a_path_with_too_many_segments_is_not_a_resource() {
        assert_eq!(
            Route::of("/api/v1/namespaces/a/pods/b/status/more"),
            Route::Other("/api/v1/namespaces/a/pods/b/status/more".into())
        );
    }
}
