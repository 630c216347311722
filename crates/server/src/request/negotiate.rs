//! Chooses the form of a response by the Accept header, and reads the Content-Type of bodies.

use crate::response::error::{ApiError, Result};
use http::HeaderMap;

/// What upstream can encode, as in its error messages. We encode the first two.
pub(crate) const REPRESENTATIONS: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Encoding {
    #[default]
    Json,
    Yaml,
}

/// A different view of an object that clients may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum View {
    #[default]
    Whole,
    Table {
        beta: bool,
    },
    /// PartialObjectMetadata
    Partial {
        beta: bool,
    },
    /// PartialObjectMetadataList
    PartialList {
        beta: bool,
    },
    /// APIGroupDiscoveryList, on `/api` and `/apis` only
    Discovery,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Form {
    pub(crate) encoding: Encoding,
    pub(crate) view: View,
    pub(crate) pretty: bool,
}

impl Form {
    /// Whether stored bytes can be sent unchanged.
    pub(crate) fn is_plain(self) -> bool {
        self.view == View::Whole && self.encoding == Encoding::Json && !self.pretty
    }
}

/// What an endpoint can return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// One object
    Object,
    List,
    /// An object without a table form
    Plain,
    Discovery,
    /// YAML cannot stream
    Watch,
}

struct Clause<'a> {
    kind: &'a str,
    quality: u16,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Clause<'a> {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts
            .filter_map(|parameter| parameter.split_once('='))
            .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
            .collect();
        let quality = parameters
            .iter()
            .find(|(key, _)| *key == "q")
            .and_then(|(_, value)| value.parse::<f32>().ok())
            .map_or(1000, |quality| (quality.clamp(0.0, 1.0) * 1000.0) as u16);
        Clause { kind, quality, parameters }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn form(&self, offer: Offer) -> Option<Form> {
        let encoding = match self.kind {
            "application/json" | "application/*" | "*/*" => Encoding::Json,
            "application/yaml" if offer != Offer::Watch => Encoding::Yaml,
            _ => return None,
        };
        let view = match self.parameter("as") {
            None => View::Whole,
            Some(name) => self.view(name, offer)?,
        };
        Some(Form { encoding, view, pretty: self.parameter("pretty") == Some("1") })
    }

    fn view(&self, name: &str, offer: Offer) -> Option<View> {
        let group = self.parameter("g");
        let version = self.parameter("v");
        if offer == Offer::Discovery {
            let wanted = name == "APIGroupDiscoveryList"
                && group == Some("apidiscovery.k8s.io")
                && version == Some("v2");
            return wanted.then_some(View::Discovery);
        }
        let beta = match version {
            Some("v1") => false,
            Some("v1beta1") => true,
            _ => return None,
        };
        if group != Some("meta.k8s.io") {
            return None;
        }
        match (name, offer) {
            ("Table", Offer::Object | Offer::List | Offer::Watch) => Some(View::Table { beta }),
            ("PartialObjectMetadata", Offer::Object | Offer::Watch) => Some(View::Partial { beta }),
            ("PartialObjectMetadataList", Offer::List) => Some(View::PartialList { beta }),
            _ => None,
        }
    }
}

/// The available form that the client prefers; 406 if there is none.
pub(crate) fn form(headers: &HeaderMap, offer: Offer) -> Result<Form> {
    let mut clauses: Vec<Clause> = headers
        .get_all(http::header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|clause| !clause.is_empty())
        .map(Clause::parse)
        .collect();
    if clauses.is_empty() {
        return Ok(Form::default());
    }
    clauses.sort_by_key(|clause| std::cmp::Reverse(clause.quality)); // Stable: order decides ties.
    clauses
        .iter()
        .filter(|clause| clause.quality > 0)
        .find_map(|clause| clause.form(offer))
        .ok_or(ApiError::NotAcceptable(REPRESENTATIONS))
}

/// The media type of a request body without its parameters; "" if there is none.
pub(crate) fn content_type(headers: &HeaderMap) -> &str {
    headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map_or("", |value| value.split(';').next().unwrap_or_default().trim())
}

/// Whether the client is probably used by a person.
pub(crate) fn wants_pretty(headers: &HeaderMap, query: Option<&str>) -> bool {
    match query {
        Some(text) => text != "0" && !text.eq_ignore_ascii_case("false"),
        None => headers
            .get(http::header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok())
            .is_some_and(|agent| {
                ["curl", "Wget", "Mozilla/5.0"].iter().any(|start| agent.starts_with(start))
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str, offer: Offer) -> Result<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, accept.parse().unwrap());
        form(&headers, offer)
    }

    #[test]
    fn a_18_the_preferred_clause_that_can_be_served_wins() {
        assert_eq!(negotiated("application/yaml", Offer::Object).unwrap().encoding, Encoding::Yaml);
        let both = "application/yaml;q=0.2, application/json;q=0.9";
        assert_eq!(negotiated(both, Offer::Object).unwrap().encoding, Encoding::Json);
        let typed = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(negotiated(typed, Offer::Object).unwrap(), Form::default());
        assert!(negotiated("text/csv", Offer::Object).is_err());
        assert!(negotiated("application/vnd.kubernetes.protobuf", Offer::List).is_err());
        assert_eq!(form(&HeaderMap::new(), Offer::List).unwrap(), Form::default());
    }

    #[test]
    fn a_19_an_impossible_view_falls_back_to_the_next_clause() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(negotiated(kubectl, Offer::List).unwrap().view, View::Table { beta: false });
        assert_eq!(negotiated(kubectl, Offer::Plain).unwrap().view, View::Whole);
    }

    #[test]
    fn a_20_an_unavailable_view_is_not_acceptable() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert!(negotiated(table, Offer::Plain).is_err());
        let list = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        assert!(negotiated(list, Offer::Object).is_err());
        assert!(negotiated(list, Offer::List).is_ok());
    }

    #[test]
    fn a_40_aggregated_discovery_is_requested_by_parameters() {
        let v2 =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(negotiated(v2, Offer::Discovery).unwrap().view, View::Discovery);
        let beta = v2.replace("v=v2", "v=v2beta1");
        assert_eq!(negotiated(&beta, Offer::Discovery).unwrap().view, View::Whole);
    }
}
