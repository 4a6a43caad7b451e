//! Has the metadata store confirm the rules of access that this broker knows.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::sleep;

use super::age::Age;
use crate::shared::Shared;

/// Asks the metadata store for the rules from time to time, if they have a greatest age, until the broker stops.
pub(crate) fn keep_confirmed(shared: Weak<Shared>) {
    let every = shared.upgrade().and_then(|shared| {
        let age = shared.access.age.as_ref()?;
        Some((age.look_every(), shared.stopping.subscribe()))
    });
    let Some((every, mut stopping)) = every else {
        return;
    };
    tokio::spawn(async move {
        let mut pause = every;
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let asked = tokio::task::spawn_blocking(move || {
                let asked = shared.access.asks();
                match shared.metadata.rules() {
                    Ok(record) => shared.access.confirm(&record, asked),
                    Err(error) => {
                        tracing::debug!(%error, "the rules of access are not confirmed");
                        return true;
                    }
                }
                !shared.access.age.as_ref().is_some_and(Age::is_over)
            });
            match asked.await {
                // An answer that took longer than the rules count confirms nothing: ask again at once.
                Ok(rests) => pause = if rests { every } else { Duration::ZERO },
                Err(error) => {
                    tracing::error!(%error, "asking for the rules of access failed");
                    pause = every;
                }
            }
        }
    });
}
