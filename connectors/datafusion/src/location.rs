//! `kera://HOST:PORT/STREAM`.

use crate::error::KeraError;

/// Where a stream is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// HOST:PORT, several separated by commas.
    pub(crate) bootstrap: String,
    pub(crate) stream: String,
}

impl Location {
    pub(crate) fn parse(location: &str) -> Result<Self, KeraError> {
        let wrong = |reason| KeraError::Location {
            location: location.to_owned(),
            reason,
        };
        let rest = location
            .strip_prefix("kera://")
            .ok_or_else(|| wrong("it does not begin with kera://"))?;
        let (bootstrap, stream) = rest
            .split_once('/')
            .ok_or_else(|| wrong("it names no stream"))?;
        if bootstrap.is_empty() {
            return Err(wrong("it names no broker"));
        }
        if stream.is_empty() {
            return Err(wrong("it names no stream"));
        }
        if stream.contains(['/', '?', '#', '%']) {
            return Err(wrong("no stream has such a name"));
        }
        Ok(Self {
            bootstrap: bootstrap.to_owned(),
            stream: stream.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_has_brokers_and_a_stream() {
        let parsed = Location::parse("kera://a:1,[::1]:2/my.stream").unwrap();
        assert_eq!(parsed.bootstrap, "a:1,[::1]:2");
        assert_eq!(parsed.stream, "my.stream");
    }

    #[test]
    fn other_locations_are_refused_with_words() {
        for (location, reason) in [
            ("s3://a/b", "does not begin"),
            ("kera://a:1", "names no stream"),
            ("kera://a:1/", "names no stream"),
            ("kera:///s", "names no broker"),
            ("kera://a:1/s/t", "no stream has such a name"),
        ] {
            let error = Location::parse(location).unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("kera://HOST:PORT/STREAM"),
                "{error}"
            );
        }
    }
}
