//! D-Bus messages as bytes: as much of them as talking to logind and systemd takes. Pure.
//!
//! The bus writes the header of a message, but any local user can send a signal with any body. So a damaged
//! header is an error, and a body is read only as far as this file understands its types.

/// D-Bus allows no longer message (128 MiB).
const MESSAGE_MAX: usize = 1 << 27;
/// Before the array of header fields.
const FIXED: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Call = 1,
    Return = 2,
    Error = 3,
    Signal = 4,
}

/// A value that can be sent, or read from a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Path(String),
    Bool(bool),
    Signed(i32),
    Unsigned(u32),
    Long(u64),
    /// Which of the descriptors that came along.
    Descriptor(u32),
    Variant(Box<Value>),
}

impl Value {
    fn signature(&self) -> &'static str {
        match self {
            Value::Text(_) => "s",
            Value::Path(_) => "o",
            Value::Bool(_) => "b",
            Value::Signed(_) => "i",
            Value::Unsigned(_) => "u",
            Value::Long(_) => "t",
            Value::Descriptor(_) => "h",
            Value::Variant(_) => "v",
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) serial: u32,
    pub(crate) path: String,
    pub(crate) interface: String,
    pub(crate) member: String,
    pub(crate) destination: String,
    pub(crate) sender: String,
    pub(crate) error: String,
    /// What it answers.
    pub(crate) answers: u32,
    pub(crate) descriptors: u32,
    pub(crate) body: Vec<Value>,
}

impl Message {
    pub(crate) fn new(kind: Kind) -> Message {
        let none = String::new;
        Message {
            kind,
            serial: 0,
            path: none(),
            interface: none(),
            member: none(),
            destination: none(),
            sender: none(),
            error: none(),
            answers: 0,
            descriptors: 0,
            body: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.body.iter().for_each(|value| body.value(value));
        let mut out = Writer::default();
        out.bytes.extend([b'l', self.kind as u8, 0, 1]);
        out.number(u32::try_from(body.bytes.len()).unwrap_or(u32::MAX));
        out.number(self.serial);
        out.number(0); // The length of the fields, known later.
        for (code, text) in
            [(2, &self.interface), (3, &self.member), (4, &self.error), (6, &self.destination)]
        {
            if !text.is_empty() {
                out.field(code, &Value::Text(text.clone()));
            }
        }
        if !self.path.is_empty() {
            out.field(1, &Value::Path(self.path.clone()));
        }
        if self.answers != 0 {
            out.field(5, &Value::Unsigned(self.answers));
        }
        if !self.body.is_empty() {
            let signature: String = self.body.iter().map(Value::signature).collect();
            out.align(8);
            out.bytes.extend([8, 1, b'g', 0]);
            out.signature(&signature);
        }
        let fields = u32::try_from(out.bytes.len() - FIXED).unwrap_or(u32::MAX);
        out.bytes[FIXED - 4..FIXED].copy_from_slice(&fields.to_le_bytes());
        out.align(8);
        out.bytes.extend(body.bytes);
        out.bytes
    }

    /// How long the message is that begins here. None: not enough is there to say.
    pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, String> {
        if bytes.len() < FIXED {
            return Ok(None);
        }
        let mut reader = Reader::new(bytes)?;
        reader.at = 4;
        let body = reader.number()? as usize;
        reader.at = 12;
        let fields = reader.number()? as usize;
        let length = FIXED
            .checked_add(fields)
            .and_then(|length| length.checked_next_multiple_of(8)?.checked_add(body));
        match length {
            Some(length) if length <= MESSAGE_MAX => Ok(Some(length)),
            Some(_) | None => Err("a message is longer than D-Bus allows".to_owned()),
        }
    }

    /// Of exactly the bytes of one message.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Message, String> {
        if Message::length(bytes)? != Some(bytes.len()) {
            return Err("a message does not have the length that its header states".to_owned());
        }
        let mut reader = Reader::new(bytes)?;
        let kind = match bytes.get(1) {
            Some(1) => Kind::Call,
            Some(2) => Kind::Return,
            Some(3) => Kind::Error,
            Some(4) => Kind::Signal,
            other => return Err(format!("there is no message of type {other:?}")),
        };
        let mut message = Message::new(kind);
        reader.at = 8;
        message.serial = reader.number()?;
        let end = FIXED + reader.number()? as usize;
        let mut signature = String::new();
        while reader.at < end {
            reader.align(8)?;
            let code = reader.byte()?;
            let type_ = reader.signature()?;
            if type_ == "g" {
                signature = reader.signature()?;
                continue;
            }
            let value = reader.value(&mut type_.chars(), 0)?;
            match (code, value) {
                (1, Value::Path(path)) => message.path = path,
                (2, Value::Text(text)) => message.interface = text,
                (3, Value::Text(text)) => message.member = text,
                (4, Value::Text(text)) => message.error = text,
                (5, Value::Unsigned(serial)) => message.answers = serial,
                (6, Value::Text(text)) => message.destination = text,
                (7, Value::Text(text)) => message.sender = text,
                (9, Value::Unsigned(count)) => message.descriptors = count,
                (_, _) => {} // Fields of later versions are to be passed over.
            }
        }
        reader.at = end;
        reader.align(8)?;
        let mut types = signature.chars();
        while !types.as_str().is_empty() {
            // No message for us has other types. An error would end the connection, and with it the lock
            // that delays the host's shutdown, whenever a local user sends such a signal.
            let Ok(value) = reader.value(&mut types, 0) else { break };
            message.body.push(value);
        }
        Ok(message)
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.bytes.extend(number.to_le_bytes());
    }

