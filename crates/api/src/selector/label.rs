//! Label selectors: `app=web,tier in (front, back),!canary`, and the same as an object.

use crate::names;
use serde_json::Value;
use std::fmt;

/// Selects objects that meet all requirements; without requirements it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Sorted by key, as upstream sorts and prints them.
    requirements: Vec<LabelRequirement>,
    /// Set if there is no selector at all, which selects nothing.
    nothing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRequirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted, without duplicates.
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<LabelSelector, String> {
        Ok(Self::of(Parser { tokens: scan(text), next: 0 }.selector()?))
    }

    /// From a `metav1.LabelSelector`: null selects nothing, an empty one everything.
    pub fn from_object(selector: &Value) -> Result<LabelSelector, String> {
        if selector.is_null() {
            return Ok(LabelSelector { requirements: Vec::new(), nothing: true });
        }
        let mut requirements = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(requirement(key, Operator::Equals, vec![value])?);
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or_default();
            let operator = match expression["operator"].as_str().unwrap_or_default() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let values = expression["values"].as_array().into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(requirement(key, operator, values)?);
        }
        Ok(Self::of(requirements))
    }

    /// From a plain map of labels, as Services and ReplicationControllers have it. Unlike in a
    /// `metav1.LabelSelector`, keys and values are taken as they are.
    pub fn from_labels(labels: &Value) -> LabelSelector {
        let labels = labels.as_object().into_iter().flatten();
        Self::of(
            labels
                .map(|(key, value)| LabelRequirement {
                    key: key.clone(),
                    operator: Operator::Equals,
                    values: vec![value.as_str().unwrap_or_default().to_owned()],
                })
                .collect(),
        )
    }

    fn of(mut requirements: Vec<LabelRequirement>) -> LabelSelector {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        LabelSelector { requirements, nothing: false }
    }

    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.requirements
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    pub fn matches<'v>(&self, label: impl Fn(&str) -> Option<&'v str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(label(&r.key)))
    }
}

