//! What others change in the shared store, as it comes: streams, their settings and their owners. And who
//! of the others is alive.

use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{BrokerRecord, Changes, Image, Key, Living, MetadataError, Record};
use kera_protocol::ids::StreamId;
use tokio::sync::watch;

use super::owners::{self, News};
use crate::access;
use crate::cluster::Clustered;
use crate::shared::Shared;
use crate::store_dir::StoreDir;

/// Pause before the store is read anew, after it could not be.
const PAUSE: Duration = Duration::from_millis(500);
/// How often streamlets are looked for that were given up here and are this broker's still.
const LOOK: Duration = Duration::from_secs(1);

/// Begins to follow the store; returns at once. The brokers that are alive are known when it returns.
pub(crate) fn start(shared: &Arc<Shared>, clustered: &Arc<Clustered>) {
    let seen = clustered.ownership.seen();
    tokio::spawn(follow_records(shared.clone(), clustered.clone()));
    tokio::spawn(owners::keep_up(shared.clone(), seen));
    tokio::spawn(look_for_own(shared.clone(), clustered.clone()));
    access::keep_confirmed(Arc::downgrade(shared));
    let mut living = clustered.store.living();
    let clustered = clustered.clone();
    let look = move |living: &mut watch::Receiver<Living>| {
        if clustered.peers.follow(&living.borrow_and_update()) {
            clustered.replicated.stirred();
        }
    };
    look(&mut living);
    let mut stopping = shared.stopping.subscribe();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                changed = living.changed() => if changed.is_err() { return },
                _ = stopping.wait_for(|stop| *stop) => return,
            }
            look(&mut living);
        }
    });
}

/// Remembers in the data directory which brokers share the store. May wait for the disk.
pub(crate) fn remember<'a>(dir: &StoreDir, brokers: impl IntoIterator<Item = &'a BrokerRecord>) {
    if let Err(error) = dir.keep_brokers(brokers) {
        tracing::warn!(%error, "the brokers of the cluster cannot be remembered in the data directory: should the metadata store be put back to an older state, this broker does not wait for those that were added since");
    }
}

async fn look_for_own(shared: Arc<Shared>, clustered: Arc<Clustered>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        off_runtime(&shared, &clustered, owners::take_again).await;
    }
}

async fn follow_records(shared: Arc<Shared>, clustered: Arc<Clustered>) {
    let store = &clustered.store;
    let mut seen = *clustered.ownership.seen().borrow();
    let mut stopping = shared.stopping.subscribe();
    loop {
        let watched = async {
            let mut changes = store.watch(seen);
            while let Some(watched) = changes.recv().await {
                match watched {
                    Ok(told) => {
                        seen = told.revision.max(seen);
                        off_runtime(&shared, &clustered, |shared, clustered| {
                            apply(shared, clustered, told);
                        })
                        .await;
                    }
                    Err(lost) => {
                        tracing::info!(%lost, "reading the metadata store anew");
                        break;
                    }
                }
            }
        };
        tokio::select! {
            () = watched => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        loop {
            let loading = store.clone();
            let loaded = tokio::task::spawn_blocking(move || loading.load()).await;
            match loaded {
                Ok(Ok(image)) if image.revision >= seen => {
                    seen = image.revision;
                    off_runtime(&shared, &clustered, |shared, clustered| {
                        apply_all(shared, clustered, image);
                    })
                    .await;
                    break;
                }
                Ok(Ok(image)) => {
                    let found = image.revision;
                    tracing::warn!(
                        seen,
                        found,
                        "the metadata store is older than what was seen of it; it is not believed"
                    );
                }
                Ok(Err(MetadataError::Closed)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the metadata store cannot be read; trying again");
                }
                Err(error) => tracing::error!(%error, "reading the metadata store failed"),
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
        }
    }
}

/// Runs what waits for disk and store.
async fn off_runtime(
    shared: &Arc<Shared>,
    clustered: &Arc<Clustered>,
    work: impl FnOnce(&Arc<Shared>, &Arc<Clustered>) + Send + 'static,
) {
    let (shared, clustered) = (shared.clone(), clustered.clone());
    if let Err(error) = tokio::task::spawn_blocking(move || work(&shared, &clustered)).await {
        tracing::error!(%error, "following the metadata store failed");
    }
}

/// Applies the changes of whole transactions, one after the other.
fn apply(shared: &Arc<Shared>, clustered: &Arc<Clustered>, told: Changes) {
    let ownership = &clustered.ownership;
    clustered.cluster_view.apply(&told.changes);
    for of_one in told.changes.chunk_by(|a, b| a.revision == b.revision) {
        let mut news = News::default();
        for change in of_one {
            match (&change.key, &change.record) {
                (_, Some(Record::Stream(record))) => news.streams.push(record.clone()),
                (_, Some(Record::Streamlet(record))) => news.streamlets.push(record.clone()),
                (_, Some(Record::Settings(record))) => shared.take_settings(record.clone()),
                (_, Some(Record::Rules(record))) => shared.access.take(record),
                (_, Some(Record::Users(record))) => shared.auth.take(record),
                (_, Some(Record::Quotas(record))) => shared.quotas.take(record),
                (_, Some(Record::Broker(record))) => remember(&shared.dir, [record]),
                (Key::Stream(id), None) => news.deleted.push(*id),
                _ => {}
            }
        }
        let revision = of_one.last().map_or(0, |change| change.revision);
        ownership.apply(shared, clustered, revision, news);
    }
    ownership.saw(clustered, told.revision);
}

/// Applies everything that is recorded, after changes may have been missed: not what another cluster has
/// recorded, or this one had once, which would say that streams are gone.
pub(crate) fn apply_all(shared: &Arc<Shared>, clustered: &Arc<Clustered>, image: Image) {
    let ownership = &clustered.ownership;
    let (seen, mine) = (*ownership.seen().borrow(), clustered.cluster_view.cluster());
    if image.revision < seen || mine.is_some_and(|mine| mine != image.cluster) {
        tracing::warn!(
            seen,
            found = image.revision,
            cluster = %image.cluster,
            "what was read is not of this cluster, or older than what was seen of it; it is not believed"
        );
        return;
    }
    clustered.cluster_view.load(&image);
    remember(&shared.dir, &image.brokers);
    shared.take_all_settings(&image);
    if let Some(rules) = &image.rules {
        shared.access.take(rules);
    }
    if let Some(users) = &image.users {
        shared.auth.take(users);
    }
    if let Some(quotas) = &image.quotas {
        shared.quotas.take(quotas);
    }
    let known = shared.data.catalog.all();
    let there = |id: StreamId| image.streams.binary_search_by_key(&id, |s| s.id).is_ok();
    // One that was created here after the image was read is not in it, and is not gone.
    let older = known
        .iter()
        .filter(|stream| stream.record.load().revision <= image.revision);
    let gone = older.map(|stream| stream.id());
    let deleted: Vec<_> = gone.filter(|id| !there(*id)).collect();
    let news = News {
        streams: image.streams,
        streamlets: image.streamlets,
        deleted,
    };
    ownership.apply(shared, clustered, image.revision, news);
}
