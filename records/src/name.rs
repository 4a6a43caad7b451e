//! What a stream may be called.

use kera_protocol::error::{ErrorCode, WireError};

/// Most characters of a stream's name; Kafka's limit for a topic.
pub const MAX_NAME_LENGTH: usize = 249;

/// What the names of the broker's own streams begin with, and no other stream's may.
pub const INTERNAL_PREFIX: &str = "_kera";

/// Checks the name of a stream that a user asks for: 1 to [`MAX_NAME_LENGTH`] of
/// `a-z A-Z 0-9 . _ -`, neither `.` nor `..`, without the prefix [`INTERNAL_PREFIX`].
///
/// # Errors
/// [`ErrorCode::InvalidName`], naming what is wrong with it.
pub fn validate_stream_name(name: &str) -> Result<(), WireError> {
    validate_characters(name)?;
    if name.starts_with(INTERNAL_PREFIX) {
        return Err(invalid(format!(
            "stream name `{name}` begins with `{INTERNAL_PREFIX}`, which is reserved for internal streams; choose another name"
        )));
    }
    Ok(())
}

/// Checks the name of one of the broker's own streams: the same characters and length, and the
/// prefix [`INTERNAL_PREFIX`] required.
///
/// # Errors
/// [`ErrorCode::InvalidName`], naming what is wrong with it.
pub fn validate_internal_name(name: &str) -> Result<(), WireError> {
    validate_characters(name)?;
    if !name.starts_with(INTERNAL_PREFIX) {
        return Err(invalid(format!(
            "internal stream name `{name}` must begin with `{INTERNAL_PREFIX}`"
        )));
    }
    Ok(())
}

fn validate_characters(name: &str) -> Result<(), WireError> {
    if name.is_empty() {
        return Err(invalid(format!(
            "stream name is empty; use 1 to {MAX_NAME_LENGTH} of a-z A-Z 0-9 . _ -"
        )));
    }
    if let Some(bad) = name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')))
    {
        // The name is cut: it may be megabytes of anything, and the message goes to logs.
        let shown: String = name.chars().take(64).collect();
        return Err(invalid(format!(
            "stream name {shown:?} holds {bad:?}; use 1 to {MAX_NAME_LENGTH} of a-z A-Z 0-9 . _ -"
        )));
    }
    if name.len() > MAX_NAME_LENGTH {
        return Err(invalid(format!(
            "stream name has {} characters; use 1 to {MAX_NAME_LENGTH}",
            name.len()
        )));
    }
    if name == "." || name == ".." {
        return Err(invalid(format!(
            "stream name `{name}` is not allowed; choose another name"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> WireError {
    WireError::new(ErrorCode::InvalidName, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_names_pass() {
        for name in [
            "a",
            "flights",
            "A.b_c-9",
            "...",
            "_k",
            "-",
            &"x".repeat(249),
        ] {
            validate_stream_name(name).unwrap();
        }
        validate_internal_name("_kera.groups").unwrap();
    }

    #[test]
    fn illegal_names_are_refused_and_named() {
        for name in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "ü",
            "a\0",
            "_kera",
            "_kera_x",
            &"x".repeat(250),
            &"/".repeat(1 << 20),
        ] {
            let error = validate_stream_name(name).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidName);
            assert!(error.message.len() < 1000);
        }
        assert!(validate_internal_name("flights").is_err());
        assert!(validate_internal_name("_kera/x").is_err());
        assert!(
            validate_stream_name("a/b")
                .unwrap_err()
                .message
                .contains("'/'")
        );
    }
}
