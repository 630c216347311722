//! A set of fields, kept in the form in which `managedFields` stores it.
//!
//! Every write reads and writes these sets, so they stay `fieldsV1` JSON all the time: reading
//! one only checks it, writing one only moves it. A node is a map from path elements to nodes. A
//! node is a member of the set if it is empty or has the key `.`; nodes that are neither members
//! nor ancestors of members do not exist.

use super::element;
use serde_json::{Map, Value};

/// A node and everything below it.
pub(super) type Node = Map<String, Value>;

const SELF: &str = ".";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct FieldSet {
    root: Node,
}

impl FieldSet {
    /// The set of these fields, each a path of names: `[&["status"], &["metadata", "labels"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = FieldSet::default();
        for path in paths {
            let mut node = Part { owned: true, children: Node::new() };
            for name in path.iter().rev() {
                let mut parent = Part::default();
                parent.insert(element::field(name), node);
                node = parent;
            }
            set.unite(FieldSet { root: node.children });
        }
        set
    }

    /// Reads `fieldsV1`; `None` if it is malformed.
    pub fn parse(fields: Value) -> Option<Self> {
        let Value::Object(root) = fields else { return None };
        let mut root = parse_node(root)?;
        root.remove(SELF); // Nobody owns the whole object.
        Some(FieldSet { root })
    }

    /// Reads a set that this server wrote itself, without checking it.
    pub(super) fn trusted(fields: Value) -> Self {
        match fields {
            Value::Object(root) => FieldSet { root },
            _ => FieldSet::default(),
        }
    }

    pub(super) fn from_root(root: Node) -> Self {
        FieldSet { root }
    }

    pub(super) fn root(&self) -> &Node {
        &self.root
    }

    /// As `fieldsV1`.
    pub fn into_json(self) -> Value {
        Value::Object(self.root)
    }

    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// Whether the field at this path of elements is in the set.
    pub fn contains(&self, path: &[&str]) -> bool {
        let mut node = &self.root;
        for element in path {
            match node.get(*element) {
                Some(Value::Object(next)) => node = next,
                _ => return false,
            }
        }
        !path.is_empty() && owned(node)
    }

    /// Adds everything that is in the other set.
    pub fn unite(&mut self, other: FieldSet) {
        unite(&mut self.root, other.root);
    }

    /// Removes the members of the other set, but nothing below them.
    pub fn subtract(&mut self, other: &FieldSet) {
        subtract(&mut self.root, &other.root);
    }

    /// Removes the members of the other set and everything below them.
    pub fn subtract_below(&mut self, other: &FieldSet) {
        subtract_below(&mut self.root, &other.root);
    }

    /// The members that both sets have.
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        FieldSet { root: intersection(&self.root, &other.root) }
    }

    /// The members that have no members below them.
    pub fn leaves(&self) -> FieldSet {
        FieldSet { root: leaves(&self.root) }
    }

    /// The paths of all members in readable form, outer ones first: `.data.k`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        list_paths(&self.root, &mut String::new(), &mut paths);
        paths
    }
}

/// A node under construction; it may turn out to be empty.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub owned: bool,
    pub children: Node,
}

impl Part {
    pub(super) fn is_empty(&self) -> bool {
        !self.owned && self.children.is_empty()
    }

    /// Adds a part below this one, unless it is empty.
    pub(super) fn insert(&mut self, element: String, mut part: Part) {
        if part.children.is_empty() {
            if part.owned {
                self.children.insert(element, Value::Object(Node::new()));
            }
            return;
        }
        if part.owned {
            part.children.insert(SELF.into(), Value::Object(Node::new()));
        }
        self.children.insert(element, Value::Object(part.children));
    }
}

pub(super) fn owned(node: &Node) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// The elements below a node, without the key `.`.
pub(super) fn children(node: &Node) -> impl Iterator<Item = (&String, &Node)> {
    node.iter().filter(|(element, _)| *element != SELF).filter_map(|(element, child)| match child {
        Value::Object(child) => Some((element, child)),
        _ => None,
    })
}

pub(super) fn child<'n>(node: &'n Node, element: &str) -> Option<&'n Node> {
    node.get(element).and_then(Value::as_object)
}

/// Makes the node a member of the set or not. Returns false if the node is then useless.
fn mark(node: &mut Node, owned: bool) -> bool {
    node.remove(SELF);
    let has_children = !node.is_empty();
    if owned && has_children {
        node.insert(SELF.into(), Value::Object(Node::new()));
    }
    owned || has_children
}

fn parse_node(node: Node) -> Option<Node> {
    let mut parsed = Node::new();
    for (element, child) in node {
        let Value::Object(child) = child else { return None };
        if element == SELF {
            parsed.insert(element, Value::Object(Node::new()));
        } else {
            parsed.insert(element::canonical(element)?, Value::Object(parse_node(child)?));
        }
    }
    if parsed.len() == 1 {
        parsed.remove(SELF); // `{".": {}}` means the same as `{}`.
    }
    Some(parsed)
}

fn unite(node: &mut Node, other: Node) {
    for (element, theirs) in other {
        let Value::Object(theirs) = theirs else { continue };
        if element == SELF {
            continue;
        }
        match node.get_mut(&element) {
            Some(Value::Object(ours)) => {
                let owned = owned(ours) || owned(&theirs);
                unite(ours, theirs);
                mark(ours, owned);
            }
            _ => {
                node.insert(element, Value::Object(theirs));
            }
        }
    }
}

fn subtract(node: &mut Node, other: &Node) {
    for (element, theirs) in children(other) {
        let Some(Value::Object(ours)) = node.get_mut(element) else { continue };
        let owned = owned(ours) && !owned(theirs);
        subtract(ours, theirs);
        if !mark(ours, owned) {
            node.remove(element);
        }
    }
}

fn subtract_below(node: &mut Node, other: &Node) {
    for (element, theirs) in children(other) {
        if owned(theirs) {
            node.remove(element);
            continue;
        }
        let Some(Value::Object(ours)) = node.get_mut(element) else { continue };
        let owned = owned(ours);
        subtract_below(ours, theirs);
        if !mark(ours, owned) {
            node.remove(element);
        }
    }
}

fn intersection(node: &Node, other: &Node) -> Node {
    let mut both = Part::default();
    for (element, theirs) in children(other) {
        if let Some(ours) = child(node, element) {
            let part =
                Part { owned: owned(ours) && owned(theirs), children: intersection(ours, theirs) };
            both.insert(element.clone(), part);
        }
    }
    both.children
}

fn leaves(node: &Node) -> Node {
    let mut found = Part::default();
    for (element, below) in children(node) {
        found.insert(element.clone(), Part { owned: below.is_empty(), children: leaves(below) });
    }
    found.children
}

fn list_paths(node: &Node, path: &mut String, paths: &mut Vec<String>) {
    let here = path.len();
    for (element, child) in children(node) {
        if owned(child) {
            element::show(element, path);
            paths.push(path.clone());
            path.truncate(here);
        }
    }
    for (element, child) in children(node).filter(|(_, child)| !child.is_empty()) {
        element::show(element, path);
        list_paths(child, path, paths);
        path.truncate(here);
    }
}
