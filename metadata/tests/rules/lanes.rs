//! Lanes in equal and unequal numbers.

use super::*;

/// Four streamlets, and any number of lanes in all.
#[test]
fn lanes_grow_to_any_larger_number() {
    on_each_store(|store| {
        let config = StreamConfig {
            streamlets: 4,
            ..StreamConfig::default()
        };
        let record = StreamRecord::new("t", config, 1);
        let mut stream = store.create_stream(record, 1).unwrap().0;
        let alter = |stream: &StreamRecord| {
            store.commit(Transaction::new(
                vec![Compare::revision(Key::Stream(stream.id), stream.revision)],
                vec![Write::PutStream(stream.clone())],
            ))
        };
        let grown = |stream: &StreamRecord, partitions: u32, listed: u32| {
            let mut grown = stream.clone();
            grown.config.lanes = partitions.div_ceil(4);
            grown.config.short_streamlets = grown.config.lanes * 4 - partitions;
            let place = |p: u32| (StreamletId(p % 4), LaneId(p / 4), u64::from(p) * 10);
            grown.lane_generations.push(LaneGeneration {
                lanes: grown.config.lanes,
                short_streamlets: grown.config.short_streamlets,
                starts: (0..listed).map(place).collect(),
            });
            grown
        };
        let lane_of = |stream: &StreamRecord, streamlet: u32, lane: u32| {
            let s = store
                .streamlet(stream.id, StreamletId(streamlet))
                .unwrap()
                .unwrap();
            let mut group = open_group(&s, s.next_group.0, lane);
            group.epoch = s.epoch;
            store.commit(put_group(&s, group))
        };
        for (before, after) in [(4, 6), (6, 7), (7, 13), (13, 16)] {
            assert_invalid(alter(&grown(&stream, before, before)), "does not grow");
            assert_invalid(alter(&grown(&stream, after, before - 1)), "every lane");
            let mut other = grown(&stream, after, before);
            other.config.short_streamlets = (other.config.short_streamlets + 1) % 4;
            assert!(alter(&other).is_err(), "settings and generation differ");
            let last = before - 1;
            assert_invalid(
                lane_of(&stream, before % 4, before / 4),
                &format!("has only {} lanes", before / 4),
            );
            lane_of(&stream, last % 4, last / 4).unwrap();
            stream = grown(&stream, after, before);
            stream.revision = alter(&stream).unwrap().revision;
            assert_eq!(store.stream(stream.id).unwrap(), Some(stream.clone()));
            assert_eq!(stream.config.partitions(), after);
        }
    });
}
