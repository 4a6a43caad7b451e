//! Settings as they travel in requests and responses.

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;

use crate::config::{
    AckPolicy, BatchCheck, Cleanup, LaneBy, MAX_LANES, REPLICATED_SEGMENTS_PER_GROUP, StreamConfig,
    TimestampType,
};

/// Values of answers, which have the same numbers. One of a newer build counts as the default.
macro_rules! from_wire {
    ($($name:ident)*) => {
        $(impl From<v1::$name> for $name {
            fn from(wire: v1::$name) -> Self {
                Self::of_number(wire as u32).unwrap_or_default()
            }
        })*
    };
}
from_wire!(LaneBy TimestampType BatchCheck Cleanup);

impl StreamConfig {
    /// The settings of a stream to create: what the request leaves out is the default.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] as of [`validate`](Self::validate), or for a value of an
    /// enumeration that this build does not know.
    pub fn from_wire(wire: &v1::StreamConfig) -> Result<Self, WireError> {
        let mut config = Self::default();
        config.take(wire)?;
        if wire.max_batch_bytes.is_none() {
            config.max_batch_bytes = Self::default_max_batch_bytes(config.segment_size);
        }
        if wire.min_insync_replicas.is_none() {
            config.min_insync_replicas = Self::default_min_insync_replicas(config.replicas);
        }
        if wire.segments_per_group.is_none() && config.replicas > 1 {
            config.segments_per_group = REPLICATED_SEGMENTS_PER_GROUP;
        }
        config.validate()?;
        Ok(config)
    }

    /// These settings with those of the request changed: what it leaves out stays.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] as of [`validate_change`](Self::validate_change), or for a
    /// value of an enumeration that this build does not know.
    pub fn altered(&self, wire: &v1::StreamConfig) -> Result<Self, WireError> {
        let mut config = self.clone();
        config.take(wire)?;
        self.validate_change(&config)?;
        Ok(config)
    }

    /// The settings for a response, every field present.
    pub fn to_wire(&self) -> v1::StreamConfig {
        v1::StreamConfig {
            streamlets: Some(self.streamlets),
            lanes: Some(self.lanes),
            lane_by: Some(self.lane_by.number().into()),
            segment_size: Some(self.segment_size),
            segments_per_group: Some(self.segments_per_group),
            ack: Some(v1::AckPolicy::from(self.ack).into()),
            retention_ms: Some(self.retention_ms),
            retention_bytes: Some(self.retention_bytes),
            group_max_age_ms: Some(self.group_max_age_ms),
            max_batch_bytes: Some(self.max_batch_bytes),
            timestamp_type: Some(self.timestamp_type.number().into()),
            replicas: Some(self.replicas),
            min_insync_replicas: Some(self.min_insync_replicas),
            partitions: Some(self.partitions()),
            timestamp_before_max_ms: Some(self.timestamp_before_max_ms),
            timestamp_after_max_ms: Some(self.timestamp_after_max_ms),
            validate: Some(self.validate.number().into()),
            cleanup: Some(self.cleanup.number().into()),
            min_compaction_lag_ms: Some(self.min_compaction_lag_ms),
            max_compaction_lag_ms: Some(self.max_compaction_lag_ms),
            delete_retention_ms: Some(self.delete_retention_ms),
            min_dirty_permille: Some(self.min_dirty_permille),
            dead_letters: Some(self.dead_letters),
        }
    }

