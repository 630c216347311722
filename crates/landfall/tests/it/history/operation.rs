//! The request and the response of an operation on one object, and its effect on the object.
//!
//! Every write stores a unique value, so the state of an object is this value, and a resourceVersion that a client sends
//! stands for the value that it came with.

/// The value of the object; None: it does not exist.
pub(crate) type State = Option<u64>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Read,
    Create(u64),
    /// With the resourceVersion of the version with the value `from`.
    Update {
        from: u64,
        to: u64,
    },
    /// With the resourceVersion as a precondition, or without one.
    Delete {
        of: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Found(State),
    Done,
    /// The object already exists.
    Exists,
    /// The object has another resourceVersion.
    Changed,
    Absent,
    /// There was no response, or a server error. The operation may have happened, may happen later, or never.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    /// A logical time: each one is greater than all before it, across all clients.
    pub(crate) start: u64,
    /// `NEVER` for an operation without a response.
    pub(crate) end: u64,
    pub(crate) call: Call,
    pub(crate) answer: Answer,
}

pub(crate) const NEVER: u64 = u64::MAX;

impl Operation {
    pub(crate) fn is_unknown(&self) -> bool {
        self.answer == Answer::Unknown
    }

    /// The state after the operation; None: the response is not possible in this state.
    pub(crate) fn step(&self, state: State) -> Option<State> {
        let expected = |of: Option<u64>| state.is_some() && of.is_none_or(|of| state == Some(of));
        let (possible, next) = match (self.call, self.answer) {
            (Call::Read, Answer::Found(seen)) => (state == seen, state),
            (Call::Create(value), Answer::Done) => (state.is_none(), Some(value)),
            (Call::Create(_), Answer::Exists) => (state.is_some(), state),
            (Call::Update { from, to }, Answer::Done) => (expected(Some(from)), Some(to)),
            (Call::Update { from, .. }, Answer::Changed) => {
                (state.is_some() && !expected(Some(from)), state)
            }
            (Call::Delete { of }, Answer::Done) => (expected(of), None),
            (Call::Delete { of: Some(of) }, Answer::Changed) => {
                (state.is_some() && !expected(Some(of)), state)
            }
            (Call::Update { .. } | Call::Delete { .. }, Answer::Absent) => (state.is_none(), state),
            // It is unknown whether the precondition held. That the operation never happened is the same as that it happened
            // after all others.
            (Call::Create(value), Answer::Unknown) => (true, state.or(Some(value))),
            (Call::Update { from, to }, Answer::Unknown) => {
                (true, if expected(Some(from)) { Some(to) } else { state })
            }
            (Call::Delete { of }, Answer::Unknown) => {
                (true, if expected(of) { None } else { state })
            }
            (call, answer) => unreachable!("{call:?} is never answered by {answer:?}"),
        };
        possible.then_some(next)
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Operation { client, start, end, call, answer } = self;
        let end = if *end == NEVER { "…".to_owned() } else { end.to_string() };
        write!(f, "client {client} [{start}, {end}] {call:?}: {answer:?}")
    }
}
