//! Whose certificates this broker refuses, and what follows where others refuse one.
//!
//! With TLS between brokers each makes a handshake with every other and with itself, at the addresses that they tell,
//! and tells the others in its live record whose certificate it refuses. From these records every broker concludes the
//! same ([`kera_controller::refused`]): the controller takes the streamlets of a refused broker from it, and that one
//! says so itself. Once it has a good certificate, the next handshakes succeed and it owns streamlets again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kera_controller::{Refused, refused};
use kera_metadata::{LiveBroker, Living, MAX_REFUSAL_TEXT, MAX_REFUSALS, MetadataError};
use kera_rpc::stream::{Stream, TlsFailure};
use parking_lot::Mutex;
use rustls::{CertificateError, Error};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::suspicion::{CONNECT_WITHIN, PAUSE};
use crate::clock::wall_ms;
use crate::cluster::Clustered;
use crate::config::TlsListener;
use crate::tls::{ServerTls, not_after};

/// Handshakes in a row that end with a refusal before the others are told.
const REFUSALS: usize = 3;
/// Pause between these.
const QUICK_PAUSE: Duration = Duration::from_millis(250);
/// Pause after a handshake that said nothing, that was refused as before, or whose connection ended at once.
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// A connection is made anew after so long, or when the certificate that was shown on it ends.
const RENEWED_AFTER: Duration = Duration::from_secs(600);
/// Pause before the others are told once more what they could not be told.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Whose certificates this broker refuses, with why.
pub(super) type Refusals = BTreeMap<u32, String>;

/// Where a broker is reached, and with which files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its native address.
    pub(super) address: String,
    /// Where it takes replicas; empty if nowhere.
    replicas: String,
    /// Of its files for TLS, and of this broker's: with others a connection is made anew.
    files: [u32; 2],
}

impl Place {
    pub(super) fn of(live: &LiveBroker, mine: u32) -> Self {
        Self {
            address: live.address.clone(),
            replicas: live.replication_address.clone(),
            files: [live.tls_files, mine],
        }
    }
}

/// How a handshake ended.
enum Shaken {
    /// The certificate is good at the native address; the connection rests until it ends. `everywhere` if it is known to
    /// be good where the broker takes replicas, too.
    Taken {
        stream: Box<Stream>,
        everywhere: bool,
    },
    /// The certificate is refused.
    Refused(String),
    /// The connection ended, or took too long.
    Nothing,
}

/// Refusals of one broker in a row.
#[derive(Default)]
pub(super) struct InARow {
    count: usize,
    since: Option<Instant>,
}

/// Handshakes with the other brokers, and what came of them.
#[derive(Clone)]
pub(super) struct Handshakes {
    tls: Arc<ServerTls>,
    refusals: Arc<watch::Sender<Refusals>>,
    /// Brokers whose certificates were taken since they were last found not to listen. What they hold open goes on, so
    /// there is time: certificates and the files of authorities change one after the other, and each broker looks for
    /// changes at its own moment.
    taken: Arc<Mutex<BTreeSet<u32>>>,
}

impl Handshakes {
    pub(super) fn new(tls: Arc<ServerTls>) -> Self {
        Self {
            tls,
            refusals: Arc::default(),
            taken: Arc::default(),
        }
    }

    /// Nobody listened at the broker's address: its process restarts, and the certificate of the new one counts at once.
    pub(super) fn restarts(&self, id: u32) {
        self.taken.lock().remove(&id);
    }

    /// How long a broker may be refused whose certificate was taken before.
    fn patience(&self) -> Duration {
        2 * self.tls.reload_interval()
    }

    /// Grows when this broker's files change.
    pub(super) fn files(&self) -> watch::Receiver<u32> {
        self.tls.files()
    }

    /// Forgets what came of handshakes with brokers that are gone.
    pub(super) fn retain(&self, is_there: impl Fn(u32) -> bool) {
        self.taken.lock().retain(|id| is_there(*id));
        self.refusals.send_if_modified(|all| {
            let before = all.len();
            all.retain(|id, _| is_there(*id));
            all.len() != before
        });
    }

    /// Makes the handshakes with broker `id` over `connection`, and returns once the connection has ended, with the
    /// pause before the next.
    pub(super) async fn rest(
        &self,
        id: u32,
        connection: TcpStream,
        place: &Place,
        refused: &mut InARow,
    ) -> Duration {
        match self.shake(connection, place).await {
            Shaken::Taken { stream, everywhere } => {
                if everywhere {
                    *refused = InARow::default();
                    self.taken.lock().insert(id);
                    self.refusals
                        .send_if_modified(|all| all.remove(&id).is_some());
                }
                let began = Instant::now();
                hold(&stream).await;
                match began.elapsed() < LONG_PAUSE {
                    true => LONG_PAUSE,
                    false => PAUSE,
                }
            }
            Shaken::Refused(reason) => {
                refused.count += 1;
                let since = *refused.since.get_or_insert_with(Instant::now);
                if refused.count < REFUSALS {
                    return QUICK_PAUSE;
                }
                if self.taken.lock().contains(&id) && since.elapsed() < self.patience() {
                    return LONG_PAUSE.min(self.patience());
                }
                self.refusals.send_if_modified(|all| {
                    let is_news = all.get(&id) != Some(&reason);
                    if is_news {
                        tracing::warn!(broker = id, "its certificate is refused here: {reason}");
                        all.insert(id, reason);
                    }
                    is_news
                });
                LONG_PAUSE
            }
            Shaken::Nothing => LONG_PAUSE,
        }
    }