    fn take(&mut self, wire: &v1::StreamConfig) -> Result<(), WireError> {
        /// Takes those fields that the request has.
        macro_rules! set {
            ($($field:ident)*) => {
                $(if let Some(value) = wire.$field {
                    self.$field = value;
                })*
            };
        }
        set!(streamlets);
        self.take_lanes(wire.lanes, wire.partitions)?;
        set!(segment_size segments_per_group retention_ms retention_bytes group_max_age_ms);
        set!(max_batch_bytes replicas min_insync_replicas timestamp_before_max_ms);
        set!(timestamp_after_max_ms min_compaction_lag_ms max_compaction_lag_ms);
        set!(delete_retention_ms min_dirty_permille dead_letters);
        /// Takes those fields that the request has, by the numbers of their values.
        macro_rules! set_numbered {
            ($($field:ident: $values:expr, $named:expr;)*) => {
                $(if let Some(number) = wire.$field {
                    self.$field = of_number(stringify!($field), number, $values, $named)?;
                })*
            };
        }
        let acks = [AckPolicy::Written, AckPolicy::Memory, AckPolicy::Synced];
        set_numbered! {
            cleanup: Cleanup::ALL, |v| (v.number().into(), v.text());
            lane_by: LaneBy::ALL, |v| (v.number().into(), v.text());
            ack: &acks, |v| (v1::AckPolicy::from(v).into(), v.text());
            timestamp_type: TimestampType::ALL, |v| (v.number().into(), v.text());
            validate: BatchCheck::ALL, |v| (v.number().into(), v.text());
        }
        Ok(())
    }

    /// Takes lanes per streamlet, or their number in all.
    fn take_lanes(&mut self, lanes: Option<u32>, partitions: Option<u32>) -> Result<(), WireError> {
        let invalid = |text: String| Err(WireError::new(ErrorCode::InvalidArgument, text));
        let streamlets = self.streamlets.max(1);
        let Some(partitions) = partitions else {
            if let Some(lanes) = lanes {
                (self.lanes, self.short_streamlets) = (lanes, 0);
            }
            return Ok(());
        };
        if !(streamlets..=MAX_LANES).contains(&partitions) {
            return invalid(format!(
                "partitions is {partitions}; with {streamlets} streamlets, which have one lane at least, the legal range is {streamlets} to {MAX_LANES}"
            ));
        }
        let most = partitions.div_ceil(streamlets);
        if let Some(lanes) = lanes.filter(|lanes| *lanes != most) {
            return invalid(format!(
                "lanes is {lanes} and partitions is {partitions}, which are {most} lanes for each of {streamlets} streamlets, or one less; name one of the two"
            ));
        }
        (self.lanes, self.short_streamlets) = (most, streamlets * most - partitions);
        Ok(())
    }
}

