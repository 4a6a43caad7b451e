//! Follows what changes in a range of etcd's keys, over lost connections and restarts.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::Streaming;

use super::client::{CallError, Client, Pass, Pauses};
use super::messages::*;

/// What following a range yields: the events of whole transactions, in order, with the revision up
/// to which there were no others; or why changes may have been missed, and then no more.
pub(super) type Followed = Result<(Vec<Event>, u64), String>;

/// How far a range was followed.
struct Seen {
    /// Revision of the last event that was sent on. A member that lags behind repeats older ones.
    told: u64,
    /// Revision up to which there are no others: where to go on.
    quiet: u64,
}

/// Sends every event in `range` after the revision `after`, until nobody listens or events were lost.
pub(super) async fn follow(
    client: Arc<Client>,
    range: (Vec<u8>, Vec<u8>),
    after: u64,
    listener: mpsc::Sender<Followed>,
) {
    let mut seen = Seen {
        told: after,
        quiet: after,
    };
    let mut pauses = Pauses::endless();
    loop {
        let opened = tokio::select! {
            opened = open(&client, &range, seen.quiet) => opened,
            () = listener.closed() => return,
        };
        match opened {
            Ok((number, stream)) => {
                let before = seen.quiet;
                match drain(&client, number, stream, &mut seen, &listener).await {
                    Ended::Nobody => return,
                    Ended::Lost(detail) => {
                        let _ = listener.send(Err(detail)).await;
                        return;
                    }
                    Ended::Broken(detail) => {
                        tracing::debug!(%detail, after = seen.quiet, "etcd's watch ended; it is opened again");
                        client.lost(number);
                    }
                }
                if seen.quiet > before {
                    pauses = Pauses::endless();
                }
            }
            Err(CallError::Refused(_, detail)) => {
                let _ = listener.send(Err(detail)).await;
                return;
            }
            Err(CallError::NotSent(detail) | CallError::Lost(detail)) => {
                tracing::debug!(%detail, after = seen.quiet, "etcd's watch cannot be opened yet");
            }
        }
        tokio::select! {
            _ = pauses.pause() => {}
            () = listener.closed() => return,
        }
    }
}

async fn open(
    client: &Client,
    range: &(Vec<u8>, Vec<u8>),
    after: u64,
) -> Result<(u64, Streaming<WatchResponse>), CallError> {
    let create = WatchRequest {
        union: Some(WatchUnion::Create(WatchCreateRequest {
            key: range.0.clone(),
            range_end: range.1.clone(),
            start_revision: after as i64 + 1,
            progress_notify: true,
        })),
    };
    // The stream of requests stays open: its end would be the watch's.
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let deadline = client.deadline();
    client.open(WATCH, Pass::New, requests, deadline).await
}

enum Ended {
    Nobody,
    Lost(String),
    Broken(String),
}

async fn drain(
    client: &Client,
    number: u64,
    mut stream: Streaming<WatchResponse>,
    seen: &mut Seen,
    listener: &mpsc::Sender<Followed>,
) -> Ended {
    // Until then it may be somebody else's.
    let mut confirmed = false;
    loop {
        let next = tokio::select! {
            next = stream.message() => next,
            () = listener.closed() => return Ended::Nobody,
        };
        let response = match next {
            Ok(Some(response)) => response,
            Ok(None) => return Ended::Broken("it ended".into()),
            Err(status) => return Ended::Broken(status.message().to_owned()),
        };
        if response.compact_revision > 0 {
            return Ended::Lost(format!(
                "etcd has forgotten the changes before revision {}",
                response.compact_revision
            ));
        }
        if response.canceled {
            // Such as by a member that lost its leader.
            return Ended::Broken(response.cancel_reason);
        }
        if !confirmed {
            if let Err(error) = client.confirm(number).await {
                return Ended::Broken(format!("it is not known whose it is: {error:?}"));
            }
            confirmed = true;
        }
        if let Err(stranger) = client.identity().judge_events(&response.events) {
            return Ended::Lost(stranger.to_string());
        }
        let mut events = response.events;
        let revision_of = |event: &Event| event.kv.as_ref().map_or(0, KeyValue::revision);
        let told = seen.told;
        events.retain(|event| revision_of(event) > told);
        if let Some(last) = events.last() {
            seen.told = revision_of(last);
            seen.quiet = seen.quiet.max(seen.told);
        } else if !response.created {
            // An answer without events tells how far there were none; the first one does not.
            seen.quiet = seen.quiet.max(revision(&response.header));
        } else {
            continue;
        }
        client.identity().saw(seen.quiet);
        if listener.send(Ok((events, seen.quiet))).await.is_err() {
            return Ended::Nobody;
        }
    }
}
