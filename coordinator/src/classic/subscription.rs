//! The topics in a consumer's metadata: the one thing of it that is ever looked at.

use std::collections::BTreeSet;

/// The topics of a `ConsumerProtocolSubscription` (version as i16, then an array of strings);
/// `None` if the bytes are not one.
pub(crate) fn topics(metadata: &[u8]) -> Option<BTreeSet<&str>> {
    let (version, rest) = metadata.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok()?;
    let mut topics = BTreeSet::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (name, after) = after.split_at_checked(length)?;
        topics.insert(std::str::from_utf8(name).ok()?);
        rest = after;
    }
    Some(topics)
}

/// The topics and partitions of a `ConsumerProtocolAssignment` (version as i16, then an array of
/// topics, each with an array of i32); `None` if the bytes are not one.
pub(crate) fn assigned(assignment: &[u8]) -> Option<Vec<(&str, u32)>> {
    let (version, rest) = assignment.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok()?;
    let mut assigned = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (name, after) = after.split_at_checked(length)?;
        let name = std::str::from_utf8(name).ok()?;
        let (partitions, after) = after.split_first_chunk::<4>()?;
        let partitions = usize::try_from(i32::from_be_bytes(*partitions)).ok()?;
        let (numbers, after) = after.split_at_checked(partitions.checked_mul(4)?)?;
        for number in numbers.as_chunks::<4>().0 {
            assigned.push((name, u32::try_from(i32::from_be_bytes(*number)).ok()?));
        }
        rest = after;
    }
    Some(assigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_and_anything_else_is_not() {
        let good = b"\0\x01\0\0\0\x02\0\x01a\0\x02bc\xff\xff\xff\xff";
        assert_eq!(topics(good), Some(BTreeSet::from(["a", "bc"])));
        assert_eq!(topics(b"\0\0\0\0\0\0"), Some(BTreeSet::new()));
        for bad in [
            &b""[..],
            b"\0",
            b"\xff\xff\0\0\0\0",
            b"\0\x01\xff\xff\xff\xff",
            b"\0\x01\x7f\xff\xff\xff\0\x01a",
            b"\0\x01\0\0\0\x01\0\x05a",
            b"\0\x01\0\0\0\x01\xff\xff",
            b"\0\x01\0\0\0\x01\0\x01\xff",
        ] {
            assert_eq!(topics(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn assignments_are_read_and_anything_else_is_not() {
        let good =
            b"\0\0\0\0\0\x02\0\x01a\0\0\0\x02\0\0\0\x01\0\0\0\x07\0\x01b\0\0\0\0\xff\xff\xff\xff";
        assert_eq!(assigned(good), Some(vec![("a", 1), ("a", 7)]));
        for length in 0..good.len() - 4 {
            assert_eq!(assigned(&good[..length]), None, "{length} bytes");
        }
        assert_eq!(assigned(b"\0\0\0\0\0\x01\0\x01a\x7f\xff\xff\xff"), None);
        assert_eq!(
            assigned(b"\0\0\0\0\0\x01\0\x01a\0\0\0\x01\xff\xff\xff\xff"),
            None
        );
    }
}
