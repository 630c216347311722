//! Requests that clients send, well-formed and hostile, and replies that do not fit.

use super::*;
use hickory_proto::op::Message;
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, RecordType};
use proptest::prelude::*;

/// `a.b` IN A, id 0x1234, recursion desired.
const QUESTION: &[u8] = &[1, b'a', 1, b'b', 0, 0, 1, 0, 1];

const OPT_RECORD: &[u8] = &[0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 0];

fn request(flags: [u8; 2], counts: [u8; 4], rest: &[&[u8]]) -> Vec<u8> {
    let [queries, answers, authorities, additionals] = counts;
    let mut bytes = vec![0x12, 0x34, flags[0], flags[1]];
    bytes.extend([0, queries, 0, answers, 0, authorities, 0, additionals]);
    bytes.extend(rest.concat());
    bytes
}

#[test]
fn requests_are_accepted_and_rejected_as_coredns_does() {
    let deep = |pointer: u8| [&[0xC0, pointer, 0, 1, 0, 1][..]].concat();
    let rows: &[(&str, Vec<u8>, &str)] = &[
        ("plain", request([1, 0], [1, 0, 0, 0], &[QUESTION]), "a.b. A"),
        ("with EDNS", request([1, 0], [1, 0, 0, 1], &[QUESTION, OPT_RECORD]), "a.b. A edns 4096"),
        ("with junk behind", request([1, 0], [1, 0, 0, 0], &[QUESTION, &[9; 99]]), "a.b. A"),
        ("empty", vec![], "ignored"),
        ("short", vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0], "ignored"),
        ("a reply", request([0x80, 0], [1, 0, 0, 0], &[QUESTION]), "ignored"),
        ("notify", request([0x20, 0], [1, 0, 0, 0], &[QUESTION]), "1234 NotImp"),
        ("update", request([0x28, 0], [1, 0, 0, 0], &[QUESTION]), "1234 NotImp"),
        ("status", request([0x10, 0], [0, 0, 0, 0], &[]), "1234 NotImp"),
        ("unknown operation", request([0x78, 0], [1, 0, 0, 0], &[QUESTION]), "1234 NotImp"),
        ("no question", request([1, 0], [0, 0, 0, 0], &[]), "1234 FormErr"),
        ("two questions", request([1, 0], [2, 0, 0, 0], &[QUESTION, QUESTION]), "1234 FormErr"),
        ("missing question", request([1, 0], [1, 0, 0, 0], &[]), "1234 FormErr"),
        ("cut question", request([1, 0], [1, 0, 0, 0], &[&QUESTION[..8]]), "1234 FormErr"),
        ("missing records", request([1, 0], [1, 0, 0, 2], &[QUESTION, OPT_RECORD]), "1234 FormErr"),
        ("many records", request([1, 0], [1, 0, 0, 255], &[QUESTION]), "1234 FormErr"),
        ("many answers", request([1, 0], [1, 200, 0, 0], &[QUESTION]), "1234 FormErr"),
        (
            "two OPT records",
            request([1, 0], [1, 0, 0, 2], &[QUESTION, OPT_RECORD, OPT_RECORD]),
            "1234 FormErr",
        ),
        (
            "OPT among the answers",
            request([1, 0], [1, 1, 0, 0], &[QUESTION, OPT_RECORD]),
            "1234 FormErr",
        ),
        ("pointer to itself", request([1, 0], [1, 0, 0, 0], &[&deep(12)]), "1234 FormErr"),
        ("pointer forward", request([1, 0], [1, 0, 0, 0], &[&deep(40), &[0; 40]]), "1234 FormErr"),
        (
            "reserved label",
            request([1, 0], [1, 0, 0, 0], &[&[0x80, 0, 0, 1, 0, 1]]),
            "1234 FormErr",
        ),
        (
            "name of 300 bytes",
            request([1, 0], [1, 0, 0, 0], &[&[1, b'a'].repeat(150), &[0, 0, 1, 0, 1]]),
            "1234 FormErr",
        ),
    ];
    for (what, bytes, expected) in rows {
        let shown = match Request::read(bytes) {
            Ok(Request { question, edns, .. }) => {
                let edns = edns.map(|edns| format!(" edns {}", edns.size)).unwrap_or_default();
                format!("{} {}{edns}", question.name, question.query_type)
            }
            Err(Unreadable::Ignore) => "ignored".into(),
            Err(Unreadable::Reject(reply)) => {
                let reply = Message::from_vec(&reply).unwrap();
                assert_eq!(reply.message_type, MessageType::Response);
                format!("{:x} {:?}", reply.id, reply.response_code)
            }
        };
        assert_eq!(shown, *expected, "{what}");
    }
}

