//! Transactions that partitions hold open and no coordinator knows.

use std::collections::BTreeMap;
use std::time::Duration;

use kera_protocol::v1;
use serde::Serialize;

use crate::output::{Table, count, short_time};

/// What of one producer is lost.
#[derive(Debug, Serialize)]
pub(super) struct LostView {
    /// In place of a state of Kafka's.
    state: &'static str,
    pub(super) producer_id: i64,
    epoch: i32,
    /// Since its producer appended to it last; absent if no broker knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_ms: Option<u64>,
    pub(super) partitions: Vec<LostPartitionView>,
}

#[derive(Debug, Serialize)]
pub(super) struct LostPartitionView {
    stream: String,
    partition: u32,
    streamlet: u32,
    lane: u32,
    owner: u32,
    first_ordinal: u64,
    /// Records that readers of what is committed do not get, for this transaction or another one.
    waiting_records: u64,
}

/// By producer.
pub(super) fn views(lost: &[v1::LostTransaction]) -> Vec<LostView> {
    let mut by_producer: BTreeMap<(i64, i32), LostView> = BTreeMap::new();
    for one in lost {
        let view = by_producer.entry((one.producer, one.epoch));
        let view = view.or_insert_with(|| LostView {
            state: "Lost",
            producer_id: one.producer,
            epoch: one.epoch,
            silent_ms: None,
            partitions: Vec::new(),
        });
        // It is silent since the last append of all.
        let silent_ms = view.silent_ms.into_iter().chain(one.silent_ms);
        view.silent_ms = silent_ms.min();
        let partition = one.partition.clone().unwrap_or_default();
        view.partitions.push(LostPartitionView {
            stream: partition.stream,
            partition: partition.partition,
            streamlet: partition.streamlet,
            lane: partition.lane,
            owner: partition.owner,
            first_ordinal: one.first_ordinal,
            waiting_records: one.waiting_records,
        });
    }
    by_producer.into_values().collect()
}

pub(super) fn table_of(views: &[LostView]) -> Table {
    let mut table = Table::new(&[
        ">producer id",
        ">silent for",
        "stream",
        ">partition",
        ">owner",
        ">first ordinal",
        ">waiting records",
    ])
    .keys(1);
    for view in views {
        let silent = view.silent_ms.map(Duration::from_millis);
        let silent = silent.map_or_else(|| "-".to_owned(), short_time);
        for one in &view.partitions {
            table.row([
                view.producer_id.to_string(),
                silent.clone(),
                one.stream.clone(),
                one.partition.to_string(),
                one.owner.to_string(),
                one.first_ordinal.to_string(),
                count(one.waiting_records),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_by_producer() {
        let lost = |producer, partition, silent_ms| v1::LostTransaction {
            producer,
            epoch: 3,
            partition: Some(v1::TransactionPartition {
                stream: "orders".into(),
                partition,
                streamlet: partition,
                lane: 0,
                owner: 2,
            }),
            first_ordinal: 17,
            waiting_records: 12_345,
            silent_ms,
        };
        let all = [
            lost(9, 0, None),
            lost(7, 1, Some(200_000)),
            lost(7, 4, Some(90_000)),
        ];
        let views = views(&all);
        let table = table_of(&views).render();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["7", "90.00", "s", "orders", "1", "2", "17", "12,345"].to_vec(),
                ["7", "90.00", "s", "orders", "4", "2", "17", "12,345"].to_vec(),
                ["9", "-", "orders", "0", "2", "17", "12,345"].to_vec(),
            ]
        );
        let json = serde_json::to_value(&views).unwrap();
        assert_eq!(json[0]["state"], "Lost");
        assert_eq!(json[0]["partitions"][1]["partition"], 4);
        assert_eq!(json[0]["silent_ms"], 90_000);
        assert!(json[0].get("transactional_id").is_none());
        assert!(json[1].get("silent_ms").is_none());
    }
}
