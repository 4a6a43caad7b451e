//! What a streamlet may be given that waits for its jumps.

use super::*;

#[test]
fn after_a_restore_a_closed_group_may_take_the_place_of_any_with_its_id() {
    on_each_store(|store| {
        let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        let group = closed(&open_group(s, 1, 2), 100, 4096);
        let revision = store.commit(put_group(s, group.clone())).unwrap().revision;
        let shorter = GroupRecord {
            length: 2048,
            live_bytes: 2048,
            end_ordinal: 80,
            next_ordinal: 80,
            revision,
            ..group.clone()
        };
        assert_invalid(
            store.commit(put_group(s, shorter.clone())),
            "end and closing time",
        );
        let told = s.after_restore(1).unwrap();
        let tell = |told: &StreamletRecord| {
            let now = store.streamlet(s.stream, s.streamlet).unwrap().unwrap();
            let put = Write::PutStreamlet(told.clone());
            let told = Transaction::new(vec![Compare::streamlet(&now)], vec![put]);
            store.commit(told).unwrap();
        };
        tell(&told);
        let read = store.streamlet(s.stream, s.streamlet).unwrap().unwrap();
        assert_eq!(read.awaits_jumps, 1);
        let open = GroupRecord {
            state: GroupState::Open,
            ..shorter.clone()
        };
        assert_invalid(store.commit(put_group(&told, open)), "");
        let revision = store
            .commit(put_group(&told, shorter.clone()))
            .unwrap()
            .revision;
        assert_eq!(store.group(group.key()).unwrap().unwrap().end_ordinal, 80);
        // Its jumps are made.
        tell(&StreamletRecord {
            awaits_jumps: 0,
            ..told.clone()
        });
        let longer = GroupRecord { revision, ..group };
        assert_invalid(
            store.commit(put_group(&told, longer)),
            "end and closing time",
        );
    });
}
