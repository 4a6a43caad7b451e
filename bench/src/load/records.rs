//! The records of a load.

use rand::RngCore;

use crate::scenario::Keys;

/// Bytes of a random key.
const KEY_BYTES: usize = 8;

/// Bytes of a key of this kind.
pub(super) fn key_bytes(keys: Keys) -> usize {
    match keys {
        Keys::None => 0,
        Keys::Random => KEY_BYTES,
    }
}

/// Different values, so that caches and disks find nothing to profit from.
const VALUES: usize = 1024;

/// Records of one size, round and round; keys, if there are any, differ for ever.
pub(crate) struct Records {
    values: Vec<u8>,
    value_bytes: usize,
    next: usize,
    keys: Keys,
    key: [u8; KEY_BYTES],
    state: u64,
}

impl Records {
    pub(crate) fn new(record_bytes: u32, keys: Keys) -> Self {
        let value_bytes = record_bytes as usize - key_bytes(keys);
        let number = VALUES.min((64 << 20) / value_bytes).max(1);
        let mut values = vec![0; value_bytes * number];
        rand::rng().fill_bytes(&mut values);
        Self {
            values,
            value_bytes,
            next: 0,
            keys,
            key: [0; KEY_BYTES],
            state: rand::rng().next_u64(),
        }
    }

    /// Key and value of the next record; the value may be written to.
    pub(crate) fn next(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        let at = self.next;
        self.next += self.value_bytes;
        if self.next == self.values.len() {
            self.next = 0;
        }
        let key = match self.keys {
            Keys::None => None,
            Keys::Random => {
                self.key = self.random().to_le_bytes();
                Some(&self.key[..])
            }
        };
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
        let mut records = Records::new(100, Keys::Random);
        let (key, value) = records.next();
        let (first_key, first) = (key.unwrap().to_vec(), value.to_vec());
        assert_eq!(first_key.len() + first.len(), 100);
        for _ in 1..VALUES {
            let (key, value) = records.next();
            assert_ne!(key.unwrap(), first_key);
            assert_eq!(value.len(), 92);
        }
        assert_eq!(records.next().1, first);
    }

    #[test]
    fn without_keys_the_value_is_all() {
        let mut records = Records::new(16, Keys::None);
        let (key, value) = records.next();
        assert!(key.is_none() && value.len() == 16);
    }
}
