//! Asking the owners of lanes that this broker does not serve: for news, for where ranges end, and for times.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamId, StreamletId};
use kera_protocol::v1::find_ordinals_request::At;

use super::ask::{self, ASK_WITHIN};
use crate::shared::Shared;

/// How long an owner may wait for news before it answers that there is none.
const NEWS_WAIT: Duration = Duration::from_secs(5);
/// Pause after an owner was not reached.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks owners of lanes that are looked at for news, and for ranges that are waited for.
pub(super) fn tend(shared: &Arc<Shared>) {
    let remote = shared.coordination.remote();
    let (streams, cuts) = remote.wishes();
    for stream in streams {
        for broker in ask::other_owners(shared, stream) {
            if remote.begin_asking(stream, broker) {
                tokio::spawn(follow(shared.clone(), stream, broker));
            }
        }
    }
    for ((lane, from), wish) in cuts {
        let shared = shared.clone();
        tokio::spawn(async move {
            let cut = ask::cut(&shared, lane, from, wish).await;
            shared.coordination.remote().learn_cut((lane, from), cut);
        });
    }
}

/// Where a time is in lanes of other owners.
pub(super) type Times = HashMap<LaneKey, Ordinal>;

/// Asks every other owner of the stream's lanes now where they begin and end, and with a time, where
/// that is. Owners that are not reached in time leave their lanes unknown.
pub(super) async fn refresh(shared: &Arc<Shared>, stream: StreamId, time: Option<u64>) -> Times {
    let remote = shared.coordination.remote();
    let owners = ask::other_owners(shared, stream);
    let asked = owners.into_iter().map(|broker| async move {
        let news = ask::watch(shared, stream, broker, Vec::new(), Duration::ZERO).await;
        let lanes = news.unwrap_or_else(|error| {
            tracing::debug!(%stream, broker, %error, "an owner was not reached");
            Vec::new()
        });
        remote.learn(stream, &ask::streamlets_of(shared, stream, broker), lanes);
        let Some(time) = time else { return Vec::new() };
        let found = ask::find(shared, stream, broker, At::TimestampMs(time)).await;
        found.unwrap_or_else(|error| {
            tracing::debug!(%stream, broker, %error, "a time was not found");
            Vec::new()
        })
    });
    let found = futures::future::join_all(asked).await;
    let found = found.into_iter().flatten().map(|lane| {
        let key = LaneKey {
            stream,
            streamlet: StreamletId(lane.streamlet),
            lane: LaneId(lane.lane),
        };
        (key, lane.cursor.unwrap_or_default().ordinal)
    });
    found.collect()
}

/// Asks one owner for news of a stream, until nobody looks at the stream or the owner has nothing of it.
async fn follow(shared: Arc<Shared>, stream: StreamId, broker: u32) {
    let remote = shared.coordination.remote();
    let mut stopping = shared.stopping.subscribe();
    let owned = || ask::streamlets_of(&shared, stream, broker);
    while let Some(known) = remote.known(stream, &owned()) {
        let news = ask::watch(&shared, stream, broker, known, NEWS_WAIT);
        let answer = tokio::select! {
            answer = news => answer,
            _ = stopping.wait_for(|stop| *stop) => break,
        };
        match answer {
            Ok(lanes) => remote.learn(stream, &owned(), lanes),
            Err(error) => {
                tracing::debug!(%stream, broker, %error, "an owner tells nothing");
                remote.learn(stream, &owned(), Vec::new());
                tokio::time::sleep(PAUSE.min(ASK_WITHIN)).await;
            }
        }
    }
    remote.stop_asking(stream, broker);
}
