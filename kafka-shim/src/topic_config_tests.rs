//! What is asked of topics as settings of streams, and shown of them.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn wanted(values: &[(&str, &str)]) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for (name, value) in values {
        wanted.set(known(name)?, value, SECOND)?;
    }
    Ok(wanted)
}

fn created(values: &[(&str, &str)], partitions: u32) -> Result<StreamConfig, String> {
    let wire = wanted(values)?.for_creation(partitions)?;
    StreamConfig::from_wire(&wire).map_err(|error| error.message)
}

fn shown(config: &StreamConfig, name: &str) -> String {
    value_of(known(name).expect("a name"), config, SECOND)
}

#[test]
fn a_topic_without_settings_shows_the_defaults_of_the_table() {
    let config = created(&[], 1).expect("legal");
    assert_eq!(config, StreamConfig::default());
    for known in TOPIC_CONFIGS {
        assert_eq!(
            value_of(known, &config, SECOND),
            known.default,
            "{}",
            known.name
        );
    }
}

#[test]
fn every_default_can_be_set() {
    for config in TOPIC_CONFIGS {
        let set = wanted(&[(config.name, config.default)]);
        let set = set.unwrap_or_else(|error| panic!("{error}"));
        let made = set.for_creation(1).expect("legal");
        assert_eq!(
            StreamConfig::from_wire(&made),
            Ok(StreamConfig::default()),
            "{}",
            config.name
        );
        let changed = set.for_change(&StreamConfig::default()).expect("legal");
        assert_eq!(
            StreamConfig::default().altered(&changed),
            Ok(StreamConfig::default())
        );
    }
}

