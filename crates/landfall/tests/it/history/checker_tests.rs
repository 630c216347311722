//! Tests of the checker: it finds planted faults, accepts correct histories, and on small histories agrees with a search
//! of all orders.

use super::*;
use crate::process::Random;
use Answer::*;
use Call::*;

fn operation(start: u64, end: u64, call: Call, answer: Answer) -> Operation {
    let end = if answer == Unknown { NEVER } else { end };
    Operation { client: 0, start, end, call, answer }
}

const UPDATE: fn(u64, u64) -> Call = |from, to| Update { from, to };
const DELETE: Call = Delete { of: None };

#[track_caller]
fn refused(story: &str, rows: &[(u64, u64, Call, Answer)]) {
    let history: Vec<_> = rows.iter().map(|(s, e, c, a)| operation(*s, *e, *c, *a)).collect();
    assert!(check(&history).is_err(), "{story} was not noticed");
    assert!(!by_trying(&history), "{story} is no fault");
}

#[track_caller]
fn accepted(story: &str, rows: &[(u64, u64, Call, Answer)]) {
    let history: Vec<_> = rows.iter().map(|(s, e, c, a)| operation(*s, *e, *c, *a)).collect();
    assert_eq!(check(&history), Ok(()), "{story}");
    assert!(by_trying(&history), "{story} is a fault");
}

#[test]
fn planted_faults_are_found() {
    let (one, two) = ((0, 1, Create(1), Done), (2, 3, UPDATE(1, 2), Done));
    refused("a stale read", &[one, two, (4, 5, Read, Found(Some(1)))]);
    refused("a read that misses an object", &[one, (4, 5, Read, Found(None))]);
    refused("a read of a value that was never written", &[one, (4, 5, Read, Found(Some(9)))]);
    refused("a lost update", &[one, two, (4, 5, UPDATE(1, 3), Done)]);
    refused(
        "a precondition that held twice",
        &[one, (2, 8, UPDATE(1, 2), Done), (3, 9, UPDATE(1, 3), Done)],
    );
    refused("two creations", &[one, (2, 3, Create(2), Done)]);
    refused(
        "a resurrected object",
        &[one, (2, 3, DELETE, Done), (4, 5, Read, Found(None)), (6, 7, Read, Found(Some(1)))],
    );
    refused("a deletion that did nothing", &[one, (2, 3, DELETE, Done), (4, 5, Create(2), Exists)]);
    refused("a deletion of another version", &[one, two, (4, 5, Delete { of: Some(1) }, Done)]);
    refused("a conflict with itself", &[one, (2, 3, UPDATE(1, 2), Changed)]);
    refused("an object that is absent for writers only", &[one, (2, 3, UPDATE(1, 2), Absent)]);
    refused(
        "an acknowledged write that a crash took back",
        &[
            one,
            (2, 3, UPDATE(1, 2), Done),
            (4, 5, UPDATE(2, 3), Unknown),
            (6, 7, Read, Found(Some(1))),
        ],
    );
    refused(
        "a write without an answer that came, went, and came again",
        &[
            one,
            (2, 3, UPDATE(1, 2), Unknown),
            (4, 5, Read, Found(Some(2))),
            (6, 7, Read, Found(Some(1))),
        ],
    );
    refused(
        "a write without an answer that was there before it was asked for",
        &[one, (2, 3, Read, Found(Some(2))), (4, 5, UPDATE(1, 2), Unknown)],
    );
    refused(
        "two readers that see two writes in different order",
        &[
            one,
            (2, 20, UPDATE(1, 2), Done),
            (3, 5, Read, Found(Some(2))),
            (6, 7, Read, Found(Some(1))),
        ],
    );
}

#[test]
fn right_histories_are_not_refused() {
    let one = (0, 1, Create(1), Done);
    accepted("nothing", &[]);
    accepted("a read of an object that was never there", &[(0, 1, Read, Found(None))]);
    accepted(
        "a read during a write sees either",
        &[
            one,
            (2, 9, UPDATE(1, 2), Done),
            (3, 4, Read, Found(Some(1))),
            (5, 6, Read, Found(Some(2))),
        ],
    );
    accepted(
        "a write without an answer happens later",
        &[
            one,
            (2, 3, UPDATE(1, 2), Unknown),
            (4, 5, Read, Found(Some(1))),
            (6, 7, Read, Found(Some(2))),
        ],
    );
    accepted(
        "a write without an answer never happens",
        &[one, (2, 3, DELETE, Unknown), (4, 5, Read, Found(Some(1))), (6, 7, UPDATE(1, 2), Done)],
    );
    accepted(
        "a deletion without an answer explains an absence",
        &[one, (2, 3, DELETE, Unknown), (4, 5, UPDATE(1, 2), Absent), (6, 7, Create(3), Done)],
    );
    accepted(
        "one of two at once wins",
        &[
            one,
            (2, 8, UPDATE(1, 2), Changed),
            (3, 9, UPDATE(1, 3), Done),
            (10, 11, Read, Found(Some(3))),
        ],
    );
}

/// Tries every order. Only for a few operations.
fn by_trying(history: &[Operation]) -> bool {
    fn place(left: &mut Vec<Operation>, state: State) -> bool {
        if left.iter().all(Operation::is_unknown) {
            return true;
        }
        let first_end = left.iter().map(|operation| operation.end).min().unwrap_or(NEVER);
        (0..left.len()).any(|at| {
            let operation = left[at];
            if operation.start > first_end {
                return false;
            }
            let Some(next) = operation.step(state) else { return false };
            left.remove(at);
            let found = place(left, next);
            left.insert(at, operation);
            found
        })
    }
    place(&mut history.to_vec(), None)
}

/// A small random history, correct or not.
fn any_history(random: &mut Random) -> Vec<Operation> {
    let count = 3 + random.below(5);
    let mut operations = Vec::new();
    for nth in 0..count {
        // All times differ: starts are even, ends odd.
        let start = 2 * (nth + random.below(3) * 10);
        let end = start + 1 + 2 * random.below(12);
        let value = |random: &mut Random| 1 + random.below(3);
        let seen = |random: &mut Random| Some(random.below(4)).filter(|value| *value > 0);
        let of = seen(random);
        let call = match random.below(5) {
            0 | 1 => Read,
            2 => Create(value(random)),
            3 => UPDATE(value(random), value(random)),
            _ => Delete { of },
        };
        let answers: &[Answer] = match call {
            Read => &[Found(seen(random))],
            Create(_) => &[Done, Exists, Unknown],
            Update { .. } | Delete { of: Some(_) } => &[Done, Done, Changed, Absent, Unknown],
            Delete { of: None } => &[Done, Absent, Unknown],
        };
        let answer = answers[random.below(answers.len() as u64) as usize];
        operations.push(operation(start, end, call, answer));
    }
    operations
}

#[test]
fn on_small_histories_it_agrees_with_trying_every_order() {
    let mut random = Random::seeded();
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..20_000 {
        let history = any_history(&mut random);
        let expected = by_trying(&history);
        assert_eq!(check(&history).is_ok(), expected, "{history:#?}");
        if expected { right += 1 } else { wrong += 1 }
    }
    assert!(right > 500 && wrong > 500, "{right} right, {wrong} wrong");
}