/// A chain of pointers in a record must not be followed, whatever its length.
#[test]
fn compression_loops_in_records_cost_nothing() {
    let mut junk = vec![0, 0, 99, 0, 1, 0, 0, 0, 0, 0xEF, 0xFF];
    junk.extend((0..0xEFFFu16 / 2).flat_map(|number| (0xC000 | number).to_be_bytes()));
    junk.resize(11 + 0xEFFF, 0);
    let pointing = [0xFF, 0xFE, 0, 99, 0, 1, 0, 0, 0, 0, 0, 0];
    let bytes = request([1, 0], [1, 0, 0, 2], &[QUESTION, &junk, &pointing]);
    assert!(Request::read(&bytes).is_ok());
}

fn replied(count: usize, edns: Option<Edns>, transport: Transport) -> (usize, Message) {
    let question =
        Query::query(Name::from_ascii("db.shop.svc.cluster.local.").unwrap(), RecordType::A);
    let owner = question.name.clone();
    let request =
        Request { id: 7, question, recursion_desired: true, checking_disabled: false, edns };
    let address = |number: usize| RData::A(A::new(10, 0, (number >> 8) as u8, number as u8));
    let record = |number| Record::from_rdata(owner.clone(), 5, address(number));
    let answers: Vec<Record> = (0..count).map(record).collect();
    let additionals = answers.clone();
    let reply = Reply { authoritative: true, answers, additionals, ..Reply::default() };
    let mut bytes = Vec::new();
    request.write(&reply, transport, &mut bytes);
    (bytes.len(), Message::from_vec(&bytes).unwrap())
}

/// NET-103: whole records are dropped, the TC bit says so, and the OPT record always stays.
#[test]
fn net_103_replies_fit_the_size_that_the_client_accepts() {
    let edns = |size| Some(Edns { size, version: 0, dnssec_ok: false });
    for (count, edns, transport, limit, complete) in [
        (10, None, Transport::Udp, 512, true),
        (100, None, Transport::Udp, 512, false),
        (29, None, Transport::Udp, 512, true),
        (29, edns(512), Transport::Udp, 512, false),
        (60, edns(1232), Transport::Udp, 1232, true),
        (100, edns(1232), Transport::Udp, 1232, false),
        (100, edns(65535), Transport::Udp, 4096, true),
        (1000, edns(65535), Transport::Udp, 4096, false),
        (100, edns(0), Transport::Udp, 512, false),
        (4000, None, Transport::Tcp, 65535, true),
        (5000, edns(512), Transport::Tcp, 65535, false),
    ] {
        let (size, message) = replied(count, edns, transport);
        let case = format!("{count} records, {edns:?}, {transport:?}: {size} bytes");
        assert!(size <= limit, "{case}");
        assert_eq!(message.truncation, !complete, "{case}");
        assert_eq!(message.edns.is_some(), edns.is_some(), "{case}");
        match complete {
            true => assert_eq!(message.answers.len(), count, "{case}"),
            false => assert!(size + 16 > limit, "one more would fit: {case}"),
        }
        let records = message.answers.len() + message.additionals.len();
        let opt = if edns.is_some() { 11 } else { 0 };
        assert_eq!(size, 43 + 16 * records + opt, "no bytes of dropped records: {case}");
        assert!(message.authoritative && message.recursion_available && message.recursion_desired);
    }
}

#[test]
fn codes_above_15_need_edns() {
    let question = Query::query(Name::root(), RecordType::A);
    for (edns, expected) in [
        (None, ResponseCode::ServFail),
        (Some(Edns { size: 512, version: 1, dnssec_ok: true }), ResponseCode::BADVERS),
    ] {
        let (recursion_desired, checking_disabled) = (false, true);
        let question = question.clone();
        let request = Request { id: 1, question, recursion_desired, checking_disabled, edns };
        let mut bytes = Vec::new();
        request.write(&Reply::of_code(ResponseCode::BADVERS), Transport::Udp, &mut bytes);
        let message = Message::from_vec(&bytes).unwrap();
        // The library reads 16 as BADVERS or, the same number, BADSIG.
        assert_eq!(u16::from(message.response_code), u16::from(expected));
        assert!(message.checking_disabled && !message.recursion_desired);
    }
}

proptest! {
    #[test]
    fn no_request_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Request::read(&bytes);
    }

    /// As above, with a header that is accepted.
    #[test]
    fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..600), records in 0u8..3) {
        let _ = Request::read(&request([1, 0], [1, 0, 0, records], &[&body]));
        let _ = Request::read(&request([1, 0], [1, 1, 1, records], &[QUESTION, &body]));
    }
}
