//! The task that connects, waits out pauses, and finds owners.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::{After, Fetcher, Sink};

/// Ids of links, so that what a former connection says is not taken for the present one's.
static LAST_LINK: AtomicU64 = AtomicU64::new(0);
/// Pause after a failed look for owners.
const OWNERS_PAUSE: Duration = Duration::from_millis(200);

/// Runs until the fetcher is gone.
pub(super) async fn run(fetcher: Weak<Fetcher>) {
    loop {
        let Some(strong) = fetcher.upgrade() else {
            return;
        };
        let owners_known = strong.find_owners().await;
        let mut after = After::default();
        let (connect, mut wake) = strong.state.lock().drive(&mut after);
        strong.finish(after);
        for (address, attempt) in connect {
            tokio::spawn(open(Arc::downgrade(&strong), address, attempt));
        }
        if !owners_known {
            let again = Instant::now() + OWNERS_PAUSE;
            wake = Some(wake.map_or(again, |wake| wake.min(again)));
        }
        let work = strong.work.notified();
        match wake {
            Some(at) => {
                let _ = tokio::time::timeout_at(at, work).await;
            }
            None => work.await,
        }
    }
}

impl Fetcher {
    /// Looks up who owns the streamlets, if that is not known. False if that failed.
    async fn find_owners(&self) -> bool {
        let (refresh, lacks) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.refresh), state.lacks_owner())
        };
        if !refresh && !lacks {
            return true;
        }
        let meta = match refresh {
            true => self.client.refresh(&self.stream).await,
            false => self.client.stream(&self.stream).await,
        };
        match meta {
            Ok(meta) => {
                let owners = meta.owners().iter().map(|owner| owner.as_str().into());
                self.state.lock().set_owners(owners.collect());
                true
            }
            Err(error) => {
                tracing::debug!(stream = self.stream, %error, "owners of the stream are not known");
                self.state.lock().refresh = true;
                false
            }
        }
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
                strong.state.lock().link_down(&address, link, &mut after);
                strong.finish(after);
            }
        }
        Err(error) => {
            tracing::debug!(broker = %address, %error, "consumer cannot connect");
            let mut state = strong.state.lock();
            state.link_failed(&address, attempt);
            state.refresh = attempt > 0;
            drop(state);
            strong.work.notify_one();
        }
    }
}
