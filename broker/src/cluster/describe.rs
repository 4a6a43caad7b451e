//! What a broker tells of itself among others: the copies it keeps, and its peers as it sees them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use kera_protocol::v1;
use kera_replication::ids::BrokerId;
use kera_replication::transport::{Description, Reply, Request};

use super::Clustered;
use super::peers::{Peer, Peers};
use super::replica::backup::Backup;
use super::replica::replicated::Replicated;
use super::replica::transports::transports;
use crate::config::BrokerConfig;

/// How long a peer may take to say that it is there.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// This broker among others, as of now: every peer is asked, all at the same time.
pub async fn describe(clustered: &Clustered, config: &BrokerConfig) -> v1::ClusterDescription {
    let cluster = &clustered.peers;
    let peers = cluster.peers();
    let peers = peers.iter().map(|peer| describe_peer(cluster, peer));
    let mut states = transports(config);
    if let Some(reason) = cluster.backup.without_cards() {
        let cards = states.iter_mut().find(|one| one.used && one.name != "tcp");
        if let Some(cards) = cards {
            cards.unusable = Some(format!("others reach this broker over TCP: {reason}"));
        }
    }
    v1::ClusterDescription {
        host: cluster.host.clone(),
        listen: cluster.backup.local_addr().to_string(),
        allow_same_host: cluster.allow_same_host,
        transports: states
            .into_iter()
            .map(|state| v1::TransportDescription {
                name: state.name,
                used: state.used,
                unusable: state.unusable.unwrap_or_default(),
                by: state.by,
            })
            .collect(),
        backup: Some(describe_backup(&cluster.backup)),
        peers: join_all(peers).await,
        background: Some(describe_background(&clustered.replicated)),
    }
}

fn describe_background(replicated: &Replicated) -> v1::BackgroundDescription {
    let (stats, spreading) = (replicated.job_stats(), replicated.spreading());
    let missing = replicated.missing();
    let at: BTreeSet<_> = missing.values().flatten().map(|broker| broker.0).collect();
    let ms = |ago: Duration| ago.as_millis() as u64;
    v1::BackgroundDescription {
        round_ended_ms: stats.round_ended.map(ms),
        rounds: stats.rounds,
        wanting: stats.wanting,
        built: stats.built,
        built_bytes: stats.bytes,
        shifted: stats.shifted,
        surplus: stats.surplus,
        to_place: spreading.waiting_copies(),
        to_place_bytes: spreading.waiting_bytes(),
        failed: stats.failed,
        scrub_ended_ms: stats.scrub_ended.map(ms),
        scrubbed: stats.scrubbed,
        scrubbed_bytes: stats.scrubbed_bytes,
        harmed: stats.damaged + stats.missing + stats.differing,
        mended: stats.mended,
        unsound: stats.unsound,
        scrub_streamlets: stats.scrub_streamlets,
        scrub_done: stats.scrub_done,
        scrub_whole_ms: stats.scrub_whole.map(ms),
        missing: missing.len() as u64,
        missing_at: at.into_iter().collect(),
    }
}

fn describe_backup(backup: &Backup) -> v1::BackupStoreDescription {
    let (options, server) = (backup.options(), backup.server());
    let incarnation = backup.store().incarnation();
    let stats = backup.store().stats();
    v1::BackupStoreDescription {
        store_id: incarnation.store_id.into_bytes().to_vec().into(),
        boot_id: incarnation.boot_id.into_bytes().to_vec().into(),
        shared_dir: options.shared_dir.display().to_string(),
        disk_dir: options.disk_dir.display().to_string(),
        memory_bytes: stats.memory_bytes,
        memory_used_bytes: stats.memory_used_bytes,
        copies_open: stats.copies_open,
        copies_sealed: stats.copies_sealed,
        copies_flushed: stats.copies_flushed,
        received_bytes: server.received_bytes(),
        primaries: backup.primaries() as u32,
        refusals: stats.refused_no_room + stats.refused_sealed + stats.refused_other,
    }
}

async fn describe_peer(cluster: &Peers, peer: &Peer) -> v1::PeerDescription {
    let id = BrokerId(peer.id);
    let (answer, unreachable) = match ask(cluster, id).await {
        Ok(description) => (Some(description), String::new()),
        Err(reason) => (None, reason),
    };
    let traffic = cluster.primary.traffic(id);
    let down = cluster.primary.down_for(id);
    let (store_id, boot_id) = match &answer {
        Some(answer) => (
            answer.incarnation.store_id.into_bytes().to_vec().into(),
            answer.incarnation.boot_id.into_bytes().to_vec().into(),
        ),
        None => Default::default(),
    };
    v1::PeerDescription {
        id: peer.id,
        address: peer.address.clone(),
        host: peer.host.clone(),
        same_host: cluster.primary.placement().same_host(cluster.me, id),
        unreachable,
        down_ms: down.map(|time| time.as_millis() as u64),
        shipped_bytes: traffic.shipped_bytes,
        in_flight_bytes: traffic.in_flight_bytes,
        lag_bytes: traffic.lag_bytes,
        open_groups: traffic.open_groups,
        lost_copies: traffic.lost_copies,
        store_id,
        boot_id,
        free_bytes: answer.map_or(0, |answer| answer.free_bytes),
    }
}

/// Asks a peer who it is; an error says why there is no answer.
async fn ask(cluster: &Peers, peer: BrokerId) -> Result<Description, String> {
    let call = cluster.primary.transport().call(peer, Request::Describe);
    match tokio::time::timeout(ANSWER_WITHIN, call).await {
        Ok(Ok(Reply::Description(description))) => Ok(description),
        Ok(Ok(_)) => Err("the program at this address is no replica store".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
    }
}
