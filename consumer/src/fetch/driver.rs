//! The task that connects, waits out pauses, and finds owners.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_protocol::error::ErrorCode;
use kera_rpc::{LOOK_EVERY, Reports};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::refused::Asked;
use super::{After, Fetcher, Sink};

/// Ids of links, so that what a former connection says is not taken for the present one's.
static LAST_LINK: AtomicU64 = AtomicU64::new(0);
/// Shortest time between two looks for owners.
pub(super) const OWNERS_PAUSE: Duration = Duration::from_millis(100);

/// Runs until the fetcher is gone.
pub(super) async fn run(fetcher: Weak<Fetcher>, work: Arc<Notify>) {
    let mut reports = Reports::default();
    loop {
        let Some(strong) = fetcher.upgrade() else {
            return;
        };
        let mut after = After::default();
        let (connect, mut wake) = strong.state.lock().drive(&mut after);
        if let Some(look) = strong.find_copies() {
            wake = Some(wake.map_or(look, |wake| wake.min(look)));
        }
        if let Some(look) = strong.find_owners() {
            wake = Some(wake.map_or(look, |wake| wake.min(look)));
        }
        strong.finish(after);
        if strong.tell_stall(&mut reports) {
            let look = Instant::now() + LOOK_EVERY;
            wake = Some(wake.map_or(look, |wake| wake.min(look)));
        }
        for (address, attempt) in connect {
            tokio::spawn(open(Arc::downgrade(&strong), address, attempt));
        }
        // Whoever waits here must not be the one who keeps it.
        drop(strong);
        match wake {
            Some(at) => {
                let _ = tokio::time::timeout_at(at, work.notified()).await;
            }
            None => work.notified().await,
        }
    }
}

impl Fetcher {
    /// Has brokers asked who holds copies, for sources that would read there. When to call again, if it
    /// is too early.
    fn find_copies(self: &Arc<Self>) -> Option<Instant> {
        let (looks, wake) = self.state.lock().looks(Instant::now());
        for look in looks {
            let (fetcher, client) = (Arc::downgrade(self), self.client.clone());
            let stream = self.stream.clone();
            tokio::spawn(async move {
                let (key, answer) = look.ask(&client, stream).await;
                if let Some(fetcher) = fetcher.upgrade() {
                    let mut after = After::default();
                    fetcher.state.lock().looked(key, answer, &mut after);
                    fetcher.finish(after);
                }
            });
        }
        wake
    }

    /// Has owners of streamlets looked up, if they are not known or may have changed. When to call
    /// again, if it is too early.
    fn find_owners(self: &Arc<Self>) -> Option<Instant> {
        let refresh = {
            let mut state = self.state.lock();
            if state.looking || !(state.refresh || state.lacks_owner()) {
                return None;
            }
            if let Some(at) = state.look_not_before
                && at > Instant::now()
            {
                return Some(at);
            }
            state.looking = true;
            std::mem::take(&mut state.refresh)
        };
        let (fetcher, client, stream) = (
            Arc::downgrade(self),
            self.client.clone(),
            self.stream.clone(),
        );
        tokio::spawn(async move {
            let meta = match refresh {
                true => client.refresh(&stream).await,
                false => client.stream(&stream).await,
            };
            let Some(fetcher) = fetcher.upgrade() else {
                return;
            };
            let mut after = After::default();
            let mut state = fetcher.state.lock();
            state.looking = false;
            let mut pause = OWNERS_PAUSE;
            match meta {
                Ok(meta) => {
                    state.named = Some(Some(meta.id));
                    let owners = meta.owners().iter().map(|owner| owner.as_str().into());
                    state.set_owners(owners.collect(), &mut after);
                }
                Err(error) => {
                    tracing::debug!(stream, %error, "owners of the stream are not known");
                    if error.code() == Some(ErrorCode::UnknownStream) {
                        state.named = Some(None);
                    }
                    state.owners_in_trouble(&error.to_string());
                    state.refresh = true;
                    if state.not_let_in(&fetcher.stream, error, Asked::ForOwners, &mut after) {
                        pause = state.retry.longest;
                    }
                }
            }
            state.look_not_before = Some(Instant::now() + pause);
            drop(state);
            fetcher.finish(after);
            fetcher.work.notify_one();
        });
        None
    }
}

async fn open(fetcher: Weak<Fetcher>, address: Arc<str>, attempt: u32) {
    let Some(strong) = fetcher.upgrade() else {
        return;
    };
    let link = LAST_LINK.fetch_add(1, Ordering::Relaxed) + 1;
    let sink = Arc::new(Sink {
        fetcher: fetcher.clone(),
        address: address.clone(),
        link,
    });
    match strong.client.connect_data(&address, Some(sink)).await {
        Ok(connection) => {
            strong.counts.connects.fetch_add(1, Ordering::Relaxed);
            let mut after = After::default();
            strong
                .state
                .lock()
                .link_up(&address, link, connection.clone(), &mut after);
            strong.finish(after);
            // It may have ended before it was known here.
            if connection.is_closed() {
                let mut after = After::default();
                let why = "the connection was lost at once";
                strong
                    .state
                    .lock()
                    .link_down(&address, link, why, &mut after);
                strong.finish(after);
            }
        }
        Err(error) => {
            tracing::debug!(broker = %address, %error, "consumer cannot connect");
            let mut after = After::default();
            let mut state = strong.state.lock();
            state.link_failed(&address, attempt, &error.to_string());
            state.refresh = true;
            state.not_let_in(&strong.stream, error, Asked::ForData, &mut after);
            drop(state);
            strong.finish(after);
            strong.work.notify_one();
        }
    }
}
