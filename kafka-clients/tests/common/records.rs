//! Records as they stand in requests and answers.

use serde::{Deserialize, Serialize};

/// Bytes in hexadecimal digits; none for null.
pub type Hex = Option<String>;

/// Hexadecimal digits of bytes.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Bytes of hexadecimal digits.
pub fn unhex(digits: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    (0..digits.len()).step_by(2).map(digit).collect()
}

/// A record to send.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    pub key: Hex,
    pub value: Hex,
    pub headers: Vec<(String, Hex)>,
}

impl NewRecord {
    /// With a key and a value.
    pub fn new(key: &str, value: &str) -> Self {
        Self {
            key: Some(hex(key)),
            value: Some(hex(value)),
            ..Self::default()
        }
    }

    pub fn at(mut self, timestamp: i64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    pub fn to(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    pub fn header(mut self, name: &str, value: Option<&[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.map(hex)));
        self
    }

    pub fn without_key(mut self) -> Self {
        self.key = None;
        self
    }

    /// With the value null.
    pub fn tombstone(mut self) -> Self {
        self.value = None;
        self
    }
}

/// Where a record is, as its producer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Place {
    pub partition: i32,
    pub offset: i64,
}

/// A record as a consumer got it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Read {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub timestamp: i64,
    /// Whether the timestamp is when the broker stored it. None where the client does not tell.
    pub append_time: Option<bool>,
    pub key: Hex,
    pub value: Hex,
    pub headers: Vec<(String, Hex)>,
}

impl Read {
    pub fn place(&self) -> Place {
        Place {
            partition: self.partition,
            offset: self.offset,
        }
    }

    /// The value as text.
    pub fn text(&self) -> String {
        let value = self.value.as_deref().expect("the record has a value");
        String::from_utf8(unhex(value)).expect("the value is text")
    }
}

/// The partition that Kafka's own client takes for a key.
pub fn murmur2_partition(key: &[u8], partitions: i32) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ key.len() as u32;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        word ^= word >> 24;
        hash = hash.wrapping_mul(M) ^ word.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (n, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * n);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^= hash >> 15;
    (hash & 0x7fff_ffff) as i32 % partitions
}

#[test]
fn murmur2_is_kafkas() {
    // From Kafka's own test of its hash function, as `toPositive(hash) % 1000`.
    for (key, hash) in [
        ("21", -973_932_308_i32),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        (
            "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58_897_971,
        ),
        ("abc", 479_470_107),
    ] {
        assert_eq!(
            murmur2_partition(key.as_bytes(), 1_000),
            (hash & 0x7fff_ffff) % 1_000,
            "{key}"
        );
    }
}
