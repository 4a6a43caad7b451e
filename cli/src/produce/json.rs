//! One field's own text out of a line of JSON.

use std::fmt;

use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What a line has in a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// The line has no such field, or is no object.
    Missing,
    /// Null.
    Null,
    /// A string's characters; of anything else what the line says, digit for digit.
    Text(String),
}

/// Refuses a line that is not JSON.
pub(super) fn check(line: &[u8]) -> serde_json::Result<()> {
    serde_json::from_str(text(line)?).map(|IgnoredAny| ())
}

/// Finds a field of a line. Of several with that name the last one counts.
pub(super) fn field(line: &[u8], name: &str) -> serde_json::Result<Field> {
    let text = text(line)?;
    if !text.trim_ascii_start().starts_with('{') {
        check(line)?;
        return Ok(Field::Missing);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = reader.deserialize_map(Named(name))?;
    reader.end()?;
    // Numbers are not looked into: a large one would not come back as it was.
    Ok(match found.map(RawValue::get) {
        None => Field::Missing,
        Some("null") => Field::Null,
        Some(string) if string.starts_with('"') => Field::Text(serde_json::from_str(string)?),
        Some(other) => Field::Text(other.to_owned()),
    })
}

fn text(line: &[u8]) -> serde_json::Result<&str> {
    str::from_utf8(line).map_err(de::Error::custom)
}

/// Finds a field's text in an object.
struct Named<'n>(&'n str);

impl<'de> Visitor<'de> for Named<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(line: &str) -> Field {
        field(line.as_bytes(), "id").unwrap()
    }

    fn is(text: &str) -> Field {
        Field::Text(text.to_owned())
    }

    #[test]
    fn numbers_stay_as_they_are_written() {
        for number in [
            "5",
            "1.10",
            "1e3",
            "-0",
            "18446744073709551616",
            "18446744073709551617",
            "340282366920938463463374607431768211456",
        ] {
            assert_eq!(id(&format!("{{\"a\": 1, \"id\": {number} }}")), is(number));
        }
    }

    #[test]
    fn strings_are_their_characters() {
        assert_eq!(id(r#"{"id": "a\u00e4\n\"b\""}"#), is("a\u{e4}\n\"b\""));
        assert_eq!(id(r#"{"id": ""}"#), is(""));
        assert_eq!(id(r#"{"id": "null"}"#), is("null"));
        assert_eq!(id(r#"{"i\u0064": "x"}"#), is("x"));
    }

    #[test]
    fn other_values_and_none() {
        assert_eq!(id(r#"{"id": true}"#), is("true"));
        assert_eq!(id(r#"{"id": [1, {"id": 2}]}"#), is(r#"[1, {"id": 2}]"#));
        assert_eq!(id(r#"{"id": null}"#), Field::Null);
        assert_eq!(id(r#"{"id": 1, "id": 2}"#), is("2"));
        for line in [r#"{"a": {"id": 1}}"#, "{}", "[1]", "7", "\"id\"", "null"] {
            assert_eq!(id(line), Field::Missing, "{line}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        let not_text = b"{\"id\": \"\xff\"}";
        for line in [&b"{"[..], b"{\"id\": 1} x", b"[1", b"x", b"", not_text] {
            field(line, "id").unwrap_err();
            check(line).unwrap_err();
        }
        check(b" {\"id\": [1, 2]} ").unwrap();
    }
}
