//! Groups as `kera group` shows them.

use std::time::Duration;

use kera_protocol::slices::SliceSet;
use kera_protocol::v1;
use serde::Serialize;

use super::held::HeldView;
use crate::output::{Table, count, lag, plural, short_time};

/// The kind of a group of Kafka's clients.
pub(super) const KAFKA: &str = "kafka";
/// The type of groups of Kafka's consumer protocol.
const CONSUMER: &str = "consumer";
/// The type of share groups.
const SHARE: &str = "share";

#[derive(Serialize)]
pub(super) struct SummaryView {
    pub(super) group: String,
    /// `native` or `kafka`.
    pub(super) kind: &'static str,
    /// Empty for Kafka groups.
    pub(super) stream: String,
    /// Absent for Kafka groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<&'static str>,
    /// Only of Kafka groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    /// The protocol of a Kafka group's members: `classic`, `consumer` or `share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kafka_type: Option<String>,
    /// Streams with committed offsets, only of Kafka groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) streams: Vec<StreamView>,
    pub(super) members: u32,
    pub(super) leases: u32,
    pub(super) lag: u64,
    /// Lanes or partitions whose owners have not told where they end: the lag lacks theirs.
    pub(super) unknown_lanes: u32,
}

#[derive(Serialize)]
pub(super) struct StreamView {
    pub(super) stream: String,
    pub(super) lag: u64,
    pub(super) unknown_lanes: u32,
}

impl SummaryView {
    pub(super) fn new(summary: &v1::GroupSummary) -> Self {
        let kafka = summary.kind() == v1::GroupKind::Kafka;
        let order = match summary.order() {
            v1::Order::Lane => "lane",
            v1::Order::None => "none",
            v1::Order::Key => "key",
        };
        let streams = summary.streams.iter();
        Self {
            group: summary.group.clone(),
            kind: if kafka { KAFKA } else { "native" },
            stream: summary.stream.clone(),
            order: (!kafka).then_some(order),
            state: kafka.then(|| summary.state.clone()),
            // Brokers of earlier versions know one kind.
            kafka_type: kafka.then(|| match summary.kafka_type.as_str() {
                "" => "classic".to_owned(),
                known => known.to_owned(),
            }),
            streams: streams
                .map(|s| StreamView {
                    stream: s.stream.clone(),
                    lag: s.lag,
                    unknown_lanes: s.unknown_lanes,
                })
                .collect(),
            members: summary.members,
            leases: summary.leases,
            lag: summary.lag,
            unknown_lanes: summary.unknown_lanes,
        }
    }

    /// The lag, for people.
    pub(super) fn lag_shown(&self) -> String {
        lag(self.lag, self.unknown_lanes.into())
    }

    /// The stream, or the first few of several.
    pub(super) fn streams_shown(&self) -> String {
        const SHOWN: usize = 3;
        if self.kind != KAFKA {
            // A broker does not name a stream that the user may not see.
            return match self.stream.as_str() {
                "" => "-".to_owned(),
                name => name.to_owned(),
            };
        }
        let names: Vec<&str> = self.streams.iter().map(|s| s.stream.as_str()).collect();
        match names.len() {
            0 => "-".into(),
            1..=SHOWN => names.join(", "),
            all => format!("{} and {} more", names[..SHOWN].join(", "), all - SHOWN),
        }
    }
}

#[derive(Serialize)]
pub(super) struct DescriptionView {
    #[serde(flatten)]
    pub(super) summary: SummaryView,
    /// Only of Kafka groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i32>,
    /// How the members divide the work, only of Kafka groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    member_descriptions: Vec<MemberView>,
    pub(super) lanes: Vec<LaneView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) partitions: Vec<PartitionView>,
}

