//! The beginning of a TLS connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_rpc::stream::{Stream, TlsFailure};
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{ServerTls, principal_of};
use crate::audit::Peer;
use crate::config::{Entrance, ListenerName, TlsListener, Via};
use crate::metrics::{Counter, Family, Labels};
use crate::principal::Principal;
use crate::unheard::{Among, Strange};

/// How a client proves who it is by a certificate, among the mechanisms.
const CERTIFICATE: &str = "certificate";
/// Handshakes under way at a time. Each may hold 64 KiB of what the peer has sent, which counts among what strangers hold.
const MOST_UNDER_WAY: usize = 512;

/// Why a handshake failed, as the metric says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The client's certificate has ended, or has not begun.
    Expired,
    /// An authority has signed it that is not known here.
    UnknownAuthority,
    /// The client has none, and has to have one.
    NoCertificate,
    /// Its certificate is wrong in another way.
    BadCertificate,
    /// The client does not take the broker's.
    BrokerRefused,
    /// The client does not speak TLS.
    NoTls,
    /// It took too long, or made room for others.
    Late,
    /// The client went away.
    Gone,
    Other,
}

impl Failure {
    const ALL: [Self; 9] = [
        Self::Expired,
        Self::UnknownAuthority,
        Self::NoCertificate,
        Self::BadCertificate,
        Self::BrokerRefused,
        Self::NoTls,
        Self::Late,
        Self::Gone,
        Self::Other,
    ];

    fn labels(self) -> Labels {
        let reason = match self {
            Self::Expired => "expired",
            Self::UnknownAuthority => "unknown_authority",
            Self::NoCertificate => "no_certificate",
            Self::BadCertificate => "bad_certificate",
            Self::BrokerRefused => "broker_refused",
            Self::NoTls => "no_tls",
            Self::Late => "late",
            Self::Gone => "gone",
            Self::Other => "other",
        };
        vec![("reason", reason.to_owned())]
    }

    /// What `error` in a handshake is.
    fn of(error: &Error) -> Self {
        use AlertDescription as A;
        use CertificateError as C;
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(
                C::Expired
                | C::ExpiredContext { .. }
                | C::NotValidYet
                | C::NotValidYetContext { .. },
            ) => Self::Expired,
            // By another key of the same name, as that of an authority that was made anew.
            Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => Self::UnknownAuthority,
            Error::InvalidCertificate(_) => Self::BadCertificate,
            Error::AlertReceived(
                A::UnknownCA
                | A::BadCertificate
                | A::CertificateExpired
                | A::CertificateUnknown
                | A::CertificateRevoked
                | A::UnsupportedCertificate
                | A::DecryptError
                | A::AccessDenied,
            ) => Self::BrokerRefused,
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NoTls,
            _ => Self::Other,
        }
    }
}

