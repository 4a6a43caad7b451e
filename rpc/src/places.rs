//! Where places are in the lanes of a stream.

use std::collections::HashSet;
use std::time::Duration;

use kera_protocol::v1::{self, find_ordinals_request::At};

use crate::client::{ANSWER_WITHIN, Client};
use crate::error::RpcError;
use crate::meta::{MAX_LANES, StreamMeta};

/// How long a broker is given for what owners have in memory: it waits 10 s for an owner that says nothing.
const FIND_WITHIN: Duration = Duration::from_secs(15);
/// How long it is given to find a time, for which owners may have to read their disks.
const FIND_TIME_WITHIN: Duration = Duration::from_secs(60);

impl Client {
    /// Where a place is in every lane of a stream. A broker that has not answered after 15 s, or half of the
    /// retry policy's deadline if that is less, is left for the next; one that looks for a time is given
    /// 60 s. An answer has at most 8 MiB and 65,536 lanes, which is as many as a stream can have.
    ///
    /// # Errors
    /// What the last attempt returned; [`RpcError::BadAnswer`] for lanes that the stream cannot have, that are
    /// told twice, or without a place.
    pub async fn find_ordinals(
        &self,
        stream: &StreamMeta,
        at: At,
    ) -> Result<Vec<v1::LaneCursor>, RpcError> {
        let half = self.options().retry.deadline / 2;
        let within = match at {
            At::TimestampMs(_) => FIND_TIME_WITHIN,
            At::Earliest(_) | At::Latest(_) | At::Ordinal(_) => {
                half.clamp(ANSWER_WITHIN, FIND_WITHIN)
            }
        };
        let request = v1::FindOrdinalsRequest {
            name: stream.name.clone(),
            at: Some(at),
            local: false,
        };
        let found = self
            .stream_call_within(&stream.name, within, request)
            .await?;
        check(stream, &found.lanes)?;
        Ok(found.lanes)
    }
}

/// Lanes may have been added since `stream` was asked for; streamlets are fixed.
fn check(stream: &StreamMeta, lanes: &[v1::LaneCursor]) -> Result<(), RpcError> {
    let bad = |what: &str, lane: &v1::LaneCursor| {
        let place = format!("streamlet {} lane {}", lane.streamlet, lane.lane);
        RpcError::BadAnswer(format!("stream {}: {place} {what}", stream.name))
    };
    let mut told = HashSet::new();
    for lane in lanes {
        if lane.streamlet >= stream.streamlets || lane.lane >= MAX_LANES {
            return Err(bad("is none that the stream can have", lane));
        }
        if lane.cursor.is_none() {
            return Err(bad("is told without a place", lane));
        }
        if !told.insert((lane.streamlet, lane.lane)) {
            return Err(bad("is told twice", lane));
        }
    }
    if told.len() > MAX_LANES as usize {
        let (count, name) = (told.len(), &stream.name);
        let text = format!("stream {name}: {count} lanes are more than a stream can have");
        return Err(RpcError::BadAnswer(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;

    use super::*;
    use crate::control_call::MAX_FOUND_BYTES;

    fn stream() -> StreamMeta {
        let info = v1::StreamInfo {
            name: "s".to_owned(),
            id: Bytes::from_static(&[3; 16]),
            config: Some(v1::StreamConfig {
                streamlets: Some(3),
                lanes: Some(1),
                ..v1::StreamConfig::default()
            }),
            ..v1::StreamInfo::default()
        };
        StreamMeta::from_info(info, "a:1").unwrap()
    }

    fn lane(streamlet: u32, lane: u32) -> v1::LaneCursor {
        v1::LaneCursor {
            streamlet,
            lane,
            cursor: Some(v1::Cursor::default()),
            ..v1::LaneCursor::default()
        }
    }

    #[test]
    fn lanes_that_the_stream_cannot_have_are_refused() {
        check(&stream(), &[]).unwrap();
        // Lanes grow.
        check(&stream(), &[lane(0, 0), lane(0, 9), lane(2, 0)]).unwrap();
        let placeless = v1::LaneCursor {
            cursor: None,
            ..lane(0, 0)
        };
        for (lanes, said) in [
            (vec![lane(3, 0)], "streamlet 3 lane 0 is none"),
            (vec![lane(0, MAX_LANES)], "lane 65536 is none"),
            (vec![lane(0, u32::MAX)], "is none"),
            (vec![placeless], "without a place"),
            (vec![lane(0, 0), lane(1, 0), lane(0, 0)], "is told twice"),
            (
                (0..=MAX_LANES).map(|n| lane(n % 2, n / 2)).collect(),
                "65537 lanes are more",
            ),
        ] {
            let error = check(&stream(), &lanes).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn the_answer_for_the_largest_stream_is_accepted() {
        let largest = v1::LaneCursor {
            streamlet: MAX_LANES - 1,
            lane: MAX_LANES - 1,
            cursor: Some(v1::Cursor {
                ordinal: u64::MAX,
                group: u64::MAX,
                generation: u32::MAX,
                segment: u32::MAX,
                position: u32::MAX,
                has_hint: true,
            }),
            head_ordinal: u64::MAX,
            log_start: u64::MAX,
        };
        let lanes = vec![largest; MAX_LANES as usize];
        let answer = v1::FindOrdinalsResponse { lanes };
        assert!(answer.encoded_len() <= MAX_FOUND_BYTES);
    }
}