    fn signature(&mut self, text: &str) {
        self.bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.bytes.extend(text.bytes());
        self.bytes.push(0);
    }

    fn field(&mut self, code: u8, value: &Value) {
        self.align(8);
        self.bytes.push(code);
        self.signature(value.signature());
        self.value(value);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Text(text) | Value::Path(text) => {
                self.number(u32::try_from(text.len()).unwrap_or(u32::MAX));
                self.bytes.extend(text.bytes());
                self.bytes.push(0);
            }
            Value::Bool(so) => self.number(u32::from(*so)),
            Value::Signed(number) => self.number(number.cast_unsigned()),
            Value::Unsigned(number) | Value::Descriptor(number) => self.number(*number),
            Value::Long(number) => {
                self.align(8);
                self.bytes.extend(number.to_le_bytes());
            }
            Value::Variant(inner) => {
                self.signature(inner.signature());
                self.value(inner);
            }
        }
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    big: bool,
}

impl<'b> Reader<'b> {
    fn new(bytes: &'b [u8]) -> Result<Reader<'b>, String> {
        match bytes.first() {
            Some(b'l') => Ok(Reader { bytes, at: 0, big: false }),
            Some(b'B') => Ok(Reader { bytes, at: 0, big: true }),
            _ => Err("a message does not say how its numbers are written".to_owned()),
        }
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], String> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| "a message is shorter than it says".to_owned())?;
        self.at += count;
        Ok(taken)
    }

    fn align(&mut self, to: usize) -> Result<(), String> {
        self.take(self.at.next_multiple_of(to) - self.at).map(drop)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u32, String> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().unwrap_or_default();
        Ok(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn text(&mut self, length: usize) -> Result<String, String> {
        let text = String::from_utf8(self.take(length)?.to_vec());
        self.take(1)?;
        text.map_err(|_| "a message has a text that is none".to_owned())
    }

    fn signature(&mut self) -> Result<String, String> {
        let length = self.byte()?.into();
        self.text(length)
    }

    /// `depth`: a variant may hold a variant, but not without end.
    fn value(&mut self, types: &mut std::str::Chars, depth: u8) -> Result<Value, String> {
        match types.next() {
            Some('s') => self.number().and_then(|n| self.text(n as usize)).map(Value::Text),
            Some('o') => self.number().and_then(|n| self.text(n as usize)).map(Value::Path),
            Some('b') => Ok(Value::Bool(self.number()? != 0)),
            Some('i') => Ok(Value::Signed(self.number()?.cast_signed())),
            Some('u') => self.number().map(Value::Unsigned),
            Some('h') => self.number().map(Value::Descriptor),
            Some('t') => {
                self.align(8)?;
                let bytes = self.take(8)?.try_into().unwrap_or_default();
                let read = if self.big { u64::from_be_bytes } else { u64::from_le_bytes };
                Ok(Value::Long(read(bytes)))
            }
            Some('v') if depth < 8 => {
                let inner = self.signature()?;
                Ok(Value::Variant(Box::new(self.value(&mut inner.chars(), depth + 1)?)))
            }
            other => Err(format!("values of type {other:?} are not read")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            serial: 7,
            path: "/org/freedesktop/login1".into(),
            interface: "org.freedesktop.login1.Manager".into(),
            member: "Inhibit".into(),
            destination: "org.freedesktop.login1".into(),
            body: vec![
                "shutdown".into(),
                Value::Bool(true),
                Value::Signed(-1),
                Value::Variant(Box::new(Value::Long(5_000_000))),
                Value::Path("/".into()),
                Value::Unsigned(3),
            ],
            ..Message::new(Kind::Call)
        }
    }

    #[test]
    fn a_message_is_decoded_as_it_was_encoded() {
        let bytes = message().encode();
        assert_eq!(Message::length(&bytes), Ok(Some(bytes.len())));
        assert_eq!(Message::decode(&bytes), Ok(message()));
    }

    /// The way dbus-daemon answers `Hello`: it orders the fields otherwise than we do.
    #[test]
    fn a_message_of_the_bus_is_read() {
        let bytes = b"l\x02\x01\x01\x09\0\0\0\x01\0\0\0\x3d\0\0\0\x06\x01s\0\x04\0\0\0:1.5\0\0\0\0\
            \x05\x01u\0\x01\0\0\0\x08\x01g\0\x01s\0\0\x07\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0\
            \x04\0\0\0:1.5\0";
        let message = Message::decode(bytes).unwrap();
        assert_eq!((message.kind, message.answers), (Kind::Return, 1));
        assert_eq!(message.sender, "org.freedesktop.DBus");
        assert_eq!(message.body, [Value::from(":1.5")]);
    }

    #[test]
    fn damaged_messages_are_errors_and_nothing_worse() {
        let whole = message().encode();
        for length in 0..whole.len() {
            let _ = Message::length(&whole[..length]);
            assert!(Message::decode(&whole[..length]).is_err(), "{length} bytes are enough?");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = Message::length(&bytes);
                let _ = Message::decode(&bytes);
            }
        }
    }

    /// A variant that holds an array of integers: allowed in D-Bus, and of no use here.
    #[test]
    fn a_signal_with_an_unknown_body_is_read_without_it() {
        let signal = Message { body: vec!["first".into()], ..Message::new(Kind::Signal) };
        let mut bytes = signal.encode();
        let at = bytes.windows(4).position(|four| four == b"\x01g\0\x01").unwrap() + 4;
        assert_eq!(bytes[at], b's');
        bytes[at] = b'v';
        let body = bytes.len() - (4 + 5 + 1);
        bytes[body..body + 4].copy_from_slice(b"\x02ai\0");
        let read = Message::decode(&bytes).unwrap();
        assert_eq!((read.kind, read.body), (Kind::Signal, Vec::new()));
    }

    #[test]
    fn endless_messages_are_not_waited_for() {
        let mut bytes = message().encode();
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Message::length(&bytes).is_err());
    }
}
