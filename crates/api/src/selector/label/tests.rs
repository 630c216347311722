//! Matching, printing and parse errors of label selectors.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn parse(text: &str) -> LabelSelector {
    LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_102_every_operator_selects_the_matching_labels() {
    let labels = json!({"app": "web", "env": "", "n": "7"});
    let get = |key: &str| labels[key].as_str();
    for (text, selected) in [
        ("", true),
        ("app", true),
        ("none", false),
        ("!app", false),
        ("! none", true),
        ("app=web", true),
        ("app == web", true),
        ("app=db", false),
        ("app!=db", true),
        ("none!=db", true),
        ("app!=web", false),
        ("env=", true),
        ("env", true),
        ("app in (web, db)", true),
        ("app in (db)", false),
        ("none in (db)", false),
        ("env in (,db)", true),
        ("app notin (db)", true),
        ("none notin (db)", true),
        ("app notin (web)", false),
        ("n>5", true),
        ("n>7", false),
        ("n < 8", true),
        ("app>5", false),
        ("none<5", false),
        ("app=web,n>5,!none", true),
        ("app=web,n>9", false),
    ] {
        assert_eq!(parse(text).matches(get), selected, "{text}");
    }
}

#[test]
fn a_102_selectors_print_as_upstream_prints_them() {
    for (text, printed) in [
        ("b=1,a=2", "a=2,b=1"),
        ("a in ( z , y,z)", "a in (y,z)"),
        ("a notin(x)", "a notin (x)"),
        ("! a , b", "!a,b"),
        ("a==b", "a==b"),
        ("a>1", "a>1"),
        ("in in (in)", "in in (in)"),
        ("x notin (,)", "x notin (,)"),
    ] {
        assert_eq!(parse(text).to_string(), printed, "{text}");
    }
}

#[test]
fn a_102_invalid_selectors_are_rejected_with_upstreams_messages() {
    for (text, message) in [
        ("a===b", "unable to parse requirement: found '=', expected: identifier"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        (
            "a in ()",
            "unable to parse requirement: values: Invalid value: []: \
             for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": \
             for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ] {
        assert_eq!(LabelSelector::parse(text).unwrap_err(), message, "{text}");
    }
    let bad_key = LabelSelector::parse("-a=b").unwrap_err();
    let start = "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist";
    assert!(bad_key.starts_with(start), "{bad_key}");
    let bad_value = LabelSelector::parse("a=-b").unwrap_err();
    let start = "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label";
    assert!(bad_value.starts_with(start), "{bad_value}");
}

#[test]
fn an_empty_selector_object_selects_everything_and_null_selects_nothing() {
    let everything = LabelSelector::from_object(&json!({})).unwrap();
    assert!(everything.is_everything() && everything.matches(|_| None));
    let nothing = LabelSelector::from_object(&Value::Null).unwrap();
    assert!(nothing.is_nothing() && !nothing.is_everything() && !nothing.matches(|_| None));
}

#[test]
fn a_selector_object_combines_labels_and_expressions() {
    let selector = LabelSelector::from_object(&json!({
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["front", "back"]},
            {"key": "canary", "operator": "DoesNotExist"},
        ],
    }));
    assert_eq!(selector.unwrap().to_string(), "app=web,!canary,tier in (back,front)");
    let odd = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
    let messages = LabelSelector::from_object(&odd).unwrap_err();
    assert_eq!(messages, "\"Near\" is not a valid label selector operator");
}

proptest! {
    #[test]
    fn parsing_never_panics_and_printing_parses_back(text in "(a|b1|in|notin|=|!|<|>|7|\\(|\\)|,| |é|\0){0,12}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(&LabelSelector::parse(&selector.to_string()).unwrap(), &selector);
        }
    }

    #[test]
    fn random_text_does_not_panic(text in ".{0,40}") {
        let _ = LabelSelector::parse(&text);
    }
}