    async fn shake(&self, connection: TcpStream, place: &Place) -> Shaken {
        let native = async {
            match self.tls.for_brokers(TlsListener::Native) {
                Some(tls) => tls.frames_anew(connection, &place.address).await,
                None => Ok(Stream::Plain(connection)),
            }
        };
        let stream = match timeout(CONNECT_WITHIN, native).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return refusal(&error, &place.address),
            Err(_) => return Shaken::Nothing,
        };
        let mut everywhere = true;
        let of_replicas = self.tls.for_brokers(TlsListener::Cluster);
        if let Some(tls) = of_replicas.filter(|_| !place.replicas.is_empty()) {
            let replicas = async {
                let connection = TcpStream::connect(&place.replicas).await?;
                tls.frames_anew(connection, &place.replicas).await
            };
            match timeout(CONNECT_WITHIN, replicas).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => match refusal(&error, &place.replicas) {
                    Shaken::Refused(reason) => return Shaken::Refused(reason),
                    _ => everywhere = false,
                },
                Err(_) => everywhere = false,
            }
        }
        let stream = Box::new(stream);
        Shaken::Taken { stream, everywhere }
    }
}

/// Returns when the connection has ended, or the certificate of its other end has. Nothing is said on it.
async fn hold(stream: &Stream) {
    let certificate = stream.peer_certificate();
    let end = certificate.as_deref().and_then(not_after);
    let left = end.map_or(RENEWED_AFTER, |end| {
        let end = u64::try_from(end).unwrap_or(0).saturating_mul(1000);
        Duration::from_millis(end.saturating_sub(wall_ms())) + Duration::from_secs(1)
    });
    let ended = async {
        let mut byte = [0];
        loop {
            match stream.try_read(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(1..) => continue,
                Ok(0) | Err(_) => return,
            }
            if stream.ready(tokio::io::Interest::READABLE).await.is_err() {
                return;
            }
        }
    };
    let _ended = timeout(left.min(RENEWED_AFTER), ended).await;
}

/// Whether a handshake ended because the other's certificate is bad.
fn refusal(error: &io::Error, address: &str) -> Shaken {
    let failure = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(TlsFailure {
        error: Error::InvalidCertificate(error),
        ..
    }) = failure
    else {
        return Shaken::Nothing;
    };
    let mut reason = reason(error, address);
    reason.truncate(reason.floor_char_boundary(MAX_REFUSAL_TEXT));
    Shaken::Refused(reason)
}

fn reason(error: &CertificateError, address: &str) -> String {
    use CertificateError as C;
    match error {
        C::UnknownIssuer => {
            "it is signed by an authority that is not in tls.broker_ca of the other brokers".into()
        }
        C::Expired | C::ExpiredContext { .. } => "it has expired".into(),
        C::NotValidYet | C::NotValidYetContext { .. } => "it is not valid yet".into(),
        C::NotValidForName | C::NotValidForNameContext { .. } => {
            format!("it is not for the name in {address}, the address that the broker tells")
        }
        other => other.to_string(),
    }
}

/// Tells the others whose certificates this broker refuses, and that its files have changed, until it stops.
pub(super) async fn publish(
    clustered: Weak<Clustered>,
    handshakes: Handshakes,
    mut stopping: watch::Receiver<bool>,
) {
    let (mut refusals, mut files) = (handshakes.refusals.subscribe(), handshakes.files());
    loop {
        let told: Refusals = {
            let now = refusals.borrow_and_update();
            now.clone().into_iter().take(MAX_REFUSALS).collect()
        };
        let tls_files = *files.borrow_and_update();
        let Some(members) = clustered.upgrade().map(|here| here.members.clone()) else {
            return;
        };
        let telling = tokio::task::spawn_blocking(move || {
            members.describe(|live| {
                live.refuses = told;
                live.tls_files = tls_files;
            })
        });
        let again = match telling.await {
            Ok(Ok(())) => false,
            Ok(Err(MetadataError::Closed)) | Err(_) => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the other brokers do not know yet whose certificates this one refuses");
                true
            }
        };
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            changed = refusals.changed() => if changed.is_err() { return },
            changed = files.changed() => if changed.is_err() { return },
            () = sleep(TELL_AGAIN), if again => {}
        }
    }
}

/// What the log says of brokers whose certificates the others refuse.
pub(super) struct RefusedTold {
    me: u32,
    told: BTreeMap<u32, Refused>,
}

impl RefusedTold {
    pub(super) fn new(me: u32) -> Self {
        Self {
            me,
            told: BTreeMap::new(),
        }
    }

    /// Says what is new.
    pub(super) fn tell(&mut self, living: &Living) {
        let now = refused(living);
        for (id, Refused { by, reason }) in &now {
            if self.told.contains_key(id) {
                continue;
            }
            if *id == self.me {
                tracing::error!(
                    ?by,
                    "the other brokers refuse the certificate of this one: {reason}. They take its streamlets over. Put a certificate into the file of tls.certificate that they take; it is used without a restart, and this broker serves again"
                );
            } else {
                tracing::warn!(
                    broker = id,
                    ?by,
                    "the certificate of the broker is refused: {reason}. Others take its streamlets over"
                );
            }
        }
        for id in self.told.keys().filter(|id| !now.contains_key(id)) {
            match *id == self.me {
                true => tracing::info!("the other brokers take the certificate of this one again"),
                false => tracing::info!(
                    broker = id,
                    "the certificate of the broker is not refused any more"
                ),
            }
        }
        self.told = now;
    }
}
