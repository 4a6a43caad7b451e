//! The stored form of cursors.

use kera_protocol::v1::Cursor;
use proptest::prelude::*;

const AT_A_BATCH: Cursor = Cursor {
    ordinal: 42,
    group: 7,
    generation: 1,
    segment: 3,
    position: 4096,
    has_hint: true,
};
/// As programs have stored it: this text never changes.
const STORED: &str =
    r#"{"ordinal":42,"hint":{"group":7,"generation":1,"segment":3,"position":4096}}"#;
const STORED_WITHOUT_HINT: &str = r#"{"ordinal":9223372036854775807,"hint":null}"#;

#[test]
fn the_stored_form_stays_as_it_is() {
    let at_the_end = Cursor {
        ordinal: i64::MAX as u64,
        ..Cursor::default()
    };
    for (cursor, stored) in [(AT_A_BATCH, STORED), (at_the_end, STORED_WITHOUT_HINT)] {
        assert_eq!(serde_json::to_string(&cursor).unwrap(), stored);
        assert_eq!(serde_json::from_str::<Cursor>(stored).unwrap(), cursor);
    }
}

#[test]
fn the_ordinal_suffices_and_later_fields_are_passed_over() {
    let cursor = Cursor {
        ordinal: 42,
        ..Cursor::default()
    };
    for stored in [r#"{"ordinal":42}"#, r#"{"since":"2031","ordinal":42}"#] {
        assert_eq!(serde_json::from_str::<Cursor>(stored).unwrap(), cursor);
    }
}

#[test]
fn what_is_no_cursor_is_refused_with_the_reason() {
    for (bad, reason) in [
        (r#"{"ordinal":9223372036854775808}"#, "the highest is"),
        (r#"{"ordinal":18446744073709551615}"#, "the highest is"),
        (r#"{"ordinal":18446744073709551616}"#, "floating point"),
        (r#"{"ordinal":-1}"#, "-1"),
        (r#"{"ordinal":1.5}"#, "1.5"),
        (r#"{"ordinal":"42"}"#, "42"),
        (r#"{"ordinal":null}"#, "null"),
        (r#"{"hint":null}"#, "missing field `ordinal`"),
        (r#"{"ordinal":1,"hint":{"group":7}}"#, "missing field"),
        (
            r#"{"ordinal":1,"hint":{"group":7,"generation":1,"segment":4294967296,"position":0}}"#,
            "4294967296",
        ),
        ("42", "42"),
        ("", "EOF"),
    ] {
        let error = serde_json::from_str::<Cursor>(bad).unwrap_err().to_string();
        assert!(error.contains(reason), "{bad}: {error}");
    }
}

proptest! {
    #[test]
    fn a_cursor_comes_back_as_it_was_stored(
        ordinal in 0..=i64::MAX as u64,
        hint in any::<Option<(u64, u32, u32, u32)>>(),
    ) {
        let (group, generation, segment, position) = hint.unwrap_or_default();
        let has_hint = hint.is_some();
        let cursor = Cursor { ordinal, group, generation, segment, position, has_hint };
        let stored = serde_json::to_vec(&cursor).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Cursor>(&stored).unwrap(), cursor);
    }

    /// Whatever a user hands in.
    #[test]
    fn no_text_makes_it_panic(text in r#"[{}\[\]":,a-z0-9.eE+-]{0,80}"#) {
        if let Ok(cursor) = serde_json::from_str::<Cursor>(&text) {
            prop_assert!(cursor.ordinal <= i64::MAX as u64);
        }
    }
}
