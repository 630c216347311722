//! Replies of servers that are wrong, late or hostile.

use super::*;
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record};
use proptest::prelude::*;

fn question() -> Question {
    Question {
        name: Name::from_ascii("www.example.com.").unwrap(),
        kind: RecordType::A,
        edns: None,
        recursion_desired: true,
        checking_disabled: false,
    }
}

fn reply(id: u16, name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(id, MessageType::Response, OpCode::Query);
    let name = Name::from_ascii(name).unwrap();
    message.add_query(Query::query(name.clone(), kind));
    message.add_answer(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 1))));
    message
}

#[test]
fn replies_must_have_the_id_and_the_question() {
    let good = reply(7, "WWW.example.com.", RecordType::A);
    let mut request = good.clone();
    request.metadata.message_type = MessageType::Query;
    let mut unasked = good.clone();
    unasked.queries.clear();
    for (what, message, expected) in [
        ("good", good, true),
        ("other id", reply(8, "www.example.com.", RecordType::A), false),
        ("other name", reply(7, "www.example.org.", RecordType::A), false),
        ("other type", reply(7, "www.example.com.", RecordType::AAAA), false),
        ("a request", request, false),
        ("no question", unasked, false),
    ] {
        assert_eq!(is_reply_to(&message.to_vec().unwrap(), 7, &question()), expected, "{what}");
    }
}

/// The library would use one stack frame per pointer and memory for each announced record.
#[test]
fn deep_pointers_and_announced_records_are_rejected() {
    let mut deep = vec![0, 7, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0];
    deep.extend([0, 0, 1, 0, 1]); // The question: the root.
    let chain = deep.len() + 11;
    // A record of an unknown type whose data is a chain of pointers, each to the one before.
    deep.extend([0, 0, 99, 0, 1, 0, 0, 0, 0, 0x3F, 0]);
    deep.extend((0..0x3F00 / 2).flat_map(|number: u16| {
        let target = if number == 0 { 12 } else { chain as u16 + 2 * (number - 1) };
        (0xC000 | target).to_be_bytes()
    }));
    assert!(!has_shallow_pointers(&deep));
    assert!(decode(&deep).is_err());

    let mut many = reply(7, "www.example.com.", RecordType::A).to_vec().unwrap();
    assert!(decode(&many).is_ok());
    many[8..12].fill(0xFF);
    assert!(decode(&many).is_err());
}

#[test]
fn large_compressed_replies_are_accepted() {
    let mut message = reply(7, "www.example.com.", RecordType::A);
    for number in 0..400u16 {
        let name = Name::from_ascii(format!("host-{number}.sub.example.com.")).unwrap();
        message.add_additional(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 1))));
    }
    let bytes = message.to_vec().unwrap();
    assert_eq!(decode(&bytes).unwrap().additionals.len(), 400);
}

proptest! {
    #[test]
    fn no_reply_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        is_reply_to(&bytes, 0, &question());
        let _ = decode(&bytes);
    }

    #[test]
    fn no_damaged_reply_panics(changes in prop::collection::vec((0usize..60, any::<u8>()), 1..8)) {
        let mut bytes = reply(7, "www.example.com.", RecordType::A).to_vec().unwrap();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        is_reply_to(&bytes, 7, &question());
        let _ = decode(&bytes).map(answer_of);
    }
}
