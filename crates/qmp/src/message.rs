//! The messages of a monitor, one JSON object per line.

use serde_json::Value;

/// An event.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Its name, such as `STOP`.
    pub name: String,
    /// Its data.
    pub data: Value,
}

/// The result of a command: its return value, or why it was refused.
pub(crate) type Outcome = Result<Value, String>;

/// A message.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message {
    Greeting,
    Event(Event),
    /// The answer to the command with this number. QEMU leaves the number out if it could not read the command.
    Answer(Option<u64>, Outcome),
}

impl Message {
    /// Parses a line. The error describes what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Message, String> {
        let mut value: Value = serde_json::from_slice(line).map_err(|_| shown(line))?;
        let number = value["id"].as_u64();
        if value.get("QMP").is_some() {
            return Ok(Message::Greeting);
        }
        if let Some(name) = value["event"].as_str() {
            let name = name.to_owned();
            return Ok(Message::Event(Event { name, data: value["data"].take() }));
        }
        if let Some(answer) = value.get_mut("return") {
            return Ok(Message::Answer(number, Ok(answer.take())));
        }
        match value.get("error") {
            Some(error) => {
                let why = error["desc"].as_str().map_or_else(|| error.to_string(), str::to_owned);
                Ok(Message::Answer(number, Err(why)))
            }
            None => Err(shown(line)),
        }
    }
}

/// Returns the beginning of a line, for an error.
pub(crate) fn shown(line: &[u8]) -> String {
    const MOST: usize = 80;
    let text = String::from_utf8_lossy(&line[..line.len().min(MOST)]);
    format!("'{}'", text.trim_end().escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn messages_are_told_apart() {
        let parse = |text: &str| Message::parse(text.as_bytes());
        assert_eq!(parse(r#"{"QMP": {"version": {}, "capabilities": []}}"#), Ok(Message::Greeting));
        let event = Event { name: "STOP".into(), data: Value::Null };
        assert_eq!(parse(r#"{"timestamp": {"seconds": 1}, "event": "STOP"}"#), Ok(Message::Event(event)));
        let answer = Message::Answer(Some(3), Ok(json!({})));
        assert_eq!(parse(r#"{"return": {}, "id": 3}"#), Ok(answer));
        let refused = Message::Answer(None, Err("no".into()));
        assert_eq!(parse(r#"{"error": {"class": "GenericError", "desc": "no"}}"#), Ok(refused));
        for bad in ["", "{}", "[]", "1", "\"QMP\"", "{\"event\": 1}", "HTTP/1.1 400 Bad Request"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_or_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::parse(&line);
        }
    }
}
