//! Keys, values and headers as people read them, without what a rule hides.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kera_protocol::batch::Record;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Most bytes of a key or a header that are shown.
const SHOWN_KEY: usize = 1 << 10;
/// Most bytes of a value that are shown.
const SHOWN_VALUE: usize = 8 << 10;
/// A larger value is not looked at for fields to hide: all of it is hidden.
const MOST_JSON: usize = 256 << 10;
/// Headers of a record that are shown.
const HEADERS: usize = 32;
/// In the place of what is hidden.
const HIDDEN: &str = "•••";

/// A key, a value or a header's value.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    /// `null`, `json`, `text`, `base64`, or `hidden`.
    pub(super) encoding: &'static str,
    pub(super) data: String,
    /// Of the whole.
    pub(super) bytes: usize,
    /// The data is only its beginning.
    pub(super) truncated: bool,
    /// Parts of it are hidden by a rule.
    pub(super) masked: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct HeaderView {
    name: String,
    value: Shown,
}

impl HeaderView {
    /// About what it takes of an answer.
    pub(super) fn shown(&self) -> usize {
        128 + self.name.len() + self.value.data.len()
    }
}

/// Rules of `api.mask` that are about one stream.
#[derive(Debug, Default)]
pub(super) struct Mask {
    fields: Vec<String>,
    all: bool,
}

impl Mask {
    /// The rules about `stream`.
    pub(super) fn of(rules: &[String], stream: &str) -> Self {
        let mut mask = Self::default();
        for rule in rules {
            let (of, field) = rule.split_once(':').unwrap_or((stream, rule));
            if of != stream {
                continue;
            }
            match field {
                "*" => mask.all = true,
                field => mask.fields.push(field.to_lowercase()),
            }
        }
        mask
    }

    fn is_empty(&self) -> bool {
        !self.all && self.fields.is_empty()
    }

    fn hides(&self, name: &str) -> bool {
        self.all
            || self
                .fields
                .iter()
                .any(|field| *field == name.to_lowercase())
    }

    /// Hides fields at any depth. True if there were any.
    fn hide(&self, value: &mut Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter_mut().fold(false, |hid, (name, value)| {
                let hides = self.hides(name);
                if hides {
                    *value = Value::String(HIDDEN.to_owned());
                }
                (hides || self.hide(value)) | hid
            }),
            Value::Array(values) => values
                .iter_mut()
                .fold(false, |hid, value| self.hide(value) | hid),
            // JSON within a text, as outbox tables and log shippers write it, whole or not.
            Value::String(text) => {
                let hides = match parsed(text.as_bytes()) {
                    Some(mut inner) => self.hide(&mut inner),
                    None => self.is_named_in(text),
                };
                if hides {
                    HIDDEN.clone_into(text);
                }
                hides
            }
            _ => false,
        }
    }

    /// True if a text has the name of a field that is hidden, in quotes: JSON that was cut, or has something around it.
    fn is_named_in(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let named = |field: &String| {
            // The second is for JSON within JSON.
            text.contains(&format!("\"{field}\"")) || text.contains(&format!("\"{field}\\"))
        };
        self.all || self.fields.iter().any(named)
    }

    /// True for all but texts without fields: other bytes may be fields with a frame around them.
    fn may_have_fields(&self, bytes: &[u8]) -> bool {
        text_of(bytes).is_none_or(|text| {
            let begin =
                text.trim_start_matches(|c: char| c.is_whitespace() || "\"\u{feff}".contains(c));
            begin.starts_with(['{', '[']) || self.is_named_in(text)
        })
    }

    /// Whether nothing may be told of keys.
    pub(super) fn hides_keys(&self) -> bool {
        self.all
    }

    /// A record's key, or a header's value. Text without fields is no field: it is shown, but where a rule hides all of
    /// the stream.
    pub(super) fn key(&self, key: Option<&[u8]>) -> Shown {
        let has_fields = |key: &[u8]| self.may_have_fields(key);
        match self.all || (!self.is_empty() && key.is_some_and(has_fields)) {
            true => self.without_fields(key, SHOWN_KEY),
            false => shown(key, SHOWN_KEY),
        }
    }

    /// A record's value.
    pub(super) fn value(&self, value: Option<&[u8]>) -> Shown {
        match self.is_empty() {
            true => shown(value, SHOWN_VALUE),
            false => self.without_fields(value, SHOWN_VALUE),
        }
    }

    /// JSON without the fields that rules hide; hidden as a whole if it is something else.
    fn without_fields(&self, value: Option<&[u8]>, most: usize) -> Shown {
        let Some(bytes) = value else {
            return shown(value, most);
        };
        if self.all || bytes.len() > MOST_JSON {
            return hidden(value);
        }
        // What is no JSON has no fields to go by: it may hold what is to be hidden, anywhere.
        let Some(mut parsed) = parsed(bytes).filter(has_only_fields) else {
            return hidden(value);
        };
        if !self.hide(&mut parsed) {
            return shown(value, most);
        }
        let text = parsed.to_string();
        Shown {
            bytes: bytes.len(),
            masked: true,
            ..shown(Some(text.as_bytes()), most)
        }
    }

    /// A record's headers.
    pub(super) fn headers(&self, record: &Record<'_>) -> Vec<HeaderView> {
        let headers = record.headers().take(HEADERS);
        headers
            .map(|header| HeaderView {
                name: cut(header.key, SHOWN_KEY).0.to_owned(),
                value: match self.hides(header.key) {
                    true => hidden(header.value),
                    false => self.key(header.value),
                },
            })
            .collect()
    }
}

