//! Kafka's variable-length numbers: base 128, least group first, zigzag.

/// Most bytes of an encoded `i64`.
pub(super) const MAX_VARLONG_BYTES: usize = 10;

/// The raw number whose groups of seven bits are written.
#[inline]
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Bytes that `value` takes.
#[inline]
pub(super) fn size(value: i64) -> usize {
    // Of 64 bits, without a division: bits / 7 rounded up is (9 * bits + 64) / 64 for 1 to 64 bits.
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    (bits * 9 + 64) / 64
}

/// A number in its encoded form, if that has one byte or two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    /// The bytes, the first lowest; zero above.
    pub(super) word: u64,
    /// How many they are.
    pub(super) bytes: usize,
}

impl Short {
    /// Raw numbers below this take two bytes at most.
    pub(super) const END: u64 = 1 << 14;

    /// Of a raw number below [`END`](Self::END).
    #[inline]
    pub(super) fn of(raw: u64) -> Self {
        let more = (raw + 0x3f80) >> 14;
        Self {
            // The upper seven bits move up by one, that is, are added once more.
            word: raw + (raw & 0x3f80) + (more << 7),
            bytes: 1 + more as usize,
        }
    }
}

/// Writes `value` at `out[*at..]` and moves `at`.
#[inline]
pub(super) fn write(out: &mut [u8], at: &mut usize, value: i64) {
    let mut rest = zigzag(value);
    while rest >= 0x80 {
        out[*at] = rest as u8 | 0x80;
        *at += 1;
        rest >>= 7;
    }
    out[*at] = rest as u8;
    *at += 1;
}

/// Reads a number off the front of `bytes`; `None` if it is cut short or longer than an `i64`.
#[inline]
pub(super) fn read(bytes: &mut &[u8]) -> Option<i64> {
    // One byte or two are nearly all there are, so they have a way of their own without a loop.
    let (raw, rest) = match *bytes {
        [first, rest @ ..] if *first < 0x80 => (u64::from(*first), rest),
        [first, second, rest @ ..] if *second < 0x80 => {
            (u64::from(*first & 0x7f) | u64::from(*second) << 7, rest)
        }
        _ => return read_long(bytes),
    };
    *bytes = rest;
    Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

#[cold]
fn read_long(bytes: &mut &[u8]) -> Option<i64> {
    let mut raw = 0_u64;
    for (index, &byte) in bytes.iter().take(MAX_VARLONG_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == MAX_VARLONG_BYTES - 1 && byte > 1 {
            return None;
        }
        raw |= bits << (7 * index);
        if byte < 0x80 {
            *bytes = &bytes[index + 1..];
            return Some((raw >> 1) as i64 ^ -((raw & 1) as i64));
        }
    }
    None
}

/// Reads a number that must fit an `i32`.
#[inline]
pub(super) fn read_i32(bytes: &mut &[u8]) -> Option<i32> {
    read(bytes).and_then(|value| i32::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_at_every_size_and_refuses_what_is_cut_or_too_long() {
        let mut values = vec![0, i64::MIN, i64::MAX];
        for shift in 0..63 {
            values.extend([
                1 << shift,
                (1 << shift) - 1,
                -(1 << shift),
                -(1 << shift) - 1,
            ]);
        }
        for value in values {
            let mut out = [0; MAX_VARLONG_BYTES];
            let mut at = 0;
            write(&mut out, &mut at, value);
            assert_eq!(at, size(value), "{value}");
            if zigzag(value) < Short::END {
                let short = Short::of(zigzag(value));
                assert_eq!(short.bytes, at);
                assert_eq!(short.word.to_le_bytes()[..at], out[..at]);
                assert_eq!(short.word >> (8 * at), 0);
            } else {
                assert!(at > 2);
            }
            let mut bytes = &out[..at];
            assert_eq!(read(&mut bytes), Some(value));
            assert!(bytes.is_empty());
            for cut in 0..at {
                assert_eq!(read(&mut &out[..cut]), None, "{value} cut to {cut}");
            }
        }
        assert_eq!(read(&mut [0xff; 11].as_slice()), None);
        assert_eq!(
            read(&mut [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2].as_slice()),
            None
        );
    }

    #[test]
    fn known_encodings() {
        for (value, bytes) in [
            (0_i64, &[0_u8][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 0x01]),
            (300, &[0xd8, 0x04]),
        ] {
            let mut out = [0; MAX_VARLONG_BYTES];
            let mut at = 0;
            write(&mut out, &mut at, value);
            assert_eq!(&out[..at], bytes);
        }
    }
}
