//! TLS at the listeners: handshakes, and certificates that change while the broker runs.

mod end;
mod files;
mod handshake;
mod reload;
mod subject;
mod validity;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use kera_replication::seldom::Seldom;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::audit::Audit;
use crate::clock::wall_ms;
use crate::config::{BrokerConfig, ClientAuth, Entrance, TlsConfig, TlsListener};
use crate::error::BrokerError;
use crate::metrics::{Counter, Family, Labels};
use crate::unheard::Unheard;
use end::EndTold;
use files::{Configs, Loaded};

use kera_rpc::tls::ClientTls;

pub use kera_rpc::stream::Stream;
pub(crate) use kera_rpc::stream::{FRAMES, HTTP1, HTTP2};
pub(crate) use reload::watch;
pub(crate) use subject::principal_of;
pub(crate) use validity::not_after;

/// The first bytes of a TLS connection: a handshake record of TLS 1.
const CLIENT_HELLO: [u8; 2] = [0x16, 0x03];

/// True if a connection begins like one of TLS.
pub fn is_client_hello(first: &[u8]) -> bool {
    first.starts_with(&CLIENT_HELLO)
}

/// What was read of the files.
struct Seen {
    /// That what is in use was made of.
    used: files::Contents,
    /// That was read since and cannot be used.
    refused: Option<files::Contents>,
}

/// What the TLS listeners of a broker share.
pub struct ServerTls {
    settings: TlsConfig,
    /// The addresses with a name that have TLS, and whether clients need a certificate there.
    named: Vec<(Entrance, ClientAuth)>,
    /// Other brokers come to the native address, and this one to theirs, with TLS.
    calls_brokers: bool,
    current: ArcSwap<Configs>,
    seen: Mutex<Seen>,
    /// Another number when the files in use are others.
    files: watch::Sender<u32>,
    /// When the certificate in use ends, seconds since 1970.
    not_after: AtomicI64,
    /// What the log says of that end.
    end_told: EndTold,
    /// The files have changed, and what they have now cannot be used.
    is_stale: AtomicBool,
    /// Handshakes under way: the oldest makes room where there are too many.
    under_way: Unheard,
    under_way_count: AtomicUsize,
    /// Where what they hold counts.
    unheard: Arc<Unheard>,
    /// Handshakes that came to an end.
    pub(crate) completed: Counter,
    /// Those that failed, by why.
    pub(crate) failed: Family<Labels, Counter>,
    /// The common name in the broker's certificate, as it was at the start.
    name: Option<String>,
    /// Proofs of who a client is, by mechanism and result.
    pub(crate) authentications: Family<Labels, Counter>,
    /// Those that failed, as the log tells of them.
    told: Mutex<Seldom>,
    audit: Arc<Audit>,
}

impl ServerTls {
    /// As configured; `None` if no listener has TLS. Reads files. What handshakes hold is held in `unheard`.
    ///
    /// # Errors
    /// [`BrokerError::Tls`] names the file that cannot be used.
    pub(crate) fn open(
        config: &BrokerConfig,
        audit: &Arc<Audit>,
        unheard: &Arc<Unheard>,
    ) -> Result<Option<Arc<Self>>, BrokerError> {
        if !config.has_tls() {
            return Ok(None);
        }
        let (settings, named) = (&config.tls, config.named_entrances());
        let contents = files::read(settings).map_err(BrokerError::Tls)?;
        let loaded = files::load(settings, &named, &contents).map_err(BrokerError::Tls)?;
        let tls = Self {
            settings: settings.clone(),
            named,
            calls_brokers: config.security_of_brokers().has_tls,
            not_after: AtomicI64::new(loaded.not_after),
            name: loaded.name,
            files: watch::Sender::new(contents.checksum()),
            current: ArcSwap::from_pointee(loaded.configs),
            seen: Mutex::new(Seen {
                used: contents,
                refused: None,
            }),
            end_told: EndTold::default(),
            is_stale: AtomicBool::new(false),
            under_way: Unheard::default(),
            under_way_count: AtomicUsize::new(0),
            unheard: unheard.clone(),
            completed: Counter::default(),
            failed: handshake::failures(),
            authentications: handshake::authentications(),
            told: Mutex::default(),
            audit: audit.clone(),
        };
        tls.tell_of_end();
        Ok(Some(Arc::new(tls)))
    }

    /// True if connections to `listener` begin with a TLS handshake, those of other brokers where it has several addresses.
    pub fn serves(&self, listener: TlsListener) -> bool {
        match listener {
            TlsListener::Native => self.calls_brokers,
            other => self.settings.listeners.contains(&other),
        }
    }

    /// How listeners of this kind at other brokers are reached, which have TLS if this one has. Changes with the files.
    pub(crate) fn for_brokers(&self, at: TlsListener) -> Option<ClientTls> {
        match self.serves(at) {
            true => self.current.load().brokers.clone(),
            false => None,
        }
    }

    /// Whom other brokers take this one for.
    pub(crate) fn own_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// When the certificate in use ends, seconds since 1970.
    pub(crate) fn not_after(&self) -> i64 {
        self.not_after.load(Ordering::Relaxed)
    }

    /// True while the files hold something newer that cannot be used.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// How often each broker looks whether its files have changed, if all are told the same.
    pub(crate) fn reload_interval(&self) -> Duration {
        self.settings.reload_interval
    }

    /// Another number when the files in use are others.
    pub(crate) fn files(&self) -> watch::Receiver<u32> {
        self.files.subscribe()
    }

    fn use_from_now(&self, loaded: Loaded, checksum: u32) {
        self.not_after.store(loaded.not_after, Ordering::Relaxed);
        self.current.store(Arc::new(loaded.configs));
        self.files.send_replace(checksum);
    }

    /// Tells the log that the certificate in use ends, or has ended, if it does not say so yet.
    fn tell_of_end(&self) {
        if let Some(file) = &self.settings.certificate {
            let now = i64::try_from(wall_ms() / 1000).unwrap_or(i64::MAX);
            self.end_told.tell(file, self.not_after(), now);
        }
    }

    /// How many failures were not told since the last that was, if one may be told now.
    fn may_tell(&self) -> Option<u64> {
        self.told.lock().due(Instant::now())
    }
}
