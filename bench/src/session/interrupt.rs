//! SIGINT and SIGTERM end a session in good order: brokers are stopped, data is removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// Whether someone wants the session to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    wanted: Arc<AtomicBool>,
}

impl Interrupt {
    /// Watches for signals from now on.
    pub(crate) fn watch() -> Result<Self> {
        let interrupt = Self::default();
        let wanted = interrupt.wanted.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut signals = {
            let _within = runtime.enter();
            (
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            )
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = signals.0.recv() => {}
                    _ = signals.1.recv() => {}
                }
            });
            wanted.store(true, Ordering::Relaxed);
        });
        Ok(interrupt)
    }

    /// An error once a signal came.
    pub(crate) fn check(&self) -> Result<()> {
        if self.wanted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}
