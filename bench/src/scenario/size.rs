//! Sizes as people write them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Bytes, written `16KiB`, `1MiB` or as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub u32);

impl Size {
    /// `None` if the text is no size, or one beyond 64 MiB.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let unit: u32 = match unit.trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            _ => return None,
        };
        let bytes = number.parse::<u32>().ok()?.checked_mul(unit)?;
        (bytes > 0 && bytes <= 64 << 20).then_some(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        if bytes.is_multiple_of(1 << 20) {
            write!(f, "{} MiB", bytes >> 20)
        } else if bytes.is_multiple_of(1 << 10) {
            write!(f, "{} KiB", bytes >> 10)
        } else {
            write!(f, "{bytes} B")
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is no size such as 16KiB")))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.to_string().replace(' ', ""))
    }
}
