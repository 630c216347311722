//! Checks whether a history of one object is linearizable: whether its operations can be ordered so that the order agrees
//! with time and every response is correct.
//!
//! The search of Wing and Gong with the improvements of Lowe: try operations that may be next, undo the last one when an
//! operation that has ended cannot be placed, and never visit the same set of operations with the same state twice. An
//! operation that changes nothing is placed as soon as possible. Operations without a response may happen at any time
//! after their start; the search ends when all others are placed.

use super::operation::{Answer, Call, NEVER, Operation, State};
use std::collections::{HashMap, HashSet};

/// The limit of the search. No history of these tests reaches it.
const STEPS_MAX: usize = 2_000_000;
/// How many operations of the longest valid order are shown when there is no complete one.
const SHOWN: usize = 12;

/// The starts and ends of operations, ordered by time, as a linked list from which pairs are removed and reinserted.
struct Events {
    /// Which operation; true where it starts.
    what: Vec<(usize, bool)>,
    /// Where the operation ends, for each that starts.
    ends: Vec<usize>,
    next: Vec<usize>,
    previous: Vec<usize>,
}

/// The place before the first event.
const HEAD: usize = 0;

impl Events {
    fn of(operations: &[Operation]) -> Events {
        let mut moments: Vec<(u64, bool, usize)> = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            moments.push((operation.start, true, at));
            let end = if operation.is_unknown() { NEVER } else { operation.end };
            moments.push((end, false, at));
        }
        // All times differ, except those of operations without an end.
        moments.sort_unstable_by_key(|(moment, starts, at)| (*moment, !*starts, *at));
        let count = moments.len() + 1;
        let mut what = vec![(usize::MAX, false)];
        let mut ends = vec![0; operations.len()];
        for (_, starts, at) in moments {
            if !starts {
                ends[at] = what.len();
            }
            what.push((at, starts));
        }
        let next = (1..=count).collect();
        let previous = (0..=count).map(|at| at.wrapping_sub(1)).collect();
        Events { what, ends, next, previous }
    }

    fn take_out(&mut self, at: usize) {
        let (previous, next) = (self.previous[at], self.next[at]);
        self.next[previous] = next;
        self.previous[next] = previous;
    }

    fn put_back(&mut self, at: usize) {
        let (previous, next) = (self.previous[at], self.next[at]);
        self.next[previous] = at;
        self.previous[next] = at;
    }

    fn end(&self) -> usize {
        self.what.len()
    }
}

/// The set of placed operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed(Vec<u64>);

impl Placed {
    fn flip(&mut self, operation: usize) {
        self.0[operation / 64] ^= 1 << (operation % 64);
    }

    fn has(&self, operation: usize) -> bool {
        self.0[operation / 64] & (1 << (operation % 64)) != 0
    }
}

/// Err: the reason, with the longest valid order that was found.
pub(crate) fn check(operations: &[Operation]) -> Result<(), String> {
    let operations = &simplified(operations);
    let mut search = Search::of(operations);
    let mut best = Best::default();
    search.place_what_changes_nothing();
    let mut at = search.events.next[HEAD];
    for _ in 0..STEPS_MAX {
        if at == search.events.end() {
            return Ok(());
        }
        let (which, starts) = search.events.what[at];
        if starts {
            if search.place(at, which) {
                search.place_what_changes_nothing();
                at = search.events.next[HEAD];
            } else {
                at = search.events.next[at];
            }
            continue;
        }
        if operations[which].is_unknown() {
            // All operations with a response are placed.
            return Ok(());
        }
        best.note(&search, which);
        match search.take_back() {
            Some(last) => at = search.events.next[last],
            None => return Err(best.why(operations)),
        }
    }
    Err(format!("undecided after {STEPS_MAX} steps, for {} operations", operations.len()))
}

/// Values that no client ever saw are treated as equal, because no response depends on them.
fn simplified(operations: &[Operation]) -> Vec<Operation> {
    let shown = |operation: &Operation| match (operation.call, operation.answer) {
        (Call::Read, Answer::Found(seen)) => seen,
        (Call::Update { from, .. }, _) => Some(from),
        (Call::Delete { of }, _) => of,
        _ => None,
    };
    let shown: HashSet<u64> = operations.iter().filter_map(shown).collect();
    let simple = |value: u64| if shown.contains(&value) { value } else { NEVER_SHOWN };
    let simplify = |operation: &Operation| {
        let call = match operation.call {
            Call::Create(value) => Call::Create(simple(value)),
            Call::Update { from, to } => Call::Update { from, to: simple(to) },
            call => call,
        };
        Operation { call, ..*operation }
    };
    let mut operations: Vec<Operation> = operations.iter().map(simplify).collect();
    operations.sort_unstable_by_key(|operation| operation.start);
    operations
}