impl DescriptionView {
    pub(super) fn new(answer: &v1::DescribeGroupResponse) -> Self {
        let summary = SummaryView::new(&answer.summary.clone().unwrap_or_default());
        let kafka = summary.kind == KAFKA;
        let kafka_type = summary.kafka_type.as_deref();
        let members = answer.members.iter();
        Self {
            generation: kafka.then_some(answer.generation),
            protocol: kafka.then(|| answer.protocol.clone()),
            member_descriptions: members
                .map(|m| MemberView::new(m, kafka, kafka_type))
                .collect(),
            lanes: answer.lanes.iter().map(LaneView::new).collect(),
            partitions: answer.partitions.iter().map(PartitionView::new).collect(),
            summary,
        }
    }

    fn is_consumer(&self) -> bool {
        self.summary.kafka_type.as_deref() == Some(CONSUMER)
    }

    fn is_share(&self) -> bool {
        self.summary.kafka_type.as_deref() == Some(SHARE)
    }

    pub(super) fn headline(&self) -> String {
        let summary = &self.summary;
        let lag = match (summary.lag, summary.unknown_lanes) {
            (lag, 0) => format!("lag {}", count(lag)),
            (0, _) => "lag not known".to_owned(),
            (lag, _) => format!("lag at least {}", count(lag)),
        };
        match (&summary.state, summary.order) {
            (Some(state), _) if self.is_consumer() => format!(
                "{}: Kafka clients, consumer protocol, assignor {}, {state}, epoch {}, {lag}",
                summary.group,
                self.protocol.as_deref().unwrap_or("-"),
                self.generation.unwrap_or_default(),
            ),
            (Some(state), _) if self.is_share() => format!(
                "{}: Kafka clients, share group, {state}, epoch {}, {lag}",
                summary.group,
                self.generation.unwrap_or_default(),
            ),
            (Some(state), _) => format!(
                "{}: Kafka clients, {state}, generation {}, {lag}",
                summary.group,
                self.generation.unwrap_or_default(),
            ),
            (None, order) => format!(
                "{}: stream {}, order {}, {lag}",
                summary.group,
                summary.streams_shown(),
                order.unwrap_or("-"),
            ),
        }
    }

    /// What is not known, for people; `None` if all is.
    pub(super) fn not_known(&self) -> Option<String> {
        let lanes = match (self.summary.unknown_lanes, self.summary.kind) {
            (0, _) => return None,
            (many, KAFKA) => plural(many.into(), "partition"),
            (many, _) => plural(many.into(), "lane"),
        };
        Some(format!(
            "of {lanes} it is not known where they end: their owners have not told, or are away; see `kera cluster status`"
        ))
    }

    /// `None` without members.
    pub(super) fn members_table(&self) -> Option<Table> {
        if self.member_descriptions.is_empty() {
            return None;
        }
        let kafka = self.summary.kind == KAFKA;
        let (consumer, share) = (self.is_consumer(), self.is_share());
        let mut table = if consumer {
            Table::new(&[
                "member",
                "client",
                "host",
                ">epoch",
                ">partitions",
                ">to give back",
                ">last heartbeat",
            ])
        } else if share {
            Table::new(&[
                "member",
                "client",
                "host",
                ">epoch",
                ">partitions",
                ">last heartbeat",
            ])
        } else if kafka {
            Table::new(&["member", "client", "host", ">partitions", ">last heartbeat"])
        } else {
            Table::new(&["member", "client", ">leases", ">last heartbeat"])
        };
        for member in &self.member_descriptions {
            let ago = Duration::from_millis(member.last_heartbeat_ms_ago);
            let ago = format!("{} ago", short_time(ago));
            let (name, client) = (member.member.clone(), member.client.clone());
            if kafka {
                let host = member.host.clone().unwrap_or_default();
                let partitions = member.partitions.unwrap_or_default().to_string();
                let told = |number: Option<i64>| number.unwrap_or_default().to_string();
                if consumer {
                    let (epoch, back) = (told(member.epoch), told(member.revoking));
                    table.row([name, client, host, epoch, partitions, back, ago]);
                } else if share {
                    let epoch = told(member.epoch);
                    table.row([name, client, host, epoch, partitions, ago]);
                } else {
                    table.row([name, client, host, partitions, ago]);
                }
            } else {
                table.row([name, client, member.leases.to_string(), ago]);
            }
        }
        Some(table)
    }
}