/// JSON in which no object has two fields of one name: of these only the last would be looked at.
fn parsed(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes)
        .ok()
        .map(|Distinct(value)| value)
}

/// See [`parsed`].
struct Distinct(Value);

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(DistinctFields).map(Self)
    }
}

struct DistinctFields;

impl<'de> Visitor<'de> for DistinctFields {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without two fields of one name")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Distinct(value)) = from.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut fields = serde_json::Map::new();
        while let Some((name, Distinct(value))) = from.next_entry::<String, _>()? {
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom("two fields of one name"));
            }
        }
        Ok(Value::Object(fields))
    }
}

/// Whether all that a value says stands in fields, by whose names rules go.
fn has_only_fields(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(values) => values.iter().all(has_only_fields),
        _ => false,
    }
}

fn hidden(bytes: Option<&[u8]>) -> Shown {
    Shown {
        encoding: "hidden",
        data: String::new(),
        bytes: bytes.map_or(0, <[u8]>::len),
        truncated: false,
        masked: true,
    }
}

fn shown(bytes: Option<&[u8]>, most: usize) -> Shown {
    let Some(bytes) = bytes else {
        return Shown {
            encoding: "null",
            data: String::new(),
            bytes: 0,
            truncated: false,
            masked: false,
        };
    };
    let (encoding, data, truncated) = match text_of(bytes) {
        Some(text) => {
            let is_json = bytes.len() <= MOST_JSON && looks_like_json(text);
            let (part, truncated) = cut(text, most);
            let encoding = if is_json { "json" } else { "text" };
            (encoding, part.to_owned(), truncated)
        }
        None => {
            let part = &bytes[..bytes.len().min(most / 4 * 3)];
            ("base64", STANDARD.encode(part), part.len() < bytes.len())
        }
    };
    Shown {
        encoding,
        data,
        bytes: bytes.len(),
        truncated,
        masked: false,
    }
}

/// The text, if it is some: UTF-8 without control characters that no text has.
fn text_of(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    (!text.contains(is_odd)).then_some(text)
}

fn looks_like_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn cut(text: &str, most: usize) -> (&str, bool) {
    let part = &text[..text.floor_char_boundary(most)];
    (part, part.len() < text.len())
}

#[cfg(test)]
mod tests {
    use kera_protocol::batch::{
        BatchBuilder, Compression, Header, NewRecord, ProducerStamp, Records,
    };

    use super::*;

    fn mask(rules: &[&str]) -> Mask {
        let rules: Vec<_> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        Mask::of(&rules, "orders")
    }