impl LabelRequirement {
    fn matches(&self, label: Option<&str>) -> bool {
        let among = |label: &str| self.values.iter().any(|value| value == label);
        let compared = |holds: fn(i64, i64) -> bool| {
            let limit = self.values.first().and_then(|value| value.parse().ok());
            let label = label.and_then(|label| label.parse().ok());
            label.zip(limit).is_some_and(|(label, limit)| holds(label, limit))
        };
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => label.is_some_and(among),
            Operator::NotIn | Operator::NotEquals => !label.is_some_and(among),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => compared(|label, limit| label > limit),
            Operator::LessThan => compared(|label, limit| label < limit),
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LabelRequirement { key, operator, values } = self;
        let values = values.join(",");
        match operator {
            // Upstream prints `k in ()` for the single value "", which cannot be parsed again.
            Operator::In if values.is_empty() => write!(f, "{key} in (,)"),
            Operator::NotIn if values.is_empty() => write!(f, "{key} notin (,)"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A validated requirement. Paths in messages are upstream's, which have no root here.
fn requirement(
    key: &str,
    operator: Operator,
    mut values: Vec<String>,
) -> Result<LabelRequirement, String> {
    let shown = || Value::from(values.clone());
    let mut errors = Vec::new();
    let wrong = names::qualified_name(key);
    if !wrong.is_empty() {
        errors.push(format!("key: Invalid value: {}: {}", Value::from(key), wrong.join("; ")));
    }
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => errors.push(format!(
            "values: Invalid value: {}: for 'in', 'notin' operators, values set can't be empty",
            shown()
        )),
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => errors.push(format!(
            "values: Invalid value: {}: values set must be empty for exists and does not exist",
            shown()
        )),
        Operator::GreaterThan | Operator::LessThan => {
            for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
                let value = Value::from(value.as_str());
                errors.push(format!(
                    "values[{i}]: Invalid value: {value}: \
                     for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
        }
        _ => {}
    }
    for (i, value) in values.iter().enumerate() {
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            let value = Value::from(value.as_str());
            let wrong = wrong.join("; ");
            errors.push(format!("values[{i}][{key}]: Invalid value: {value}: {wrong}"));
        }
    }
    match errors.as_slice() {
        [] => {
            values.sort_unstable();
            values.dedup();
            Ok(LabelRequirement { key: key.to_owned(), operator, values })
        }
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Symbol(&'static str),
    End,
}

impl<'t> Token<'t> {
    fn literal(self) -> &'t str {
        match self {
            Token::Word(text) => text,
            Token::Symbol(text) => text,
            Token::End => "",
        }
    }
}

/// Longer symbols first, so that `==` is not read as two symbols.
const SYMBOLS: &[&str] = &["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn scan(text: &str) -> Vec<Token<'_>> {
    // A zero byte ends the text, as in upstream.
    let mut rest = text.split('\0').next().unwrap_or_default();
    let mut tokens = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            tokens.push(Token::End);
            return tokens;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
        } else {
            let end = rest
                .find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<'])
                .unwrap_or(rest.len());
            tokens.push(Token::Word(&rest[..end]));
            rest = &rest[end..];
        }
    }
}

struct Parser<'t> {
    /// Ends with [`Token::End`], which is never consumed.
    tokens: Vec<Token<'t>>,
    next: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Token<'t> {
        self.tokens.get(self.next).copied().unwrap_or(Token::End)
    }

    fn take(&mut self) -> Token<'t> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<LabelRequirement>, String> {
        let mut requirements = Vec::new();
        match self.peek() {
            Token::End => return Ok(requirements),
            Token::Word(_) | Token::Symbol("!") => {}
            other => {
                let found = other.literal();
                return Err(format!(
                    "found '{found}', expected: !, identifier, or 'end of string'"
                ));
            }
        }
        loop {
            let requirement = self.requirement();
            requirements
                .push(requirement.map_err(|e| format!("unable to parse requirement: {e}"))?);
            match self.take() {
                Token::End => return Ok(requirements),
                Token::Symbol(",") => {
                    let after = self.peek();
                    if !matches!(after, Token::Word(_) | Token::Symbol("!")) {
                        let found = after.literal();
                        return Err(format!("found '{found}', expected: identifier after ','"));
                    }
                }
                other => {
                    let found = other.literal();
                    return Err(format!("found '{found}', expected: ',' or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<LabelRequirement, String> {
        let absent = self.peek() == Token::Symbol("!");
        if absent {
            self.take();
        }
        let key = match self.take() {
            Token::Word(key) => key,
            other => return Err(format!("found '{}', expected: identifier", other.literal())),
        };
        let wrong = names::qualified_name(key);
        if !wrong.is_empty() {
            let shown = Value::from(key);
            return Err(format!("<nil>: Invalid value: {shown}: {}", wrong.join("; ")));
        }
        if absent {
            return requirement(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return requirement(key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        requirement(key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, String> {
        Ok(match self.take() {
            Token::Word("in") => Operator::In,
            Token::Word("notin") => Operator::NotIn,
            Token::Symbol("=") => Operator::Equals,
            Token::Symbol("==") => Operator::DoubleEquals,
            Token::Symbol("!=") => Operator::NotEquals,
            Token::Symbol(">") => Operator::GreaterThan,
            Token::Symbol("<") => Operator::LessThan,
            other => {
                let found = other.literal();
                return Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        })
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(String::new());
        }
        match self.take() {
            Token::Word(value) => Ok(value.to_owned()),
            other => Err(format!("found '{}', expected: identifier", other.literal())),
        }
    }

    /// `(a, b)`; an omitted value between commas is the empty string.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.take() {
            Token::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.literal())),
        }
        if self.peek() == Token::Symbol(")") {
            self.take();
            return Ok(Vec::new());
        }
        if !matches!(self.peek(), Token::Word(_) | Token::Symbol(",")) {
            let found = self.peek().literal();
            return Err(format!("found '{found}', expected: ',', ')' or identifier"));
        }
        let mut values = Vec::new();
        loop {
            match self.take() {
                Token::Word(value) => {
                    values.push(value.to_owned());
                    match self.peek() {
                        Token::Symbol(",") => {}
                        Token::Symbol(")") => break,
                        other => {
                            let found = other.literal();
                            return Err(format!("found '{found}', expected: ',' or ')'"));
                        }
                    }
                }
                Token::Symbol(",") => {
                    if values.is_empty() || self.peek() == Token::Symbol(",") {
                        values.push(String::new());
                    }
                    match self.peek() {
                        Token::Symbol(",") => {
                            self.take();
                        }
                        Token::Symbol(")") => {
                            values.push(String::new());
                            break;
                        }
                        _ => {}
                    }
                }
                // Upstream rejects `(a,,)` with this message as well.
                other => {
                    let found = other.literal();
                    return Err(format!("found '{found}', expected: ',', or identifier"));
                }
            }
        }
        self.take();
        Ok(values)
    }
}

#[cfg(test)]
mod tests;
