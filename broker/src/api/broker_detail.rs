//! One broker: moves, drains, disks, background work; and its settings.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use serde::Serialize;

use super::snapshot::Snapshot;
use super::views::BrokerRow;
use crate::admin::calls::describe::broker_description;
use crate::clock::now_ms;
use crate::config::KEYS;
use crate::others;
use crate::shared::Shared;

/// How long another broker has to describe itself: it asks its peers first, for a second at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Peers that are told.
const PEERS: usize = 200;

#[derive(Serialize)]
pub(super) struct BrokerDetail {
    taken_ms: u64,
    #[serde(flatten)]
    row: BrokerRow,
    /// None of what follows where it does not answer.
    data_dir: Option<String>,
    io_engine: Option<String>,
    pid: Option<u32>,
    groups: Option<u64>,
    recovery_ms: Option<u64>,
    changed_settings: Vec<ChangedSetting>,
    troubles: Vec<Trouble>,
    troubles_total: u64,
    replica_store: Option<ReplicaStore>,
    peers: Vec<Peer>,
    background: Option<Background>,
    transports: Vec<Transport>,
}

#[derive(Serialize)]
struct ChangedSetting {
    name: String,
    value: String,
    configured: String,
    of_all: bool,
}

#[derive(Serialize)]
struct Trouble {
    stream: String,
    streamlet: u32,
    lane: Option<u32>,
    reason: String,
    lasted_ms: Option<u64>,
}

#[derive(Serialize)]
struct ReplicaStore {
    disk_dir: String,
    memory_bytes: u64,
    memory_used_bytes: u64,
    copies_open: u64,
    copies_sealed: u64,
    copies_flushed: u64,
    received_bytes: u64,
    refusals: u64,
}

#[derive(Serialize)]
struct Peer {
    broker_id: u32,
    address: String,
    unreachable: Option<String>,
    down_ms: Option<u64>,
    shipped_bytes: u64,
    in_flight_bytes: u64,
    lag_bytes: u64,
    open_groups: u64,
    lost_copies: u64,
    free_bytes: u64,
}

#[derive(Serialize)]
struct Background {
    round_ended_ms: Option<u64>,
    wanting: u64,
    built: u64,
    built_bytes: u64,
    to_place: u64,
    to_place_bytes: u64,
    failed: u64,
    scrubbed: u64,
    scrubbed_bytes: u64,
    scrub_streamlets: u64,
    scrub_done: u64,
    harmed: u64,
    mended: u64,
    unsound: u64,
    missing: u64,
}

#[derive(Serialize)]
struct Transport {
    name: String,
    used: bool,
    unusable: Option<String>,
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// What a broker says of itself.
pub(super) async fn describe(
    shared: &Arc<Shared>,
    id: u32,
    snapshot: &Snapshot,
) -> Result<BrokerDetail, WireError> {
    let row = snapshot.brokers.iter().find(|row| row.broker_id == id);
    let mut row = row.cloned().ok_or_else(|| {
        let text = format!("there is no broker {id}; `/api/v1/brokers` lists them");
        WireError::new(ErrorCode::InvalidArgument, text)
    })?;
    let told = match id == shared.data.directory.me() {
        true => Ok(broker_description(shared).await),
        false => ask(shared, id).await,
    };
    let (told, answers) = match told {
        Ok(told) => (told, true),
        Err(error) => {
            // What is known of it without its answer is told all the same.
            row.silent.get_or_insert(error.message);
            (v1::DescribeBrokerResponse::default(), false)
        }
    };
    let cluster = told.cluster.unwrap_or_default();
    Ok(BrokerDetail {
        taken_ms: now_ms(),
        row,
        data_dir: answers.then_some(told.data_dir),
        io_engine: answers.then_some(told.io_engine),
        pid: answers.then_some(told.pid),
        groups: answers.then_some(told.groups),
        recovery_ms: answers.then_some(told.recovery_ms),
        changed_settings: told.settings.into_iter().map(changed).collect(),
        troubles: told.troubles.into_iter().map(trouble).collect(),
        troubles_total: told.troubles_total,
        replica_store: cluster.backup.map(replica_store),
        peers: cluster.peers.into_iter().take(PEERS).map(peer).collect(),
        background: cluster.background.map(background),
        transports: cluster
            .transports
            .into_iter()
            .map(|one| Transport {
                name: one.name,
                used: one.used,
                unusable: some(one.unusable),
            })
            .collect(),
    })
}

async fn ask(shared: &Arc<Shared>, id: u32) -> Result<v1::DescribeBrokerResponse, WireError> {
    let mut stub = others::streams(shared, id)?;
    let call = stub.describe_broker(v1::DescribeBrokerRequest {});
    others::answer(id, ANSWER_WITHIN, call).await
}

fn changed(one: v1::ChangedSetting) -> ChangedSetting {
    ChangedSetting {
        name: one.name,
        value: one.value,
        configured: one.configured,
        of_all: one.of_all,
    }
}

fn trouble(one: v1::Trouble) -> Trouble {
    Trouble {
        stream: one.stream,
        streamlet: one.streamlet,
        lane: one.lane,
        reason: one.reason,
        lasted_ms: one.lasted_ms,
    }
}

fn replica_store(told: v1::BackupStoreDescription) -> ReplicaStore {
    ReplicaStore {
        disk_dir: told.disk_dir,
        memory_bytes: told.memory_bytes,
        memory_used_bytes: told.memory_used_bytes,
        copies_open: told.copies_open,
        copies_sealed: told.copies_sealed,
        copies_flushed: told.copies_flushed,
        received_bytes: told.received_bytes,
        refusals: told.refusals,
    }
}

fn peer(told: v1::PeerDescription) -> Peer {
    Peer {
        broker_id: told.id,
        address: told.address,
        unreachable: some(told.unreachable),
        down_ms: told.down_ms,
        shipped_bytes: told.shipped_bytes,
        in_flight_bytes: told.in_flight_bytes,
        lag_bytes: told.lag_bytes,
        open_groups: told.open_groups,
        lost_copies: told.lost_copies,
        free_bytes: told.free_bytes,
    }
}

fn background(told: v1::BackgroundDescription) -> Background {
    Background {
        round_ended_ms: told.round_ended_ms,
        wanting: told.wanting,
        built: told.built,
        built_bytes: told.built_bytes,
        to_place: told.to_place,
        to_place_bytes: told.to_place_bytes,
        failed: told.failed,
        scrubbed: told.scrubbed,
        scrubbed_bytes: told.scrubbed_bytes,
        scrub_streamlets: told.scrub_streamlets,
        scrub_done: told.scrub_done,
        harmed: told.harmed,
        mended: told.mended,
        unsound: told.unsound,
        missing: told.missing,
    }
}

#[derive(Serialize)]
pub(super) struct SettingsView {
    broker_id: u32,
    items: Vec<Setting>,
}

#[derive(Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    default: &'static str,
    /// What the broker was started with, if it was changed since.
    configured: Option<String>,
    meaning: String,
}

/// The settings of the broker that is asked.
pub(super) fn settings(shared: &Shared) -> SettingsView {
    let now = shared.live();
    let setting = |key: &'static crate::config::Key| {
        let (value, configured) = (key.value_in(&now), key.value_in(&shared.config));
        Setting {
            name: key.name,
            configured: (configured != value).then_some(configured),
            value,
            default: key.default,
            meaning: key.paragraph(),
        }
    };
    SettingsView {
        broker_id: shared.data.directory.me(),
        items: KEYS.iter().map(setting).collect(),
    }
}
