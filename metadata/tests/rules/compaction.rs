//! A closed group takes in the closed groups before it, and nothing else.

use super::*;

/// A lane's closed groups: 10 records each, the third behind a gap, as a loss leaves one.
fn closed_groups(store: &Arc<dyn MetadataStore>, s: &StreamletRecord) -> Vec<GroupRecord> {
    let mut begin = 50;
    let mut groups = Vec::new();
    for id in 1..=4 {
        let group = GroupRecord {
            first_ordinal: Some(begin),
            ..open_group(s, id, 2)
        };
        let mut group = closed(&group, 10, 4096);
        group.next_ordinal += if id == 2 { 5 } else { 0 };
        begin = group.next_ordinal;
        let committed = store.commit(put_group(s, group.clone())).unwrap();
        group.revision = committed.revision;
        groups.push(group);
    }
    groups
}

/// `into` begins where the first of `deleted` does, which go.
fn take_in(s: &StreamletRecord, into: &GroupRecord, deleted: &[&GroupRecord]) -> Transaction {
    let merged = GroupRecord {
        generation: into.generation + 1,
        first_ordinal: deleted[0].first_ordinal,
        length: 200,
        live_bytes: 200,
        ..into.clone()
    };
    let deleted = deleted
        .iter()
        .map(|group| Write::delete_group(group.key(), group.revision));
    Transaction::of_groups(s.key(), s.epoch, deleted.chain([merged.put()]))
}

#[test]
fn a_group_takes_in_those_before_it_if_they_hold_all_between() {
    on_each_store(|store| {
        let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        let groups = closed_groups(&store, s);
        let [one, two, three, four] = &groups[..] else {
            panic!("four groups");
        };
        let part = "does not delete closed groups that hold all between";
        // One between is not deleted, or it is another lane's.
        assert_invalid(store.commit(take_in(s, four, &[one, three])), part);
        assert_invalid(store.commit(take_in(s, three, &[one])), part);
        let other = GroupRecord {
            first_ordinal: Some(50),
            ..open_group(s, 9, 1)
        };
        let mut other = closed(&other, 10, 4096);
        let recorded = store.commit(put_group(s, other.clone())).unwrap();
        other.revision = recorded.revision;
        assert_invalid(store.commit(take_in(s, two, &[&other])), part);
        // Only a rewritten file begins earlier, and none begins later.
        let mut same = take_in(s, two, &[one]);
        if let Some(Write::PutGroup(record)) = same.write.last_mut() {
            record.generation -= 1;
        }
        assert_invalid(store.commit(same), "first ordinal cannot change");
        let mut late = take_in(s, two, &[one]);
        if let Some(Write::PutGroup(record)) = late.write.last_mut() {
            record.first_ordinal = Some(61);
        }
        assert_invalid(store.commit(late), "first ordinal cannot change");
        let mut longer = take_in(s, two, &[one]);
        if let Some(Write::PutGroup(record)) = longer.write.last_mut() {
            record.end_ordinal += 1;
            record.next_ordinal += 1;
        }
        assert_invalid(store.commit(longer), "end and closing time");

        // Two at once, also over a gap that one of them had behind it.
        store.commit(take_in(s, three, &[one, two])).unwrap();
        let image = store.load_streamlet(s.stream, s.streamlet).unwrap();
        let lane: Vec<_> = image
            .groups
            .iter()
            .filter(|group| group.lane == LaneId(2))
            .map(|group| (group.group.0, group.generation, group.first_ordinal))
            .collect();
        assert_eq!(lane, [(3, 1, Some(50)), (4, 0, four.first_ordinal)]);
    });
}