/// The one of `values` that has `number`.
fn of_number<T: Copy>(
    key: &str,
    number: i32,
    values: &[T],
    named: fn(T) -> (i32, &'static str),
) -> Result<T, WireError> {
    let found = values.iter().find(|value| named(**value).0 == number);
    found.copied().ok_or_else(|| {
        let legal = values.iter().map(|value| named(*value));
        let legal: Vec<_> = legal.map(|(n, text)| format!("{n} ({text})")).collect();
        WireError::new(
            ErrorCode::InvalidArgument,
            format!(
                "{key} is {number}; the legal values are {}",
                legal.join(", ")
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::StreamletId;

    use super::*;

    #[test]
    fn absent_is_default_at_creation_and_unchanged_at_alteration() {
        let config = StreamConfig::from_wire(&v1::StreamConfig::default()).unwrap();
        assert_eq!(config, StreamConfig::default());
        let asked = v1::StreamConfig {
            lanes: Some(4),
            ack: Some(v1::AckPolicy::Synced.into()),
            ..Default::default()
        };
        let altered = config.altered(&asked).unwrap();
        assert_eq!(
            altered,
            StreamConfig {
                lanes: 4,
                ack: AckPolicy::Synced,
                ..config
            }
        );
        assert!(
            altered
                .altered(&v1::StreamConfig {
                    lanes: Some(3),
                    ..Default::default()
                })
                .is_err()
        );
    }

    #[test]
    fn values_of_answers_are_those_of_the_same_number() {
        fn same<W: TryFrom<i32>, T: From<W> + Copy + PartialEq + std::fmt::Debug>(
            values: &[T],
            number: fn(T) -> u8,
        ) {
            for value in values {
                let wire = W::try_from(number(*value).into()).ok().expect("a value");
                assert_eq!(T::from(wire), *value);
            }
            let next = values.len() as i32;
            assert!(W::try_from(next).is_err(), "{next} has no name");
        }
        same::<v1::LaneBy, _>(LaneBy::ALL, LaneBy::number);
        same::<v1::TimestampType, _>(TimestampType::ALL, TimestampType::number);
        same::<v1::BatchCheck, _>(BatchCheck::ALL, BatchCheck::number);
        same::<v1::Cleanup, _>(Cleanup::ALL, Cleanup::number);
    }

    #[test]
    fn every_field_round_trips() {
        let config = StreamConfig {
            streamlets: 3,
            lanes: 5,
            short_streamlets: 0,
            lane_by: LaneBy::Producer,
            segment_size: 1 << 20,
            segments_per_group: 7,
            ack: AckPolicy::Written,
            retention_ms: 1,
            retention_bytes: 2,
            group_max_age_ms: 3,
            max_batch_bytes: 4096,
            timestamp_type: TimestampType::Append,
            replicas: 4,
            min_insync_replicas: 1,
            timestamp_before_max_ms: 4,
            timestamp_after_max_ms: 5,
            validate: BatchCheck::Full,
            cleanup: Cleanup::Delete,
            min_compaction_lag_ms: 6,
            max_compaction_lag_ms: 7,
            delete_retention_ms: 8,
            min_dirty_permille: 9,
            dead_letters: true,
        };
        assert_eq!(StreamConfig::from_wire(&config.to_wire()), Ok(config));
    }

    #[test]
    fn a_small_segment_lowers_the_default_batch() {
        let asked = v1::StreamConfig {
            segment_size: Some(64 << 10),
            ..Default::default()
        };
        let config = StreamConfig::from_wire(&asked).unwrap();
        assert_eq!(config.max_batch_bytes, (64 << 10) - 4096);
    }

    #[test]
    fn unknown_values_are_named() {
        for (wire, key) in [
            (
                v1::StreamConfig {
                    ack: Some(9),
                    ..Default::default()
                },
                "ack is 9",
            ),
            (
                v1::StreamConfig {
                    lane_by: Some(-1),
                    ..Default::default()
                },
                "lane_by is -1",
            ),
            (
                v1::StreamConfig {
                    timestamp_type: Some(7),
                    ..Default::default()
                },
                "timestamp_type is 7",
            ),
            (
                v1::StreamConfig {
                    validate: Some(2),
                    ..Default::default()
                },
                "validate is 2",
            ),
        ] {
            let error = StreamConfig::from_wire(&wire).unwrap_err();
            assert!(error.message.contains(key), "{error}");
        }
    }

    #[test]
    fn partitions_are_lanes_of_all_streamlets() {
        let wire = |lanes, partitions| v1::StreamConfig {
            lanes,
            partitions,
            ..Default::default()
        };
        let four = StreamConfig {
            streamlets: 4,
            ..StreamConfig::default()
        };
        for partitions in 4..30 {
            let config = four.altered(&wire(None, Some(partitions))).unwrap();
            assert_eq!(config.partitions(), partitions);
            let lanes: Vec<u32> = (0..4).map(|s| config.lanes_of(StreamletId(s))).collect();
            assert_eq!(lanes.iter().sum::<u32>(), partitions);
            assert!(lanes[0] - lanes[3] <= 1 && lanes.is_sorted_by(|a, b| a >= b));
            assert_eq!(StreamConfig::from_wire(&config.to_wire()), Ok(config));
        }
        let six = four.altered(&wire(Some(2), Some(6))).unwrap();
        // Lanes of each streamlet, as ever.
        assert_eq!(six.altered(&wire(Some(2), None)).unwrap().partitions(), 8);
        assert_eq!(six.altered(&wire(None, None)).unwrap(), six);
        for (lanes, partitions, part) in [
            (
                None,
                Some(5),
                "partitions is 6 and may only grow; 5 is less",
            ),
            (None, Some(3), "the legal range is 4 to 65536"),
            (None, Some(65_537), "the legal range is 4 to 65536"),
            (Some(3), Some(7), "name one of the two"),
            (Some(1), None, "lanes is 2 and may only grow"),
        ] {
            let message = six.altered(&wire(lanes, partitions)).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
        let by_producer = StreamConfig {
            lane_by: LaneBy::Producer,
            ..four
        };
        let message = by_producer
            .altered(&wire(None, Some(6)))
            .unwrap_err()
            .message;
        assert!(message.contains("choose a multiple of 4"), "{message}");
        by_producer.altered(&wire(None, Some(8))).unwrap();
    }
}
