//! Certificates that change while the broker runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use super::{ServerTls, files};

/// Looks for changed files every `tls.reload_interval`, until the broker stops.
pub(crate) async fn watch(tls: Arc<ServerTls>, mut stopping: Receiver<bool>) {
    loop {
        tokio::select! {
            () = sleep(tls.settings.reload_interval) => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        let looking = tls.clone();
        if tokio::task::spawn_blocking(move || look(&looking))
            .await
            .is_err()
        {
            tracing::error!(
                "looking for changed certificates has panicked; they change with the next look, or with a restart"
            );
        }
    }
}

fn look(tls: &ServerTls) {
    let contents = match files::read(&tls.settings) {
        Ok(contents) => contents,
        Err(reason) => {
            // It is gone, most likely for long: told once.
            if !tls.is_stale.swap(true, Ordering::Relaxed) {
                warn(&reason);
            }
            return;
        }
    };
    let mut seen = tls.seen.lock();
    if seen.refused.as_ref() == Some(&contents) {
        return;
    }
    if seen.used == contents {
        seen.refused = None;
        tls.is_stale.store(false, Ordering::Relaxed);
        return;
    }
    match files::load(&tls.settings, &contents) {
        Ok(loaded) => {
            tls.use_from_now(loaded);
            (seen.used, seen.refused) = (contents, None);
            tls.is_stale.store(false, Ordering::Relaxed);
            tracing::info!(
                "the files of [tls] have changed: new connections get the new certificate"
            );
        }
        Err(reason) => {
            seen.refused = Some(contents);
            tls.is_stale.store(true, Ordering::Relaxed);
            warn(&reason);
        }
    }
}

fn warn(reason: &str) {
    tracing::warn!(
        "the files of [tls] cannot be used as they are now, the certificate in use stays: {reason}"
    );
}
