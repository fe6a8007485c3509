//! Removes secrets from what others see: readers of the API, and recipients of a support bundle.
//!
//! Invariants
//! - The value of every key whose name ends with one of the words in `SECRET` is replaced, in JSON and TOML wherever it
//!   is nested, and in text where it follows the name and `=` or `:`.
//! - So is the password in the address of a server: `scheme://user:password@host`, or `user%password@` for iSCSI.
//! - Everything else stays as it is. The value of a name that only looks like a secret's is replaced as well:
//!   better too much than too little.

use serde_json::Value;

/// What stands in place of a secret.
pub const HIDDEN: &str = "***";

/// How the names of secrets end.
const SECRET: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "key",
    "keys",
    "credential",
    "credentials",
    "cookie",
    "signature",
    "sig",
];
/// The prefix of the JSON of a QEMU block device.
const QEMU: &str = "qemu:";

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|secret| name.ends_with(secret))
}

/// Takes secrets out of JSON.
pub fn json(value: &mut Value) {
    match value {
        Value::String(text) => match text.strip_prefix(QEMU) {
            Some(device) => *text = format!("{QEMU}{}", self::device(device)),
            None => *text = self::text(text),
        },
        Value::Array(values) => values.iter_mut().for_each(json),
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_secret(name) && !value.is_null() { *value = HIDDEN.into() } else { json(value) }
            }
        }
        _ => {}
    }
}

/// Takes secrets out of a block device in JSON.
fn device(text: &str) -> String {
    let Ok(mut device) = serde_json::from_str(text) else { return HIDDEN.into() };
    json(&mut device);
    device.to_string()
}

/// Takes secrets out of TOML.
pub fn toml(value: &mut toml::Value) {
    match value {
        toml::Value::String(text) => match text.strip_prefix(QEMU) {
            Some(device) => *text = format!("{QEMU}{}", self::device(device)),
            None => *text = self::text(text),
        },
        toml::Value::Array(values) => values.iter_mut().for_each(toml),
        toml::Value::Table(fields) => {
            for (name, value) in fields.iter_mut() {
                if is_secret(name) { *value = HIDDEN.into() } else { toml(value) }
            }
        }
        _ => {}
    }
}

/// Takes secrets out of text.
pub fn text(text: &str) -> String {
    values(&passwords(text))
}

/// Replaces the passwords of servers' addresses.
fn passwords(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begins) = authority(rest) {
        let (before, address) = rest.split_at(begins);
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '<' | '>');
        let authority = &address[..address.find(ends).unwrap_or(address.len())];
        clean.push_str(before);
        rest = address;
        // Search for the last @: a password may contain one.
        if let Some(at) = authority.rfind('@')
            && let Some(separator) = authority[..at].find([':', '%'])
        {
            clean.extend([&authority[..=separator], HIDDEN]);
            rest = &address[at..];
        }
    }
    clean + rest
}

/// Returns where the next server's address begins: after `://`. JSON may escape the slashes.
fn authority(text: &str) -> Option<usize> {
    let slash = |text: &str| Some(text.len() - text.trim_start_matches('\\').strip_prefix('/')?.len());
    text.match_indices(':').find_map(|(colon, _)| {
        let first = colon + 1 + slash(&text[colon + 1..])?;
        Some(first + slash(&text[first..])?)
    })
}

/// Replaces the values that follow secrets' names.
fn values(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['=', ':']) {
        let (before, after) = rest.split_at(at + 1);
        clean.push_str(before);
        rest = after;
        let name = before[..at].trim_end_matches([' ', '\t']).trim_end_matches(['"', '\'', '\\']);
        let begins = name.rfind(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.')));
        let name = &name[begins.map_or(0, |at| at + name[at..].chars().next().map_or(1, char::len_utf8))..];
        if !is_secret(name) || after.starts_with("//") {
            continue;
        }
        let padding = after.len() - after.trim_start_matches([' ', '\t']).len();
        let (opening, content) = after[padding..].split_at(opening_bytes(&after[padding..]));
        let length = length_bytes(content, opening);
        if length > 0 {
            clean.extend([&after[..padding], opening, HIDDEN]);
            rest = &content[length..];
        }
    }
    clean + rest
}

/// Returns the length of the text that opens a value: nothing, one quote or three quotes; each quote may be escaped.
fn opening_bytes(value: &str) -> usize {
    let backslashes = value.len() - value.trim_start_matches('\\').len();
    if !value[backslashes..].starts_with(['"', '\'']) {
        return 0;
    }
    let quote = &value[..=backslashes];
    let is_triple = value.starts_with(&quote.repeat(3));
    if is_triple { 3 * quote.len() } else { quote.len() }
}

/// Returns the length of a value. Only a value in triple quotes may continue after the end of its line.
fn length_bytes(content: &str, opening: &str) -> usize {
    let quotes = opening.matches(['"', '\'']).count();
    let line = if quotes == 3 { content } else { content.lines().next().unwrap_or_default() };
    let end = match quotes {
        0 => line.find(|c: char| c.is_whitespace() || matches!(c, '&' | ';' | ',' | ')' | '}' | ']')),
        _ => closing(line, opening),
    };
    end.unwrap_or_else(|| line.trim_end_matches('\n').len())
}

