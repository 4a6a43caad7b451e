//! A broker that is about to stop gives what it owns to others first, so that nobody has to wait for its
//! lease to end.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kera_controller::{Move, farewell};
use kera_metadata::LiveState;
use kera_protocol::error::WireError;
use tokio::time::Instant;

use super::ownership;
use crate::admin;
use crate::shared::Shared;

/// Streamlets handed over side by side.
const AT_ONCE: usize = 8;
/// Rounds over what is left: a target may be gone by the time of its turn.
const ROUNDS: usize = 3;

/// Hands over every streamlet that another broker can own, for at most `within`. What is left then is
/// taken over by others once this broker is gone, or waits for it.
pub(crate) async fn hand_over_all(shared: &Arc<Shared>, within: Duration) {
    if shared.store.is_none() || within.is_zero() {
        return;
    }
    let begun = Instant::now();
    if let Err(error) = admin::clusters::set_state(shared, LiveState::Draining).await {
        // Without its store nothing can be handed over.
        tracing::warn!(%error, "stopping without handing streamlets over");
        return;
    }
    let handing = async {
        let mut handed_over = 0;
        for _ in 0..ROUNDS {
            let moves = planned(shared);
            if moves.is_empty() {
                break;
            }
            handed_over += hand_over(shared, moves).await;
        }
        handed_over
    };
    match tokio::time::timeout(within, handing).await {
        Ok(0) => {}
        Ok(streamlets) => tracing::info!(
            streamlets,
            ms = begun.elapsed().as_millis() as u64,
            "handed over to other brokers"
        ),
        Err(_) => tracing::warn!(
            left = planned(shared).len(),
            "stopping before everything was handed over; others take over once this broker is gone"
        ),
    }
}

/// What is left to hand over, and to whom.
fn planned(shared: &Shared) -> Vec<Move> {
    let Ok(members) = admin::clusters::members(shared) else {
        return Vec::new();
    };
    let me = shared.broker_id;
    let moves = shared
        .pictured
        .read(|picture| farewell(picture, &members, me));
    moves.unwrap_or_default()
}

/// How many of `moves` were made.
async fn hand_over(shared: &Arc<Shared>, moves: Vec<Move>) -> usize {
    let made = futures::stream::iter(moves).map(|one| {
        let shared = shared.clone();
        async move {
            let outcome = ownership::hand_over(&shared, one.stream, one.streamlet, one.to).await;
            if let Err(WireError { message, .. }) = &outcome {
                tracing::warn!(stream = %one.stream, streamlet = one.streamlet.0, to = one.to, message, "not handed over");
            }
            outcome.is_ok()
        }
    });
    let made = made.buffer_unordered(AT_ONCE);
    made.filter(|ok| std::future::ready(*ok)).count().await
}
