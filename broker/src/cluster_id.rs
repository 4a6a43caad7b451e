//! The cluster's id as text.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const LENGTH: u32 = 22;

/// An id as 22 characters of base64url without padding, the way Kafka writes its ids.
pub(crate) fn base64url(id: [u8; 16]) -> String {
    let id = u128::from_be_bytes(id);
    let letter = |at| match at {
        // 21 letters of 6 bits leave 2, the upper ones of the last letter.
        21 => id << 4,
        _ => id >> (122 - 6 * at),
    };
    (0..LENGTH)
        .map(|at| char::from(LETTERS[(letter(at) & 63) as usize]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_kafka_writes_them() {
        let mut one = [0; 16];
        one[15] = 1;
        assert_eq!(base64url(one), "AAAAAAAAAAAAAAAAAAAAAQ");
        let high = std::array::from_fn(|i| 240 + i as u8);
        assert_eq!(base64url(high), "8PHy8_T19vf4-fr7_P3-_w");
    }
}