/// Returns where a quoted value ends: at the same kind of quote that opened it, unless that quote is escaped once more.
fn closing(content: &str, opening: &str) -> Option<usize> {
    let is_end = |at: usize| !content[..at].ends_with('\\');
    content.match_indices(opening).map(|(at, _)| at).find(|at| is_end(*at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn passwords_in_addresses_are_replaced() {
        for (address, clean) in [
            ("nbd://host:10809/vm1", "nbd://host:10809/vm1"),
            ("https://user:pa:ss@host/x?y=1", "https://user:***@host/x?y=1"),
            ("https://user:p@ss@host/", "https://user:***@host/"),
            ("iscsi://user%word@10.0.0.1:3260/iqn/0", "iscsi://user%***@10.0.0.1:3260/iqn/0"),
            ("two nbd://a:b@c/ and nbd://d:e@f", "two nbd://a:***@c/ and nbd://d:***@f"),
            ("nbd+unix:///vm1?socket=/run/x@y.sock", "nbd+unix:///vm1?socket=/run/x@y.sock"),
            ("nbds://user@host/", "nbds://user@host/"),
            (r#"{"url": "https:\/\/u:word@h\/x"}"#, r#"{"url": "https:\/\/u:***@h\/x"}"#),
            (r#"{\"url\": \"https:\\/\\/u:word@h\"}"#, r#"{\"url\": \"https:\\/\\/u:***@h\"}"#),
            (r"https://u:back\slash@h/", "https://u:***@h/"),
            (r"C:\x and a:/b are no servers: u:p@h", r"C:\x and a:/b are no servers: u:p@h"),
        ] {
            assert_eq!(text(address), clean);
        }
    }

    #[test]
    fn values_of_secrets_in_text_are_replaced() {
        for (line, clean) in [
            ("rbd:pool/image:id=admin:key=AQBz==:mon_host=m1", "rbd:pool/image:id=admin:key=***"),
            ("password = \"a b\" # comment\n", "password = \"***\" # comment\n"),
            ("PASSWORD: x\nnext: y\n", "PASSWORD: ***\nnext: y\n"),
            (
                "{\"key-secret\": \"abc\", \"driver\": \"rbd\"}",
                "{\"key-secret\": \"***\", \"driver\": \"rbd\"}",
            ),
            (r#"qemu:{\"password\":\"abc\"}"#, r#"qemu:{\"password\":\"***\"}"#),
            (r#"{"password": "a\"b", "x": "y"}"#, r#"{"password": "***", "x": "y"}"#),
            (r#"qemu:{\"password\":\"a\\\"b\", \"x\": 1}"#, r#"qemu:{\"password\":\"***\", \"x\": 1}"#),
            ("access_token=abc&size=4", "access_token=***&size=4"),
            ("tokens=1 key: ", "tokens=1 key: "),
            ("Schlüssel=ä key=ö", "Schlüssel=ä key=***"),
            (r#"password = """abc""" # comment"#, r#"password = """***""" # comment"#),
            ("password = '''a'b'''\nnext = 1\n", "password = '''***'''\nnext = 1\n"),
            ("secret = \"\"\"\nabc\ndef\"\"\"\nnext = 1\n", "secret = \"\"\"***\"\"\"\nnext = 1\n"),
            ("secret = '''abc\ndef\n", "secret = '''***\n"),
            (r#"{"text": "key = \"\"\"abc\"\"\""}"#, r#"{"text": "key = \"\"\"***\"\"\""}"#),
            ("password = \"\"\nkey = \"open\nnext = \"x\"\n", "password = \"\"\nkey = \"***\nnext = \"x\"\n"),
        ] {
            assert_eq!(text(line), clean, "{line}");
        }
    }

    #[test]
    fn secrets_in_json_and_toml_are_replaced_wherever_they_are() {
        let mut value = json!({"disks": [{"origin": "nbd://u:p@h/", "auth": {"Token": ["a"], "user": "u"}}], "key": null});
        json(&mut value);
        assert_eq!(
            value,
            json!({"disks": [{"origin": "nbd://u:***@h/", "auth": {"Token": "***", "user": "u"}}], "key": null})
        );
        let mut value = json!({"origin": r#"qemu:{"file": {"url": "https:\/\/u:p@h\/x", "password": "a\"b", "cookie": "c"}}"#});
        json(&mut value);
        let origin = value["origin"].as_str().unwrap();
        assert_eq!(origin, r#"qemu:{"file":{"cookie":"***","password":"***","url":"https://u:***@h/x"}}"#);
        let mut value: toml::Value =
            toml::from_str("[[disk]]\norigin = \"rbd:a/b:key=c\"\n[disk.chap]\nsecret = 7\nname = 'x'")
                .unwrap();
        toml(&mut value);
        let expected: toml::Value =
            toml::from_str("[[disk]]\norigin = \"rbd:a/b:key=***\"\n[disk.chap]\nsecret = '***'\nname = 'x'")
                .unwrap();
        assert_eq!(value, expected);
    }
}
