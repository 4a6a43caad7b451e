//! The records of a load.

use rand::RngCore;

/// Bytes of a random key.
pub const KEY_BYTES: usize = 8;

/// Different values, so that caches and disks find nothing to profit from.
const VALUES: usize = 1024;

/// Records of one size, round and round; keys, if there are any, differ for ever.
#[derive(Debug)]
pub struct Records {
    values: Vec<u8>,
    value_bytes: usize,
    next: usize,
    keyed: bool,
    different_keys: Option<u64>,
    key: [u8; KEY_BYTES],
    state: u64,
}

impl Records {
    /// Records of so many bytes, key and value together.
    pub fn new(record_bytes: u32, keyed: bool) -> Self {
        let value_bytes = record_bytes as usize - if keyed { KEY_BYTES } else { 0 };
        let number = VALUES.min((64 << 20) / value_bytes).max(1);
        let mut values = vec![0; value_bytes * number];
        rand::rng().fill_bytes(&mut values);
        Self {
            values,
            value_bytes,
            next: 0,
            keyed,
            different_keys: None,
            key: [0; KEY_BYTES],
            state: rand::rng().next_u64(),
        }
    }

    /// With so many different keys, drawn at random.
    #[must_use]
    pub fn different_keys(mut self, keys: Option<u64>) -> Self {
        self.different_keys = keys.map(|keys| keys.max(1));
        self
    }

    /// Key and value of the next record; the value may be written to.
    pub fn next_record(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        let at = self.next;
        self.next += self.value_bytes;
        if self.next == self.values.len() {
            self.next = 0;
        }
        if self.keyed {
            let random = self.random();
            let key = self.different_keys.map_or(random, |keys| random % keys);
            self.key = key.to_le_bytes();
        }
        let key = self.keyed.then_some(&self.key[..]);
        (key, &mut self.values[at..at + self.value_bytes])
    }

    /// splitmix64: a few cycles, so that it does not count.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_values_go_round() {
        let mut records = Records::new(100, true);
        let (key, value) = records.next_record();
        let (first_key, first) = (key.unwrap().to_vec(), value.to_vec());
        assert_eq!(first_key.len() + first.len(), 100);
        for _ in 1..VALUES {
            let (key, value) = records.next_record();
            assert_ne!(key.unwrap(), first_key);
            assert_eq!(value.len(), 92);
        }
        assert_eq!(records.next_record().1, first);
    }

    #[test]
    fn keys_are_drawn_from_as_many_as_are_asked_for() {
        let mut records = Records::new(16, true).different_keys(Some(3));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            seen.insert(records.next_record().0.unwrap().to_vec());
        }
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn without_keys_the_value_is_all() {
        let mut records = Records::new(16, false);
        let (key, value) = records.next_record();
        assert!(key.is_none() && value.len() == 16);
    }
}
