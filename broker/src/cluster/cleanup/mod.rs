//! What a broker does in the background for its streams' copies, from its start to its stop: groups get
//! back the copies that they lack, copies are compared and damaged ones replaced, they move to brokers
//! that hold less, what is lacking is counted, lanes that stand still are told of, backups hear of streams
//! that are gone, and the internal stream is kept by as many brokers as it should.
//!
//! `shortage` counts what is lacking and reports lanes that stand still; `spreading` plans moves of replicas.

pub(crate) mod shortage;
mod spreading;

use std::sync::Arc;
use std::time::Duration;

use kera_replication::jobs::JobConfig;

use crate::cluster::Clustered;
use crate::cluster::replica::deleted_streams;
use crate::coordination;
use crate::shared::Shared;

/// Changes within this time come together.
const TOGETHER: Duration = Duration::from_secs(3);

/// Begins; returns at once.
pub(crate) fn start(shared: &Arc<Shared>, clustered: &Arc<Clustered>) {
    let config = &shared.config.cluster;
    let repairs = clustered.replicated.begin_jobs(JobConfig {
        interval: config.repair_interval,
        bytes_per_second: config.repair_bytes_per_second,
        lost_after: config.lost_after,
        scrub_interval: config.scrub_interval,
        ..JobConfig::default()
    });
    spreading::begin(shared, &repairs);
    let cluster_view = clustered.cluster_view.clone();
    repairs.set_followed(Box::new(move |streamlet| cluster_view.followed(streamlet)));
    let forgetting = forget(shared.clone(), clustered.clone(), config.repair_interval);
    let counting = shortage::count(shared.clone(), clustered.clone(), config.repair_interval);
    let raising = raise(shared.clone(), config.repair_interval);
    let stirring = stir(clustered.clone(), config.repair_interval);
    let watching = shortage::watch(clustered.replicated.clone());
    let mut stopping = shared.stopping.subscribe();
    tokio::spawn(async move {
        // A round may be broken off anywhere.
        tokio::select! {
            () = repairs.clone().run() => {}
            () = repairs.run_scrubs() => {}
            () = forgetting => {}
            () = counting => {}
            () = raising => {}
            () = stirring => {}
            () = watching => {}
            _ = stopping.wait_for(|stop| *stop) => {}
        }
    });
}

/// Has the jobs look for work a moment after brokers or owners have changed, or a new owner has fetched
/// what it had none of: copies may be better elsewhere now, or not needed any more.
async fn stir(clustered: Arc<Clustered>, interval: Duration) {
    let replicated = &clustered.replicated;
    let (mut owners, mut stirs) = (clustered.cluster_view.owners(), replicated.stirs());
    loop {
        let changed = tokio::select! {
            changed = owners.changed() => changed,
            changed = stirs.changed() => changed,
        };
        if changed.is_err() {
            return std::future::pending().await;
        }
        // What comes together is looked at once.
        tokio::time::sleep(TOGETHER.min(interval)).await;
        owners.mark_unchanged();
        stirs.mark_unchanged();
        replicated.ask_jobs();
    }
}

/// Tells backups of deleted streams, hears of those itself, and removes what is left of their own files, at once
/// and then at an interval.
async fn forget(shared: Arc<Shared>, clustered: Arc<Clustered>, interval: Duration) {
    let (replicated, peers) = (&clustered.replicated, &clustered.peers);
    let (forgets, store) = (replicated.forgotten(), peers.backup.store());
    loop {
        forgets
            .sweep(replicated.primary(), store, &shared.metadata)
            .await;
        let known = |stream| shared.data.catalog.get(stream).is_some();
        deleted_streams::catch_up(peers.me, store, &clustered.store, known).await;
        let (removing, streams) = (replicated.clone(), shared.dir.streams());
        let removed = tokio::task::spawn_blocking(move || removing.remove_gone(&streams));
        if let Err(error) = removed.await {
            tracing::error!(%error, "looking for directories of deleted streams failed");
        }
        tokio::select! {
            () = forgets.news() => {}
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// Sees at an interval whether the internal stream, made when there were fewer brokers, can have more copies.
async fn raise(shared: Arc<Shared>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let raising = shared.clone();
        let raised =
            tokio::task::spawn_blocking(move || coordination::raise_copies(&raising)).await;
        match raised {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::info!(%error, "the internal stream did not get more replicas; trying again");
            }
            Err(error) => {
                tracing::error!(%error, "raising the replicas of the internal stream failed")
            }
        }
    }
}
