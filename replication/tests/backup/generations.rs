//! A group as appended and as it was rewritten: two replicas, side by side.

use kera_replication::transport::{CopyAnswer, CopyState};

use crate::content::{copy, segment};
use crate::stage::{Ask, over_each_memory, whole};

#[test]
fn replicas_of_two_generations_lie_side_by_side_and_neither_stands_for_the_other() {
    over_each_memory(|stage| {
        let old = copy(1, 7);
        let mut new = old;
        new.generation = 1;
        let (appended, rewritten) = (segment(&old, 6, 700), segment(&new, 3, 700));
        let store = stage.store();
        let here = store.incarnation();
        store.fill(&old, &appended).expect("fills");
        store.seal(&old, 8, here).expect("seals");
        store
            .complete(&new, 8, 0, &rewritten.bytes)
            .expect("is built");
        let lengths = [&appended, &rewritten].map(|content| content.bytes.len() as u64);
        store.flush(&old, lengths[0], true).expect("flushes");
        store.flush(&new, lengths[1], true).expect("flushes");
        // Bytes of one generation under the name of the other are none of its.
        let mut third = old;
        third.generation = 2;
        store
            .complete(&third, 8, 0, &rewritten.bytes)
            .expect("is built");
        let answer = store.seal(&third, 8, here);
        assert!(
            matches!(answer, Ok(CopyAnswer::Damaged { .. })),
            "{answer:?}"
        );
        store.free(&third, 8).expect("is freed");
        drop(store);

        for _ in 0..2 {
            let store = stage.store();
            assert_eq!(store.state(&old), Some(CopyState::Flushed));
            assert_eq!(store.state(&new), Some(CopyState::Flushed));
            assert_eq!(store.state(&third), None);
            assert_eq!(store.bytes(&old, appended.bytes.len()), appended.bytes);
            assert_eq!(store.bytes(&new, rewritten.bytes.len()), rewritten.bytes);
            assert_eq!(store.seal(&old, 8, here), Ok(whole(&appended)));
            drop(store);
            stage.restart();
        }
        let store = stage.store();
        store.free(&old, 8).expect("is freed");
        assert_eq!(store.state(&old), None);
        assert_eq!(store.bytes(&new, rewritten.bytes.len()), rewritten.bytes);
        drop(store);
        stage.restart();
        let store = stage.store();
        assert_eq!(store.state(&old), None);
        assert_eq!(store.state(&new), Some(CopyState::Flushed));
        assert_eq!(store.bytes(&new, rewritten.bytes.len()), rewritten.bytes);
    });
}
