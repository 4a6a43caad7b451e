//! A process that only keeps copies: no streams, and no address for clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Backup;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::http::{Http, Told};
use crate::{machine, scrape};

/// Copies of other brokers' groups, and nothing else.
pub struct BackupProcess {
    told: Arc<Alone>,
    http: Option<Http>,
}

#[derive(Debug)]
struct Alone {
    backup: Arc<Backup>,
    stopping: AtomicBool,
}

impl Told for Alone {
    fn metrics(&self) -> String {
        scrape::render_backup(&self.backup, self.ready().is_ok())
    }

    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), &'static str> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err("stopping: open copies go to disk");
        }
        Ok(())
    }
}

impl BackupProcess {
    /// Starts it and returns once it serves. Of `config` it takes the number, the address and the
    /// sections `backup` and `http`; directories are derived from the data directory, which is not
    /// used otherwise.
    ///
    /// # Errors
    /// [`BrokerError`] says what stands in the way and what to do.
    pub async fn start(config: &BrokerConfig) -> Result<Self, BrokerError> {
        // Before the store, which reads and seals what it finds: probes are to see a process that lives.
        let http = match &config.http.listen {
            Some(address) => Some(Http::start(address, &config.http).await?),
            None => None,
        };
        let backup = Backup::start(config, false).await?;
        let backup = backup.ok_or(BrokerError::NoNumber)?;
        machine::report(&machine::Needs::of_backup());
        let told = Arc::new(Alone {
            backup,
            stopping: AtomicBool::new(false),
        });
        if let Some(http) = &http {
            http.recovered(told.clone());
        }
        Ok(Self { told, http })
    }

    /// The copies.
    pub fn backup(&self) -> &Backup {
        &self.told.backup
    }

    /// The address of metrics and health, if they are served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::local_addr)
    }

    /// Stops: what open copies hold goes to disk.
    pub async fn shutdown(self) {
        self.told.stopping.store(true, Ordering::Relaxed);
        self.told.backup.stop().await;
        if let Some(http) = self.http {
            http.end().await;
        }
    }
}