#[derive(Serialize)]
struct MemberView {
    member: String,
    client: String,
    leases: u32,
    last_heartbeat_ms_ago: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// The name of a static member.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<u32>,
    /// Only of the consumer protocol and of share groups. What it is to give back is of the consumer protocol alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoking: Option<i64>,
}

impl MemberView {
    fn new(member: &v1::MemberDescription, kafka: bool, kafka_type: Option<&str>) -> Self {
        let consumer = kafka_type == Some(CONSUMER);
        let has_epoch = consumer || kafka_type == Some(SHARE);
        Self {
            member: member.member.clone(),
            client: member.client.clone(),
            leases: member.leases,
            last_heartbeat_ms_ago: member.last_heartbeat_ms_ago,
            host: kafka.then(|| member.host.clone()),
            instance: (!member.instance.is_empty()).then(|| member.instance.clone()),
            partitions: kafka.then_some(member.partitions),
            epoch: has_epoch.then_some(member.epoch.into()),
            revoking: consumer.then_some(member.revoking.into()),
        }
    }
}

#[derive(Serialize)]
pub(super) struct LaneView {
    pub(super) streamlet: u32,
    pub(super) lane: u32,
    committed: u64,
    finished_above: u64,
    /// Null, and so is the lag: the owner has not told where the lane ends.
    head_ordinal: Option<u64>,
    lag: Option<u64>,
    leases: Vec<LeaseView>,
    /// What transactions commit that have not ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) held: Vec<HeldView>,
}

#[derive(Serialize)]
struct LeaseView {
    lease: u64,
    member: String,
    start_ordinal: u64,
    /// 0: the lane from the start on.
    end_ordinal: u64,
    /// Only where the order of keys is kept: the slices of the lane, as ranges,
    #[serde(skip_serializing_if = "Option::is_none")]
    slices: Option<String>,
    /// and up to where they are consumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    committed: Option<u64>,
}

impl LeaseView {
    fn new(lease: &v1::HeldLease) -> Self {
        let slices = SliceSet::from_bits(lease.slices);
        Self {
            lease: lease.lease,
            member: lease.member.clone(),
            start_ordinal: lease.start_ordinal,
            end_ordinal: lease.end_ordinal,
            slices: (!slices.is_empty()).then(|| slices.to_string()),
            committed: (!slices.is_empty()).then_some(lease.committed),
        }
    }
}

impl LaneView {
    pub(super) fn new(lane: &v1::LaneProgress) -> Self {
        Self {
            streamlet: lane.streamlet,
            lane: lane.lane,
            committed: lane.committed,
            finished_above: lane.finished_above,
            head_ordinal: (!lane.head_unknown).then_some(lane.head_ordinal),
            lag: (!lane.head_unknown).then_some(lane.lag),
            leases: lane.leases.iter().map(LeaseView::new).collect(),
            held: lane.held.iter().map(HeldView::new).collect(),
        }
    }
}

/// A number, or that it is not known.
fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), count)
}

pub(super) fn lanes_table(lanes: &[LaneView]) -> Table {
    let mut table = Table::new(&[
        ">streamlet",
        ">lane",
        ">committed",
        ">finished above",
        ">head",
        ">lag",
        ">leases",
    ])
    .keys(2);
    for lane in lanes {
        table.row([
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            count(lane.committed),
            count(lane.finished_above),
            known(lane.head_ordinal),
            known(lane.lag),
            lane.leases.len().to_string(),
        ]);
    }
    table
}

/// Who has which slices of lanes; `None` where nobody has any, or the order of keys is not kept.
pub(super) fn slices_table(lanes: &[LaneView]) -> Option<Table> {
    let mut table = Table::new(&[
        ">streamlet",
        ">lane",
        ">lease",
        ">committed",
        "member",
        "slices",
    ])
    .keys(2);
    let mut any = false;
    for (lane, lease) in lanes
        .iter()
        .flat_map(|lane| lane.leases.iter().map(move |lease| (lane, lease)))
    {
        let Some(slices) = &lease.slices else {
            continue;
        };
        any = true;
        table.row([
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            lease.lease.to_string(),
            known(lease.committed),
            lease.member.clone(),
            slices.clone(),
        ]);
    }
    any.then_some(table)
}

