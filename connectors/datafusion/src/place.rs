//! Where a read begins and ends.

use std::str::FromStr;

use datafusion::arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use kera_protocol::v1::find_ordinals_request::At;

use crate::error::KeraError;

/// A place in each lane of a stream, as it is when a query begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first record that is stored.
    Earliest,
    /// Behind the last record that can be read.
    Latest,
    /// An ordinal of each lane.
    Ordinal(u64),
    /// The first record of each lane at or after this time, milliseconds since 1970; behind the last one if there is none.
    Timestamp(u64),
}

impl Place {
    pub(crate) fn at(self) -> At {
        match self {
            Self::Earliest => At::Earliest(true),
            Self::Latest => At::Latest(true),
            Self::Ordinal(ordinal) => At::Ordinal(ordinal),
            Self::Timestamp(time) => At::TimestampMs(time),
        }
    }
}

impl FromStr for Place {
    type Err = KeraError;

    /// `earliest`, `latest`, `ordinal:7`, or a time such as `2026-02-03T04:05:06Z`, of UTC if it names no zone.
    fn from_str(text: &str) -> Result<Self, KeraError> {
        let wrong = || KeraError::Place(text.to_owned());
        match text {
            "earliest" => return Ok(Self::Earliest),
            "latest" => return Ok(Self::Latest),
            _ => {}
        }
        if let Some(ordinal) = text.strip_prefix("ordinal:") {
            return ordinal.parse().map(Self::Ordinal).map_err(|_| wrong());
        }
        let nanos = string_to_timestamp_nanos(text).map_err(|_| wrong())?;
        // A part of a millisecond lies behind it: no record has a time between the two.
        let millis = nanos.div_euclid(1_000_000) + i64::from(nanos.rem_euclid(1_000_000) > 0);
        u64::try_from(millis)
            .map(Self::Timestamp)
            .map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<Place>();
        assert_eq!(read("earliest").unwrap(), Place::Earliest);
        assert_eq!(read("latest").unwrap(), Place::Latest);
        assert_eq!(read("ordinal:7").unwrap(), Place::Ordinal(7));
        let second = Place::Timestamp(1_000);
        assert_eq!(read("1970-01-01T00:00:01Z").unwrap(), second);
        assert_eq!(read("1970-01-01T01:00:01+01:00").unwrap(), second);
        assert_eq!(read("1970-01-01 00:00:01").unwrap(), second);
        assert_eq!(
            read("1970-01-01T00:00:00.999000001Z").unwrap(),
            second,
            "up"
        );
        for wrong in ["", "7", "ordinal:", "ordinal:-1", "1969-12-31T00:00:00Z"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("ordinal:7"), "{error}");
        }
    }
}
