//! Readers that have a rack, and who they ask for closed groups.

mod fake;

use std::sync::Arc;

use fake::{Asked, Fake, values};
use kera_consumer::{Fetch, Reader};

const BOTH: [Fetch; 2] = [Fetch::Push, Fetch::Pull];
const LANE: (u32, u32) = (0, 0);
const OWNER: usize = 0;
const HOLDER: usize = 1;

/// An owner and another broker that holds copies of three groups of three batches each, of ten records; one
/// batch more is in the open group.
async fn closed_groups(racks: [&'static str; 2]) -> Arc<Fake> {
    let fake = Fake::start_several(2, 1, 1).await;
    fake.change(|state| state.racks = racks.to_vec());
    fake.fill(LANE, 100, 10);
    for first in [0, 30, 60] {
        fake.close_group(LANE, first, first + 30, &[HOLDER, OWNER]);
    }
    fake
}

/// A reader in rack `a` that is given a batch at a time.
async fn reader(fake: &Arc<Fake>, fetch: Fetch) -> Reader {
    let reader = Reader::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .rack("a")
        .fetch(fetch)
        .fetch_bytes(1)
        .follow(false);
    reader.open().await.unwrap()
}

async fn drain(reader: &mut Reader) -> Vec<u64> {
    let mut seen = Vec::new();
    while let Some(batch) = reader.next_batch().await.unwrap() {
        seen.extend(values(&batch));
    }
    seen
}

/// Lets all that is under way come to its end: reader and brokers share this thread.
async fn settle() {
    for _ in 0..20_000 {
        tokio::task::yield_now().await;
    }
}

fn owner(ordinal: u64) -> Asked {
    Asked {
        member: OWNER,
        ordinal,
        from_copy: false,
    }
}

fn holder(ordinal: u64) -> Asked {
    Asked {
        member: HOLDER,
        ordinal,
        from_copy: true,
    }
}

#[tokio::test]
async fn nobody_is_asked_before_the_owner_is_known_which_may_be_as_near() {
    for fetch in BOTH {
        let fake = closed_groups(["a", "a"]).await;
        // The reader is told of the stream, and whoever fetches for it asks anew for the owners.
        fake.change(|state| state.owners_told = Some(1));
        let mut reader = reader(&fake, fetch).await;
        fake.until(|state| state.copies_told == 1).await;
        settle().await;
        assert!(fake.state.lock().asked.is_empty(), "{fetch:?}");
        fake.change(|state| state.owners_told = None);
        assert_eq!(drain(&mut reader).await, (0..100).collect::<Vec<_>>());
        let asked = fake.state.lock().asked.clone();
        assert_eq!(asked[0], owner(0), "{fetch:?}");
        assert!(asked.iter().all(|a| a.member == OWNER), "{asked:?}");
        assert_eq!(reader.metrics().copy_bytes, 0);
    }
}

#[tokio::test]
async fn a_holder_that_refuses_one_group_is_asked_for_the_next() {
    for fetch in BOTH {
        let fake = closed_groups(["b", "a"]).await;
        fake.change(|state| state.groups[1].damaged = vec![HOLDER]);
        let mut reader = reader(&fake, fetch).await;
        assert_eq!(drain(&mut reader).await, (0..100).collect::<Vec<_>>());
        let asked = fake.state.lock().asked.clone();
        let expected = [
            holder(0),
            holder(10),
            holder(20),
            // This one is refused, and comes from the owner, batch by batch.
            holder(30),
            owner(30),
            owner(40),
            owner(50),
            holder(60),
            holder(70),
            holder(80),
            owner(90),
        ];
        assert_eq!(asked, expected, "{fetch:?}");
        assert!(reader.metrics().copy_bytes > 0);
    }
}