    #[test]
    fn bytes_are_shown_as_what_they_are() {
        let shown = |bytes: &[u8]| {
            let shown = mask(&[]).value(Some(bytes));
            (shown.encoding, shown.data, shown.truncated)
        };
        assert_eq!(shown(br#"{"a":1}"#), ("json", r#"{"a":1}"#.into(), false));
        assert_eq!(shown(b"{a"), ("text", "{a".into(), false));
        assert_eq!(shown("grüß".as_bytes()), ("text", "grüß".into(), false));
        assert_eq!(shown(&[0, 255]), ("base64", "AP8=".into(), false));
        assert_eq!(mask(&[]).value(None).encoding, "null");
        let long = "ü".repeat(SHOWN_VALUE);
        let (encoding, data, truncated) = shown(long.as_bytes());
        assert_eq!(
            (encoding, data.len(), truncated),
            ("text", SHOWN_VALUE, true)
        );
        assert!(shown(&[0; 2 * SHOWN_VALUE]).1.len() <= SHOWN_VALUE);
    }

    #[test]
    fn a_rule_hides_fields_at_any_depth() {
        let value = br#"{"id":7,"Email":"a@b","in":[{"email":{"x":1}}]}"#;
        let shown = mask(&["email"]).value(Some(value));
        assert!(shown.masked);
        assert_eq!(
            shown.data,
            r#"{"Email":"•••","id":7,"in":[{"email":"•••"}]}"#
        );
        assert_eq!(shown.bytes, value.len());
        let other = mask(&["clicks:email"]).value(Some(value));
        assert!(!other.masked && other.data.contains("a@b"));
    }

    #[test]
    fn a_rule_hides_fields_of_keys_and_of_json_within_text() {
        let mask = mask(&["email"]);
        let value = br#"{"payload":"{\"email\":\"n@b\"}","note":"{n@b"}"#;
        let shown = mask.value(Some(value));
        assert_eq!(shown.data, r#"{"note":"{n@b","payload":"•••"}"#);
        assert!(shown.masked);
        let key = mask.key(Some(br#"{"email":"key@b","id":1}"#));
        assert_eq!(key.data, r#"{"email":"•••","id":1}"#);
        assert_eq!(mask.key(Some(b"k7")).data, "k7");
    }

    #[test]
    fn a_rule_hides_fields_of_json_that_is_cut_framed_quoted_or_has_something_around_it() {
        let mask = mask(&["email"]);
        for text in [
            r#"{"payload":"{\"email\":\"n@b\", \"x\":1"}"#,
            r#"{"payload":"{\"email\":\"n@b\"}\n{\"email\":\"n@b\"}"}"#,
            r#"{"payload":"INFO {\"Email\":\"n@b\"}"}"#,
            r#"{"payload":"{\"email\":\"n@b\"} trailing"}"#,
            r#"{"payload":"\"{\\\"email\\\":\\\"n@b\\\"}\""}"#,
            r#"{"payload":"{\"a\":\"{\\\"email\\\":\\\"n@b"}"#,
            r#"{"payload":{"email":"n@b"},"payload":1}"#,
            r#"{"payload":"{\"p\":{\"email\":\"n@b\"},\"p\":1}"}"#,
        ] {
            serde_json::from_str::<Value>(text).expect("JSON");
            let shown = mask.value(Some(text.as_bytes()));
            assert!(
                shown.masked && !shown.data.contains("n@b"),
                "{text}: {shown:?}"
            );
        }
        for text in [
            &br#"{"email":"n@b"}"#[..],
            br#"{"email":"n@b""#,
            b"\xef\xbb\xbf{\"email\":\"n@b\"}",
            br#"INFO {"email":"n@b"}"#,
            br#""{\"email\":\"n@b\"}""#,
            b"\0\0\0\0\x01{\"email\":\"n@b\"}",
        ] {
            for shown in [mask.key(Some(text)), mask.value(Some(text))] {
                assert!(shown.masked && !shown.data.contains("n@b"), "{shown:?}");
                assert_ne!(shown.encoding, "base64");
            }
        }
        // What has no fields is no field, and nothing is hidden of what has others.
        for text in [&b"k7"[..], b"{n@b", b"a \"name\"", b"null"] {
            let shown = mask.key(Some(text));
            assert_eq!(shown.masked, text == b"{n@b", "{shown:?}");
        }
        let other = mask.key(Some(br#"{"id":1}"#));
        assert!(!other.masked && other.data == r#"{"id":1}"#);
    }

    #[test]
    fn a_rule_hides_fields_of_headers() {
        let original = br#"{"email":"n@b","id":1}"#;
        let headers = [
            ("original", &original[..]),
            ("cut", &original[..12]),
            ("trace", b"00-4bf9"),
            ("Email", b"n@b"),
        ]
        .map(|(key, value)| Header {
            key,
            value: Some(value),
        });
        let record = NewRecord {
            key: None,
            value: None,
            headers: &headers,
            timestamp: 0,
        };
        let mut batch = BatchBuilder::new();
        batch.push(&record).expect("a small batch holds it");
        let batch = batch.finish(Compression::None, ProducerStamp::NONE);
        let batch = batch.expect("it holds a record");
        let mut scratch = Vec::new();
        let mut records = Records::open(&batch, 0, &mut scratch).expect("a batch");
        let record = records.next().expect("one").expect("a record");
        let shown = mask(&["email"]).headers(&record);
        let shown: Vec<_> = shown.iter().map(|one| one.value.data.as_str()).collect();
        assert_eq!(shown, [r#"{"email":"•••","id":1}"#, "", "00-4bf9", ""]);
    }

    #[test]
    fn what_has_no_fields_is_hidden_as_a_whole() {
        for value in [
            &b"a@b"[..],
            &[0, 1],
            br#"{"email":"#,
            b"4111111111111111",
            br#""a@b""#,
            br#"["a@b"]"#,
            br#"[{"id":1},"a@b"]"#,
            b"true",
        ] {
            let shown = mask(&["orders:email"]).value(Some(value));
            assert_eq!((shown.encoding, shown.data.as_str()), ("hidden", ""));
        }
        let large = format!("{{\"email\":\"{}\"}}", "x".repeat(MOST_JSON));
        assert_eq!(
            mask(&["email"]).value(Some(large.as_bytes())).encoding,
            "hidden"
        );
        assert_eq!(mask(&["orders:*"]).key(Some(b"k")).encoding, "hidden");
        assert_eq!(mask(&["orders:*"]).value(Some(b"{}")).encoding, "hidden");
    }
}