/// Represents all values that no client saw.
const NEVER_SHOWN: u64 = u64::MAX;

struct Search<'a> {
    operations: &'a [Operation],
    events: Events,
    placed: Placed,
    state: State,
    order: Vec<Step>,
    seen: HashSet<(Placed, State)>,
    /// For an operation without a response: the previous one with the same request. They are interchangeable, so only the
    /// earlier one is tried.
    twins: Vec<Option<usize>>,
}

/// A placed operation.
struct Step {
    /// Where it starts.
    at: usize,
    before: State,
    /// Trying another operation instead would be useless.
    certain: bool,
}

impl<'a> Search<'a> {
    fn of(operations: &'a [Operation]) -> Search<'a> {
        let mut last = HashMap::new();
        let twins = operations.iter().enumerate().map(|(at, operation)| {
            operation.is_unknown().then(|| last.insert(operation.call, at)).flatten()
        });
        let twins = twins.collect();
        Search {
            operations,
            events: Events::of(operations),
            placed: Placed(vec![0; operations.len().div_ceil(64)]),
            state: None,
            order: Vec::new(),
            seen: HashSet::new(),
            twins,
        }
    }

    /// An operation that changes nothing and whose response is correct now can be placed first.
    fn place_what_changes_nothing(&mut self) {
        let mut at = self.events.next[HEAD];
        while at != self.events.end() && self.events.what[at].1 {
            let which = self.events.what[at].0;
            let operation = &self.operations[which];
            if !operation.is_unknown() && operation.step(self.state) == Some(self.state) {
                self.put(Step { at, before: self.state, certain: true }, which);
                at = self.events.next[self.events.previous[at]];
            } else {
                at = self.events.next[at];
            }
        }
    }

    /// Places an operation that changes something, unless it is impossible or was tried before.
    fn place(&mut self, at: usize, which: usize) -> bool {
        let Some(next) = self.operations[which].step(self.state) else { return false };
        let twin_waits = self.twins[which].is_some_and(|twin| !self.placed.has(twin));
        if next == self.state || twin_waits {
            return false;
        }
        let mut placed = self.placed.clone();
        placed.flip(which);
        if !self.seen.insert((placed, next)) {
            return false;
        }
        self.put(Step { at, before: self.state, certain: false }, which);
        self.state = next;
        true
    }

    fn put(&mut self, step: Step, which: usize) {
        self.placed.flip(which);
        self.events.take_out(step.at);
        self.events.take_out(self.events.ends[which]);
        self.order.push(step);
    }

    /// Undoes operations up to the last one for which another can be tried, and returns where that one starts.
    fn take_back(&mut self) -> Option<usize> {
        while let Some(Step { at, before, certain }) = self.order.pop() {
            let which = self.events.what[at].0;
            self.placed.flip(which);
            self.state = before;
            self.events.put_back(self.events.ends[which]);
            self.events.put_back(at);
            if !certain {
                return Some(at);
            }
        }
        None
    }
}

/// The longest valid order, and the operations that could not follow it.
#[derive(Default)]
struct Best {
    order: Vec<usize>,
    stuck: Option<(usize, State)>,
}

impl Best {
    fn note(&mut self, search: &Search, stuck: usize) {
        if self.stuck.is_none() || search.order.len() > self.order.len() {
            self.order = search.order.iter().map(|step| search.events.what[step.at].0).collect();
            self.stuck = Some((stuck, search.state));
        }
    }

    fn why(&self, operations: &[Operation]) -> String {
        let Some((stuck, state)) = self.stuck else { return "there is nothing to order".into() };
        let from = self.order.len().saturating_sub(SHOWN);
        let last: Vec<String> =
            self.order[from..].iter().map(|at| format!("  {}", operations[*at])).collect();
        format!(
            "not linearizable: after\n{}\nthe object holds {state:?}, and this cannot be placed:\n  {}",
            last.join("\n"),
            operations[stuck]
        )
    }
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
