//! Who is controller: whoever wrote the controller's key first, for as long as its lease holds, or until
//! another broker, which knows it to be gone, writes it over.

use std::sync::Arc;

use super::client::Pauses;
use super::lease::{Held, Keeper, controller_value, is_at};
use super::messages::*;
use super::presence::Presence;

/// Stands for election, for as long as it is polled.
pub(super) async fn stand(keeper: Arc<Keeper>) {
    let mut presence = keeper.boards.presence.subscribe();
    let mut held = keeper.held.subscribe();
    let mut valid = keeper.tenure.subscribe();
    let mut pauses = Pauses::endless();
    loop {
        let seen = presence.borrow_and_update().clone();
        let own = *held.borrow_and_update();
        let alive = *valid.borrow_and_update();
        let term = term(&seen, own, keeper.id).filter(|_| alive);
        keeper.tenure.elected(term);
        let vacant = seen.revision > 0 && seen.controller.is_none();
        if vacant && alive && own.lease != 0 {
            if run(&keeper, own, 0).await {
                pauses = Pauses::endless();
            } else {
                pauses.pause().await;
                // Whoever was faster may not have been seen yet.
                continue;
            }
        }
        // An election won is seen as everybody sees it.
        let changed = tokio::select! {
            changed = presence.changed() => changed,
            changed = held.changed() => changed,
            changed = valid.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The term of this broker, if the one elected is it, under the lease it holds now.
fn term(seen: &Presence, own: Held, id: u32) -> Option<u64> {
    let elected = seen.controller?;
    let mine = elected.broker == id && elected.lease == own.lease && own.lease != 0;
    mine.then_some(elected.term)
}

/// Takes the office from `gone`, whatever its lease, if that one is elected still; true if it was taken.
/// From then on the term of `gone`, which is the key's revision, is over for every transaction.
pub(super) async fn succeed(keeper: &Keeper, gone: u32) -> bool {
    let elected = keeper.boards.presence.borrow().controller;
    let own = *keeper.held.borrow();
    match elected {
        Some(elected) if elected.broker == gone && gone != keeper.id && own.lease != 0 => {
            run(keeper, own, elected.term).await
        }
        _ => false,
    }
}

/// Writes the controller's key if it is as of revision `at` still, 0 for nobody's; true if it was written.
async fn run(keeper: &Keeper, own: Held, at: u64) -> bool {
    let key = keeper.space.controller();
    let request = TxnRequest {
        compare: vec![is_at(key.clone(), at)],
        success: vec![operation(Request::Put(PutRequest {
            key,
            value: controller_value(keeper.id),
            lease: own.lease,
        }))],
        failure: Vec::new(),
    };
    let deadline = keeper.client.deadline();
    match keeper.client.transact(request, deadline).await {
        Ok(answer) => answer.succeeded,
        Err(error) => {
            tracing::debug!(?error, "the election's outcome is unknown");
            false
        }
    }
}