#[test]
fn what_is_set_is_shown() {
    let values = [
        ("retention.ms", "-1"),
        ("retention.bytes", "1000001"),
        ("segment.bytes", "1073741824"),
        ("segment.ms", NEVER),
        ("max.message.bytes", "2097152"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.before.max.ms", "604800000"),
        ("message.timestamp.after.max.ms", "3600000"),
        ("kera.validate", "full"),
        ("flush.messages", "1"),
        ("cleanup.policy", "compact,delete"),
        ("min.compaction.lag.ms", "1000"),
        ("max.compaction.lag.ms", "2000"),
        ("delete.retention.ms", "0"),
        ("min.cleanable.dirty.ratio", "0.25"),
    ];
    let config = created(&values, 7).expect("legal");
    for (name, value) in values {
        assert_eq!(shown(&config, name), value, "{name}");
    }
    assert_eq!(config.retention_bytes, 7_000_007);
    assert_eq!(
        (config.segment_size, config.segments_per_group),
        (8 << 20, 128)
    );
    assert_eq!(shown(&config, "kera.ack"), "synced");
    assert_eq!(shown(&config, "kera.streamlets"), "7");
}

#[test]
fn segments_are_rounded_up_and_hold_the_largest_batch() {
    let config = created(&[("segment.bytes", "14")], 1).expect("legal");
    assert_eq!(config.segment_size, (1 << 20) + SEGMENT_HEADER_ALLOWANCE);
    assert_eq!(
        (config.segments_per_group, config.max_batch_bytes),
        (1, 1 << 20)
    );
    let tiny = [("segment.bytes", "14"), ("max.message.bytes", "2000")];
    let config = created(&tiny, 1).expect("legal");
    assert_eq!(config.segment_size, 64 << 10);
    let config = created(&[("segment.bytes", "52428800")], 1).expect("legal");
    assert_eq!(
        (config.segment_size, config.segments_per_group),
        (8 << 20, 7)
    );
    let large = [
        ("segment.bytes", "1000000"),
        ("max.message.bytes", "20000000"),
    ];
    let config = created(&large, 1).expect("legal");
    assert!(config.segment_size >= 20_000_000 + SEGMENT_HEADER_ALLOWANCE);
    assert_eq!(config.segments_per_group, 1);
    assert!(created(&[("max.message.bytes", "2147483647")], 1).is_err());
    assert!(created(&[("max.message.bytes", "10")], 1).is_err());
}

#[test]
fn lanes_divide_the_partitions() {
    let config = created(&[("kera.lanes", "4")], 12).expect("legal");
    assert_eq!((config.streamlets, config.lanes), (3, 4));
    let error = created(&[("kera.lanes", "5")], 12).expect_err("12 is no multiple");
    assert!(error.contains("multiple"), "{error}");
}

#[test]
fn copies_that_are_needed_are_at_most_those_there_are() {
    let mut wanted = Wanted::of_replicas(Some(3));
    let config = known("min.insync.replicas").expect("a name");
    wanted
        .set(config, "2", Duration::from_secs(1))
        .expect("legal");
    let wire = wanted.for_creation(4).expect("legal");
    assert_eq!(
        (wire.replicas, wire.min_insync_replicas),
        (Some(3), Some(2))
    );
}

#[test]
fn what_kera_does_not_do_is_refused_with_a_reason() {
    for (name, value, part) in [
        (
            "cleanup.policy",
            "compact,archive",
            "compact, delete or both",
        ),
        ("cleanup.policy", "", "compact, delete or both"),
        ("min.cleanable.dirty.ratio", "1.5", "0 to 1"),
        ("max.compaction.lag.ms", "0", "at least 1"),
        ("compression.type", "zip", "one of uncompressed, zstd"),
        ("min.insync.replicas", "2", "min_insync_replicas is 2 of 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("remote.storage.enable", "true", "no remote storage"),
        ("message.timestamp.after.max.ms", "-1", "at least 0"),
        ("kera.validate", "all", "header or full"),
        ("flush.messages", "100", "kera.ack"),
        ("flush.ms", "10", "1000 ms"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "week", "number"),
        ("segment.ms", "0", "at least 1"),
        ("preallocate", "perhaps", "true or false"),
        ("kera.ack", "fsync", "synced"),
        ("kera.streamlets", "3", "shown only: it is 1"),
        ("kera.lane.by", "producer", "shown only: it is key"),
        ("retention.msec", "1", "did you mean \"retention.ms\"?"),
        ("kera.akc", "1", "did you mean \"kera.ack\"?"),
        ("zzz", "1", "unknown topic config \"zzz\""),
    ] {
        let error = created(&[(name, value)], 1).expect_err(name);
        assert!(error.contains(part), "{name}={value}: {error}");
    }
    let both = [("flush.messages", "1"), ("kera.ack", "memory")];
    assert!(created(&both, 1).expect_err("both").contains("contradict"));
}

#[test]
fn what_is_fixed_at_creation_may_be_set_to_what_it_is() {
    let present = created(&[("segment.bytes", "50000000"), ("kera.lanes", "2")], 4).expect("legal");
    let same = wanted(&[("segment.bytes", "50000000"), ("kera.lanes", "2")]).expect("legal");
    assert!(same.for_change(&present).is_ok());
    for other in [
        ("segment.bytes", "1000000"),
        ("kera.lanes", "3"),
        ("min.insync.replicas", "2"),
    ] {
        let error = wanted(&[other]).expect("legal").for_change(&present);
        assert!(error.is_err(), "{other:?}");
    }
}

#[test]
fn deleting_a_value_brings_the_default_back() {
    let mut present = created(
        &[
            ("retention.ms", "5"),
            ("retention.bytes", "5"),
            ("segment.ms", "5"),
            ("max.message.bytes", "5000"),
            ("message.timestamp.type", "LogAppendTime"),
            ("message.timestamp.before.max.ms", "5"),
            ("message.timestamp.after.max.ms", "0"),
            ("kera.validate", "full"),
            ("kera.ack", "memory"),
            ("cleanup.policy", "compact"),
            ("min.compaction.lag.ms", "5"),
            ("max.compaction.lag.ms", "6"),
            ("delete.retention.ms", "5"),
            ("min.cleanable.dirty.ratio", "0.1"),
        ],
        3,
    )
    .expect("legal");
    let mut wanted = Wanted::default();
    TOPIC_CONFIGS.iter().for_each(|config| wanted.reset(config));
    let wire = wanted.for_change(&present).expect("legal");
    present = present.altered(&wire).expect("legal");
    let expected = StreamConfig {
        streamlets: 3,
        ..StreamConfig::default()
    };
    assert_eq!(present, expected);

    let mut synced = expected.clone();
    synced.ack = AckPolicy::Synced;
    let mut wanted = Wanted::default();
    wanted.reset(known("flush.messages").expect("a name"));
    let wire = wanted.for_change(&synced).expect("legal");
    assert_eq!(synced.altered(&wire), Ok(expected));
}
