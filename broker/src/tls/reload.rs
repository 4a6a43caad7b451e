//! Certificates that change while the broker runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::sleep;

use super::{ServerTls, files};

/// Looks for changed files every `tls.reload_interval` and calls `changed` when others are in use. Tells of the end
/// of the certificate in use. Does not end by itself.
pub(crate) async fn watch(tls: Arc<ServerTls>, changed: impl Fn(&ServerTls)) {
    loop {
        sleep(tls.settings.reload_interval).await;
        let looking = tls.clone();
        match tokio::task::spawn_blocking(move || look(&looking)).await {
            Ok(true) => changed(&tls),
            Ok(false) => {}
            Err(_) => tracing::error!(
                "looking for changed certificates has panicked; they change with the next look, or with a restart"
            ),
        }
        tls.tell_of_end();
    }
}

/// True if the files have changed and are in use from now on.
fn look(tls: &ServerTls) -> bool {
    let contents = match files::read(&tls.settings) {
        Ok(contents) => contents,
        Err(reason) => {
            // It is gone, most likely for long: told once.
            if !tls.is_stale.swap(true, Ordering::Relaxed) {
                warn(&reason);
            }
            return false;
        }
    };
    let mut seen = tls.seen.lock();
    if seen.refused.as_ref() == Some(&contents) {
        return false;
    }
    if seen.used == contents {
        seen.refused = None;
        tls.is_stale.store(false, Ordering::Relaxed);
        return false;
    }
    match files::load(&tls.settings, &tls.named, &contents) {
        Ok(loaded) => {
            tls.use_from_now(loaded, contents.checksum());
            (seen.used, seen.refused) = (contents, None);
            tls.is_stale.store(false, Ordering::Relaxed);
            tracing::info!(
                "the files of [tls] have changed: new connections get the new certificate"
            );
            true
        }
        Err(reason) => {
            seen.refused = Some(contents);
            tls.is_stale.store(true, Ordering::Relaxed);
            warn(&reason);
            false
        }
    }
}

fn warn(reason: &str) {
    tracing::warn!(
        "the files of [tls] cannot be used as they are now, the certificate in use stays: {reason}"
    );
}
