//! Streamlets that are handed over in the middle of a long group.

use kera_metadata::{GroupRecord, GroupState};

use super::*;
use crate::cluster::ownership::hand_over::LONG_BYTES;

/// Bytes of a record that fills groups.
const LARGE: usize = 15 << 10;

impl Trio {
    /// Whether a close is among what broker `at` wants recorded.
    fn holds_a_close(&self, at: u32) -> bool {
        let held = self.held[at as usize - 1].lock();
        let mut writes = held.iter().flatten().flat_map(|(one, _)| &one.write);
        let is_close = |write: &Write| matches!(write, Write::PutGroup(group) if group.state == GroupState::Closed);
        writes.any(is_close)
    }

    /// Nothing that broker `at` wants recorded is held back any more.
    fn release(&self, at: u32) {
        let held = self.held[at as usize - 1].lock().take();
        for (transaction, done) in held.into_iter().flatten() {
            self.store.submit(transaction, done);
        }
    }

    /// The streamlet's groups that hold records, in their order.
    fn with_records(&self, stream: StreamId, number: u32) -> Vec<GroupRecord> {
        let image = self.store.load_streamlet(stream, StreamletId(number));
        let mut groups = image.expect("it is read").groups;
        groups.retain(|group| group.first_ordinal.is_some_and(|it| it < group.end_ordinal));
        groups.sort_by_key(|group| group.group);
        groups
    }
}

/// The next owner fetches the last group of each lane before it serves: a long one is closed while
/// appends go on, so that they wait for a short one only.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_group_is_closed_before_appends_stop() {
    let trio = Trio::start().await;
    let stream = trio.create_of(1, "clicks", 1 << 20).await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    let from = trio.shared(old).clone();
    let before = trio.streamlet(old, stream, 0);
    let (large, many) = (vec![7; LARGE], LONG_BYTES as i32 / LARGE as i32 + 1);
    for sequence in 0..many {
        let appended = append_value(&before, &from, sequence, &large).expect("it is taken");
        assert_eq!(outcome(&appended).await, Outcome::Durable);
    }
    *trio.held[old as usize - 1].lock() = Some(Vec::new());
    let (by, id) = (from.clone(), StreamletId(0));
    let handing = tokio::spawn(async move { hand_over(&by, stream, id, to).await });
    until(|| trio.holds_a_close(old)).await;
    let meanwhile = append(&before, &from, many).expect("appends go on");
    trio.release(old);
    handing.await.expect("no panic").expect("it is handed over");

    let after = trio.served(to, stream, 0).await;
    let lengths: Vec<_> = trio
        .with_records(stream, 0)
        .iter()
        .map(|group| group.length)
        .collect();
    let [long, short] = lengths[..] else {
        panic!("two groups: {lengths:?}");
    };
    assert!(long >= LONG_BYTES && short < LONG_BYTES, "{lengths:?}");
    assert_eq!(meanwhile.base_ordinal, many as u64);
    let again = append(&after, trio.shared(to), many).expect("it is known");
    assert!(again.duplicate, "what was sent meanwhile was taken along");
    append_all(trio.shared(to), &after, many + 1..many + 5).await;
    let mut expected = vec![large; many as usize];
    expected.extend((many..many + 5).map(value));
    assert_eq!(values(&after).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_group_is_not_ended_ahead() {
    let trio = Trio::start().await;
    let stream = trio.create_of(1, "clicks", 1 << 20).await;
    let old = trio.owner(1, stream, 0).broker;
    let from = trio.shared(old).clone();
    let before = trio.streamlet(old, stream, 0);
    append_all(&from, &before, 0..10).await;
    *trio.held[old as usize - 1].lock() = Some(Vec::new());
    let (by, id) = (from.clone(), StreamletId(0));
    let handing = tokio::spawn(async move { hand_over(&by, stream, id, old % 3 + 1).await });
    until(|| trio.holds_a_close(old)).await;
    let meanwhile = append(&before, &from, 10);
    assert!(matches!(meanwhile, Err(AppendError::NotOwner)));
    trio.release(old);
    handing.await.expect("no panic").expect("it is handed over");
    assert_eq!(trio.with_records(stream, 0).len(), 1);
}
