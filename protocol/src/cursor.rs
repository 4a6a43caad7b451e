//! The stored form of a cursor, for programs that keep where they stand: feature `serde`.
//!
//! In JSON `{"ordinal":42,"hint":{"group":7,"generation":1,"segment":3,"position":4096}}`, or `{"ordinal":42,"hint":null}`.
//! The fields have this order also in formats without names, and versions of this crate to come read what this one
//! wrote. Only `ordinal` says where one stands: a cursor without `hint` is as good, and resumes a little slower. Fields of other
//! names are passed over.
//!
//! An ordinal above [`i64::MAX`], which no record has, is refused.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::Ordinal;
use crate::v1::Cursor;

/// Highest ordinal that a cursor may stand at.
const HIGHEST: Ordinal = i64::MAX as Ordinal;

#[derive(Serialize, Deserialize)]
#[serde(rename = "Cursor")]
struct StoredCursor {
    ordinal: Ordinal,
    #[serde(default)]
    hint: Option<StoredHint>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Hint")]
struct StoredHint {
    group: u64,
    generation: u32,
    segment: u32,
    position: u32,
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hint = self.has_hint.then_some(StoredHint {
            group: self.group,
            generation: self.generation,
            segment: self.segment,
            position: self.position,
        });
        let ordinal = self.ordinal;
        StoredCursor { ordinal, hint }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredCursor { ordinal, hint } = StoredCursor::deserialize(deserializer)?;
        if ordinal > HIGHEST {
            let text = format!("ordinal {ordinal} is none of a record: the highest is {HIGHEST}");
            return Err(D::Error::custom(text));
        }
        let Some(hint) = hint else {
            return Ok(Self {
                ordinal,
                ..Self::default()
            });
        };
        Ok(Self {
            ordinal,
            group: hint.group,
            generation: hint.generation,
            segment: hint.segment,
            position: hint.position,
            has_hint: true,
        })
    }
}
