//! Records that are copied from one topic to another by transactions, and what becomes of them when brokers are killed.

use serde_json::json;

use super::records::{NewRecord, Read};
use super::session::Session;
use super::until;

/// Partitions of both topics.
pub const PARTITIONS: [i32; 2] = [0, 1];

/// A copy under way.
pub struct Copying<'a> {
    pub client: &'a mut Session,
    pub from: &'a str,
    pub to: &'a str,
    pub group: &'a str,
    /// Where the two partitions end.
    pub ends: [i64; 2],
}

/// Sends the records up to `total`, and tells where the partitions end then.
pub fn fill(client: &mut Session, topic: &str, total: usize) -> [i64; 2] {
    client.producer("source", json!({}));
    let mut ends = [0; 2];
    for first in (0..total).step_by(50) {
        for place in client.send("source", topic, &records(first..first + 50)) {
            let end = &mut ends[place.partition as usize];
            *end = (place.offset + 1).max(*end);
        }
    }
    assert_eq!(ends[0] + ends[1], total as i64);
    ends
}

/// Polls without records after which another instance begins.
const QUIET: u32 = 40;

/// Where in the steps of a transaction something may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// All is sent, and nothing is decided.
    BeforeCommit,
    /// It is decided; markers may be missing.
    AfterCommit,
}

/// The records `ids`, each with its number for key and value.
pub fn records(ids: std::ops::Range<usize>) -> Vec<NewRecord> {
    let one = |n: usize| NewRecord::new(&n.to_string(), &n.to_string());
    ids.map(one).collect()
}

/// Reads both partitions from their beginning until there are `count` records, and a while more; sorted.
pub fn read(client: &mut Session, name: &str, topic: &str, count: usize) -> Vec<String> {
    client.consumer(name, json!({"isolation": "read_committed"}));
    client.assign(name, topic, &PARTITIONS, json!("beginning"));
    let mut seen = Vec::new();
    go_on(client, name, count, &mut seen);
    seen
}

/// Reads on until there are `count` records in all, and a while more; sorted.
pub fn go_on(client: &mut Session, name: &str, count: usize, seen: &mut Vec<String>) {
    let mut quiet = 0;
    until("records that count", || {
        let polled = client.try_poll(name, 200).ok()?;
        quiet = match polled.records.is_empty() && seen.len() >= count {
            true => quiet + 1,
            false => 0,
        };
        seen.extend(polled.records.iter().map(Read::text));
        (quiet == 3).then_some(())
    });
    seen.sort_by_key(|text| text.parse::<usize>().unwrap_or(usize::MAX));
}

impl Copying<'_> {
    /// Copies everything there is, a poll's records with each transaction, and the offsets with them. `fault` is called
    /// at each moment of each transaction. Whatever fails, another instance of the producer goes on where the last
    /// committed transaction ended.
    pub fn run(&mut self, mut fault: impl FnMut(Moment)) {
        let mut life = 0;
        until("everything is copied", || {
            life += 1;
            self.life(life, &mut fault)
        });
    }

    fn life(&mut self, life: u32, fault: &mut impl FnMut(Moment)) -> Option<()> {
        let (producer, consumer) = (format!("p{life}"), format!("c{life}"));
        let id = format!("{}-copier", self.from);
        let settings = json!({
            "transactional_id": id, "transaction_ms": 10_000, "linger_ms": 2,
            "max_block_ms": 20_000,
        });
        self.client.producer(&producer, settings);
        let begun = self.client.try_transaction("init_transactions", &producer);
        begun.ok()?;
        let settings = json!({
            "group": self.group, "session_ms": 6_000, "isolation": "read_committed",
        });
        self.client.consumer(&consumer, settings);
        let copied = self.copy(&producer, &consumer, fault);
        self.client.close_consumer(&consumer);
        copied
    }

    fn copy(
        &mut self,
        producer: &str,
        consumer: &str,
        fault: &mut impl FnMut(Moment),
    ) -> Option<()> {
        // Where the last committed transaction ended.
        let places = self.client.try_committed(consumer, self.from, &PARTITIONS);
        let places = places.ok()?;
        for partition in PARTITIONS {
            let place = places.iter().find(|place| place.partition == partition);
            let mut at = place.map_or(0, |place| place.offset);
            self.client
                .assign(consumer, self.from, &[partition], json!(at));
            let mut quiet = 0;
            while at < self.ends[partition as usize] {
                let polled = self.client.try_poll(consumer, 500).ok()?;
                let Some(next) = polled.records.iter().map(|r| r.offset + 1).max() else {
                    quiet += 1;
                    if quiet == QUIET {
                        return None;
                    }
                    continue;
                };
                quiet = 0;
                let copies: Vec<NewRecord> = polled
                    .records
                    .iter()
                    .map(|r| NewRecord::new(&r.text(), &r.text()))
                    .collect();
                let begun = self.client.try_transaction("begin_transaction", producer);
                begun.ok()?;
                let sent = self.client.try_send(producer, self.to, &copies);
                sent.into_iter().collect::<Result<Vec<_>, _>>().ok()?;
                let offsets = [(partition, next)];
                let sent = self
                    .client
                    .try_send_offsets(producer, consumer, self.from, &offsets);
                sent.ok()?;
                fault(Moment::BeforeCommit);
                let ended = self.client.try_transaction("commit_transaction", producer);
                fault(Moment::AfterCommit);
                ended.ok()?;
                at = next;
            }
        }
        Some(())
    }
}
