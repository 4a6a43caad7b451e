//! Random values for messages, the same for the same seed.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

/// Values that mean something to a broker, of which a part of all values are.
#[derive(Clone, Default)]
pub struct Hints {
    pub texts: Vec<String>,
    pub bytes: Vec<Bytes>,
    pub uuids: Vec<Uuid>,
    pub numbers: Vec<i32>,
}

/// A small random number generator (splitmix64) that makes the parts of messages.
pub struct Dice {
    state: u64,
    /// How many elements an array has at most.
    most: usize,
    hints: Hints,
}

impl Dice {
    /// Arrays have at most three elements.
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed,
            most: 3,
            hints: Hints::default(),
        }
    }

    /// Two of three values are among those that `hints` has.
    #[allow(dead_code, reason = "not every test program has a broker")]
    pub fn with_hints(mut self, hints: Hints) -> Self {
        self.hints = hints;
        self
    }

    /// One of the hints, if there are any, two times of three.
    fn hint<T: Clone>(&mut self, of: impl Fn(&Hints) -> &Vec<T>) -> Option<T> {
        let count = of(&self.hints).len();
        if count == 0 || self.below(3) == 0 {
            return None;
        }
        let at = self.below(count);
        of(&self.hints).get(at).cloned()
    }

    pub fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit as u64) as usize
    }

    pub fn flag(&mut self) -> bool {
        self.roll() & 1 == 1
    }

    pub fn i8(&mut self) -> i8 {
        let hint = self.hint(|hints| &hints.numbers);
        hint.map_or_else(|| self.roll() as i8, |number| number as i8)
    }

    pub fn i16(&mut self) -> i16 {
        let hint = self.hint(|hints| &hints.numbers);
        hint.map_or_else(|| self.roll() as i16, |number| number as i16)
    }

    pub fn i32(&mut self) -> i32 {
        let hint = self.hint(|hints| &hints.numbers);
        hint.unwrap_or_else(|| self.roll() as i32)
    }

    pub fn i64(&mut self) -> i64 {
        let hint = self.hint(|hints| &hints.numbers);
        hint.map_or_else(|| self.roll() as i64, i64::from)
    }

    pub fn uuid(&mut self) -> Uuid {
        let hint = self.hint(|hints| &hints.uuids);
        hint.unwrap_or_else(|| Uuid::from_u64_pair(self.roll(), self.roll()))
    }

    /// A text of up to 20 letters, some of them of several bytes; rarely a long one.
    pub fn text(&mut self) -> StrBytes {
        if let Some(hint) = self.hint(|hints| &hints.texts) {
            return StrBytes::from_string(hint);
        }
        let length = match self.below(30) {
            0 => 300,
            n => n % 20,
        };
        let letters = ['a', 'Z', '0', '.', '_', '-', 'ä', '字', '🦀'];
        let text: String = (0..length).map(|_| letters[self.below(9)]).collect();
        StrBytes::from_string(text)
    }

    pub fn bytes(&mut self) -> Bytes {
        if let Some(hint) = self.hint(|hints| &hints.bytes) {
            return hint;
        }
        let length = match self.below(30) {
            0 => 500,
            n => n,
        };
        (0..length).map(|_| self.roll() as u8).collect()
    }

    /// A value or null.
    pub fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(4) > 0).then(|| make(self))
    }

    pub fn list<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(self.most + 1);
        (0..count).map(|_| make(self)).collect()
    }

    /// Tagged fields that nobody knows, if the version has any.
    pub fn tags(&mut self, flexible: bool) -> BTreeMap<i32, Bytes> {
        let count = if flexible && self.below(3) == 0 {
            1 + self.below(2)
        } else {
            0
        };
        let tags = [7, 200, i32::MAX];
        (0..count)
            .map(|_| (tags[self.below(3)], self.bytes()))
            .collect()
    }
}