#[derive(Serialize)]
pub(super) struct PartitionView {
    stream: String,
    partition: u32,
    /// Null: nothing is committed yet.
    committed: Option<u64>,
    /// Null, and so is the lag: the owner has not told where the partition ends.
    head_ordinal: Option<u64>,
    lag: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    member: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    metadata: String,
}

impl PartitionView {
    pub(super) fn new(partition: &v1::PartitionProgress) -> Self {
        Self {
            stream: partition.stream.clone(),
            partition: partition.partition,
            committed: partition.committed,
            head_ordinal: (!partition.head_unknown).then_some(partition.head_ordinal),
            lag: (!partition.head_unknown).then_some(partition.lag),
            member: partition.member.clone(),
            metadata: partition.metadata.clone(),
        }
    }
}

pub(super) fn partitions_table(partitions: &[PartitionView]) -> Table {
    let mut table = Table::new(&[
        "stream",
        ">partition",
        ">committed",
        ">head",
        ">lag",
        "member",
    ])
    .keys(2);
    for partition in partitions {
        table.row([
            partition.stream.clone(),
            partition.partition.to_string(),
            known(partition.committed),
            known(partition.head_ordinal),
            // Without a commit there is none.
            known(partition.committed.and(partition.lag)),
            if partition.member.is_empty() {
                "-".into()
            } else {
                partition.member.clone()
            },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kafka_group_shows_what_it_has_and_no_more() {
        let stream = |name: &str, lag| v1::StreamLag {
            stream: name.into(),
            lag,
            unknown_lanes: 0,
        };
        let answer = v1::DescribeGroupResponse {
            summary: Some(v1::GroupSummary {
                group: "g".into(),
                members: 1,
                lag: 7,
                kind: v1::GroupKind::Kafka as i32,
                state: "Stable".into(),
                streams: ["a", "b", "c", "d"].map(|name| stream(name, 1)).into(),
                ..v1::GroupSummary::default()
            }),
            members: vec![v1::MemberDescription {
                member: "m-1".into(),
                host: "127.0.0.1".into(),
                partitions: 2,
                ..v1::MemberDescription::default()
            }],
            partitions: vec![v1::PartitionProgress {
                stream: "a".into(),
                partition: 3,
                head_ordinal: 9,
                ..v1::PartitionProgress::default()
            }],
            generation: 4,
            ..v1::DescribeGroupResponse::default()
        };
        let view = DescriptionView::new(&answer);
        assert_eq!(
            view.headline(),
            "g: Kafka clients, Stable, generation 4, lag 7"
        );
        assert_eq!(view.summary.streams_shown(), "a, b, c and 1 more");
        let members = view.members_table().unwrap().render();
        assert!(members.contains("127.0.0.1"), "{members}");
        let partitions = partitions_table(&view.partitions).render();
        let row: Vec<&str> = partitions
            .lines()
            .last()
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(row, ["a", "3", "-", "9", "-", "-"]);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["kind"], "kafka");
        assert_eq!(json["state"], "Stable");
        assert!(json.get("order").is_none());
        assert!(json["partitions"][0]["committed"].is_null());
    }

    #[test]
    fn a_group_of_the_consumer_protocol_tells_its_epochs() {
        let answer = v1::DescribeGroupResponse {
            summary: Some(v1::GroupSummary {
                group: "g".into(),
                kind: v1::GroupKind::Kafka as i32,
                state: "Reconciling".into(),
                kafka_type: "consumer".into(),
                ..v1::GroupSummary::default()
            }),
            members: vec![v1::MemberDescription {
                member: "m-1".into(),
                partitions: 2,
                epoch: 8,
                revoking: 3,
                ..v1::MemberDescription::default()
            }],
            generation: 9,
            protocol: "uniform".into(),
            ..v1::DescribeGroupResponse::default()
        };
        let view = DescriptionView::new(&answer);
        assert_eq!(
            view.headline(),
            "g: Kafka clients, consumer protocol, assignor uniform, Reconciling, epoch 9, lag 0"
        );
        let members = view.members_table().unwrap().render();
        let row: Vec<&str> = members.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row[1..4], ["8", "2", "3"], "{members}");
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["kafka_type"], "consumer");
        assert_eq!(json["member_descriptions"][0]["epoch"], 8);
    }

    #[test]
    fn what_is_not_known_is_not_said_to_be_nothing() {
        let lane = |lane, lag, head_unknown| v1::LaneProgress {
            lane,
            committed: 5,
            head_ordinal: lag,
            lag,
            head_unknown,
            ..v1::LaneProgress::default()
        };
        let mut answer = v1::DescribeGroupResponse {
            summary: Some(v1::GroupSummary {
                group: "g".into(),
                stream: "s".into(),
                lag: 1_200,
                unknown_lanes: 1,
                ..v1::GroupSummary::default()
            }),
            lanes: vec![lane(0, 1_200, false), lane(1, 0, true)],
            ..v1::DescribeGroupResponse::default()
        };
        let view = DescriptionView::new(&answer);
        assert_eq!(
            view.headline(),
            "g: stream s, order lane, lag at least 1,200"
        );
        assert_eq!(view.summary.lag_shown(), "1,200+");
        let told = view.not_known().expect("one lane is not known");
        assert!(told.starts_with("of 1 lane "), "{told}");
        let table = lanes_table(&view.lanes).render();
        let row: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["0", "1", "5", "0", "-", "-", "0"]);
        let json = serde_json::to_value(&view).unwrap();
        assert!(json["lanes"][1]["head_ordinal"].is_null() && json["lanes"][1]["lag"].is_null());
        assert_eq!(json["lanes"][0]["lag"], 1_200);

        let summary = answer.summary.as_mut().expect("it is there");
        (summary.lag, summary.kind) = (0, v1::GroupKind::Kafka as i32);
        answer.partitions.push(v1::PartitionProgress {
            stream: "s".into(),
            committed: Some(4),
            head_unknown: true,
            ..v1::PartitionProgress::default()
        });
        let view = DescriptionView::new(&answer);
        assert!(
            view.headline().ends_with("lag not known"),
            "{}",
            view.headline()
        );
        let table = partitions_table(&view.partitions).render();
        let row: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["s", "0", "4", "-", "-", "-"]);
    }

    #[test]
    fn a_group_that_keeps_the_order_of_keys_tells_who_has_which_slices() {
        let lease = |lease, slices, committed| v1::HeldLease {
            lease,
            member: format!("m-{lease}"),
            slices,
            committed,
            ..v1::HeldLease::default()
        };
        let lane = LaneView::new(&v1::LaneProgress {
            lane: 1,
            leases: vec![lease(7, 0xffff, 1_200), lease(8, 1 << 40, 30)],
            ..v1::LaneProgress::default()
        });
        let lanes = [lane];
        let table = slices_table(&lanes).expect("leases").render();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[rows.len() - 2],
            ["0", "1", "7", "1,200", "m-7", "0-15"]
        );
        assert_eq!(rows[rows.len() - 1], ["0", "1", "8", "30", "m-8", "40"]);
        let json = serde_json::to_value(&lanes[0]).unwrap();
        assert_eq!(json["leases"][0]["slices"], "0-15");
        let others = LaneView::new(&v1::LaneProgress {
            leases: vec![lease(9, 0, 0)],
            ..v1::LaneProgress::default()
        });
        assert!(slices_table(&[others]).is_none());
    }

    #[test]
    fn a_native_group_looks_as_ever() {
        let summary = v1::GroupSummary {
            group: "g".into(),
            stream: "s".into(),
            ..v1::GroupSummary::default()
        };
        let json = serde_json::to_value(SummaryView::new(&summary)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "group": "g", "kind": "native", "stream": "s", "order": "lane",
                "members": 0, "leases": 0, "lag": 0, "unknown_lanes": 0
            })
        );
    }
}