/// A handshake that is under way.
struct UnderWay<'a> {
    tls: &'a ServerTls,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.tls.under_way.leave(self.number);
        self.tls.under_way_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServerTls {
    /// Does the handshake of a connection that comes in by `entrance`, for at most `within`. A peer that
    /// takes long makes room for others where many handshakes are under way, first one of the address that has most.
    ///
    /// # Errors
    /// The socket's, or what was wrong with the handshake.
    pub async fn accept(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        entrance: impl Into<Entrance>,
        within: Duration,
    ) -> io::Result<Stream> {
        let entrance = entrance.into();
        let listener = entrance.listener;
        let (number, wanted) = self
            .under_way
            .enter(peer.ip().into(), listener.kind().into());
        let before = self.under_way_count.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay { tls: self, number };
        if before >= MOST_UNDER_WAY {
            self.under_way.end_oldest(Among::All);
        }
        let config = self.current.load().of(&entrance);
        let config = config.ok_or_else(|| {
            io::Error::other("there is no TLS here, as of brokers without tls.broker_ca")
        })?;
        let (strange, room) = Strange::enter(&self.unheard, peer.ip().into());
        let handshake = Stream::accept_noting(socket, config, |bytes| strange.holds(bytes));
        let outcome = tokio::select! {
            outcome = timeout(within, handshake) => outcome,
            () = wanted.wait() => {
                self.note_failed(Failure::Late);
                let text = "its place was wanted for another TLS handshake";
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            () = room.wait() => {
                self.note_failed(Failure::Late);
                let text = "its memory was wanted for others that have not proved who they are";
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
        };
        let outcome = outcome.unwrap_or_else(|_| {
            let text = format!("the TLS handshake took longer than {within:?}");
            Err(io::Error::new(ErrorKind::TimedOut, text))
        });
        match &outcome {
            Ok(stream) => {
                self.completed.inc();
                self.note_client(peer, &entrance, stream);
            }
            Err(error) => self.note_failure(peer, &entrance, error),
        }
        outcome
    }

    /// Counts and logs who the client has proved to be, if it has a certificate.
    fn note_client(&self, peer: SocketAddr, entrance: &Entrance, stream: &Stream) {
        if stream.peer_certificate().is_none() {
            return;
        }
        let principal = principal_of(stream);
        let key = entrance.listener.key();
        tracing::debug!(%peer, %principal, "{key}: a client has a certificate");
        let login = |user: &str, outcome| {
            let from = from(peer, entrance);
            self.audit.login(from, CERTIFICATE, user, outcome);
        };
        self.note_authentication(match &principal {
            Principal::User(name) => {
                login(name, Ok(()));
                "success"
            }
            Principal::Anonymous => {
                login("", Err("the certificate has no usable common name"));
                "unnamed"
            }
        });
    }

    fn note_authentication(&self, result: &'static str) {
        self.authentications
            .get_or_create_owned(&labels(result))
            .inc();
    }

    fn note_failed(&self, failure: Failure) {
        self.failed.get_or_create_owned(&failure.labels()).inc();
    }

    fn note_failure(&self, peer: SocketAddr, entrance: &Entrance, error: &io::Error) {
        let listener = entrance.listener;
        let inner = error.get_ref();
        let found = inner.and_then(|inner| inner.downcast_ref::<TlsFailure>());
        let Some(TlsFailure { error: found, .. }) = found else {
            // Probes do that.
            self.note_failed(match error.kind() {
                ErrorKind::TimedOut => Failure::Late,
                _ => Failure::Gone,
            });
            tracing::debug!(%peer, %error, "a TLS handshake ended");
            return;
        };
        self.note_failed(Failure::of(found));
        let reason = reason(found, listener);
        if matches!(
            found,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_)
        ) {
            self.note_authentication("failure");
            let from = from(peer, entrance);
            self.audit.login(from, CERTIFICATE, "", Err(&reason));
        }
        let place = match &entrance.name {
            Some(name) => format!(" at {name}"),
            None => String::new(),
        };
        self.tell(
            peer,
            listener,
            &format!("a TLS handshake failed{place}: {reason}"),
        );
    }

    /// Tells an operator why somebody was not let in, but not of each.
    pub(crate) fn tell(&self, peer: SocketAddr, listener: TlsListener, reason: &str) {
        let key = listener.key();
        match self.may_tell() {
            Some(others) => tracing::info!(%peer, others, "{key}: {reason}"),
            None => tracing::debug!(%peer, "{key}: {reason}"),
        }
    }
}

/// The series of every result, each at zero: a rate leaves out what a series begins with.
pub(super) fn authentications() -> Family<Labels, Counter> {
    let counted = Family::<Labels, Counter>::default();
    for result in ["success", "unnamed", "failure"] {
        drop(counted.get_or_create_owned(&labels(result)));
    }
    counted
}

/// The same of every failure.
pub(super) fn failures() -> Family<Labels, Counter> {
    let counted = Family::<Labels, Counter>::default();
    for failure in Failure::ALL {
        drop(counted.get_or_create_owned(&failure.labels()));
    }
    counted
}

fn from(peer: SocketAddr, entrance: &Entrance) -> Peer {
    let name = entrance.name.as_ref().map(ListenerName::as_str);
    Peer {
        via: Via::new(entrance.listener.kind(), name),
        host: peer.ip(),
    }
}

fn labels(result: &str) -> Labels {
    vec![
        ("mechanism", CERTIFICATE.to_owned()),
        ("result", result.to_owned()),
    ]
}

/// What an operator is told of a failed handshake.
fn reason(error: &Error, listener: TlsListener) -> String {
    let asked = match listener {
        TlsListener::Cluster => ("brokers alone are let in", "tls.broker_ca"),
        _ => ("tls.client_auth is `required`", "tls.client_ca"),
    };
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the client does not speak TLS, and this listener speaks nothing else; have the client use TLS, or take the listener out of tls.listeners, or its name out of listeners.protocols".to_owned()
        }
        Error::NoCertificatesPresented => {
            format!("the client has no certificate, and {}; give the client one", asked.0)
        }
        Error::InvalidCertificate(error) => format!(
            "the client's certificate is refused: {error}; it must be signed by an authority in {}", asked.1
        ),
        Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the client does not know the authority that signed tls.certificate; name that authority to the client".to_owned()
        }
        Error::AlertReceived(AlertDescription::BadCertificate) => {
            "the client refuses tls.certificate; the name that the client connects to must be one of the certificate's".to_owned()
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "the client refuses tls.certificate as expired, or as not valid yet; put a new one in its place".to_owned()
        }
        other => other.to_string(),
    }
}
