//! A store that is put back to an older state, and what brokers have of what it does not know.

use kera_metadata::GroupRecord;

use super::*;

const JUMP: u64 = 1 << 32;

impl Trio {
    /// The groups of a streamlet.
    fn recorded(&self, (stream, number): (StreamId, u32)) -> Vec<GroupRecord> {
        let image = self.store.load_streamlet(stream, StreamletId(number));
        image.expect("it is read").groups
    }

    /// All brokers end, which closes all groups.
    async fn end_all(&mut self) {
        for id in 1..=3 {
            self.end(id).await;
        }
    }

    /// The store knows these groups of a streamlet and no others, and an operator says so to brokers 1 and 2.
    fn put_back(&self, (stream, number): (StreamId, u32), groups: &[GroupRecord]) {
        let epoch = || {
            let found = self.store.streamlet(stream, StreamletId(number));
            Compare::epoch(&found.expect("it is read").expect("it is recorded"))
        };
        let now = self.recorded((stream, number));
        let deleted = now.iter().map(|g| Write::delete_group(g.key(), g.revision));
        let (compare, write): (Vec<_>, Vec<_>) = deleted.unzip();
        let compare = std::iter::once(epoch()).chain(compare).collect();
        let committed = self.store.commit(Transaction::new(compare, write));
        committed.expect("nobody was faster");
        let old = groups.iter().map(|group| {
            let group = GroupRecord {
                revision: 0,
                ..group.clone()
            };
            group.put()
        });
        let (compare, write): (Vec<_>, Vec<_>) = old.unzip();
        let compare = std::iter::once(epoch()).chain(compare).collect();
        let committed = self.store.commit(Transaction::new(compare, write));
        committed.expect("nobody was faster");
        for id in 1..=2 {
            let revision = self.config(id).data_dir.join("REVISION");
            std::fs::remove_file(revision).expect("it is there");
        }
    }

    /// Why broker `at` does not serve a streamlet.
    fn reason(&self, at: u32, (stream, number): (StreamId, u32)) -> String {
        let clustered = self
            .shared(at)
            .clustered
            .as_ref()
            .expect("it is one of them");
        let key = self.streamlet(at, stream, number).key();
        clustered.replicated.waiting().describe(key).reason
    }

    /// A streamlet of broker 1, written in two lives of all brokers; and its groups after the first one.
    async fn written_twice(&mut self) -> ((StreamId, u32), Vec<GroupRecord>) {
        let stream = self.create(1, "clicks").await;
        let mut numbers = 0..3;
        let number = numbers.find(|number| self.owner(1, stream, *number).broker == 1);
        let number = number.expect("they are spread");
        let streamlet = self.streamlet(1, stream, number);
        append_all(self.shared(1), &streamlet, 0..5).await;
        drop(streamlet);
        self.end_all().await;
        let old = self.recorded((stream, number));
        assert!(!old.is_empty() && old.iter().all(GroupRecord::is_closed));
        for id in 1..=3 {
            self.begin(id).await;
        }
        let streamlet = self.served(1, stream, number).await;
        append_all(self.shared(1), &streamlet, 5..10).await;
        drop(streamlet);
        self.end_all().await;
        ((stream, number), old)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_brokers_have_whole_that_a_restored_store_does_not_know_is_served() {
    let mut trio = Trio::start().await;
    let (of, old) = trio.written_twice().await;
    let all = trio.recorded(of);
    assert!(all.len() > old.len());
    trio.put_back(of, &old);
    trio.begin(1).await;
    trio.begin(2).await;
    // It waits for all, since any may have more.
    until(|| trio.reason(1, of).contains("have not started since")).await;
    // This one has its REVISION still, and learns of the restore from the others.
    trio.begin(3).await;
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..10));
    for known in all.iter().filter(|group| group.holds_records()) {
        let now = trio
            .recorded(of)
            .into_iter()
            .find(|g| g.group == known.group);
        let now = now.expect("it is recorded again");
        assert_eq!(now.end_ordinal, known.end_ordinal);
        let holders = |group: &GroupRecord| {
            let mut holders: Vec<_> = group.copies.iter().map(|c| c.broker.0).collect();
            holders.sort_unstable();
            holders
        };
        assert_eq!(holders(&now), holders(known));
    }
    append_all(trio.shared(1), &served, 10..12).await;
    assert_eq!(values(&served).await, expected(0..12));
    assert_eq!(served.head(LANE).expect("a lane").ordinal(), JUMP + 12);
}
