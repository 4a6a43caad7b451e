//! Ids, as people read them.

/// An id as UUIDs are written; empty if it is none.
pub(crate) fn uuid(bytes: &[u8]) -> String {
    if bytes.len() != 16 {
        return String::new();
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_uuids() {
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(uuid(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(uuid(&[1, 2]), "");
    }
}
