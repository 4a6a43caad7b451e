//! The beginning of a TLS connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_rpc::stream::{Stream, TlsFailure};
use rustls::{AlertDescription, Error, InvalidMessage};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{ServerTls, principal_of};
use crate::audit::Peer;
use crate::config::TlsListener;
use crate::metrics::{Counter, Family, Labels};
use crate::principal::Principal;

/// How a client proves who it is by a certificate, among the mechanisms.
const CERTIFICATE: &str = "certificate";
/// Handshakes under way at a time. Each may hold 64 KiB of what the peer has sent.
const MOST_UNDER_WAY: usize = 512;

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
    /// Does the handshake of a connection to `listener`, for at most `within`. A peer that
    /// takes long makes room for others where many handshakes are under way, first one of the address that has most.
    ///
    /// # Errors
    /// The socket's, or what was wrong with the handshake.
    pub async fn accept(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        listener: TlsListener,
        within: Duration,
    ) -> io::Result<Stream> {
        let (number, wanted) = self.under_way.enter(peer.ip().into());
        let before = self.under_way_count.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay { tls: self, number };
        if before >= MOST_UNDER_WAY {
            self.under_way.end_oldest();
        }
        let config = self.current.load().of(listener);
        let config = config.ok_or_else(|| io::Error::other("tls.broker_ca is off"))?;
        let handshake = Stream::accept(socket, config);
        let outcome = tokio::select! {
            outcome = timeout(within, handshake) => outcome,
            () = wanted.wait() => {
                self.failed.inc();
                let text = "its place was wanted for another TLS handshake";
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
                self.note_client(peer, listener, stream);
            }
            Err(error) => self.note_failure(peer, listener, error),
        }
        outcome
    }

    /// Counts and logs who the client has proved to be, if it has a certificate.
    fn note_client(&self, peer: SocketAddr, listener: TlsListener, stream: &Stream) {
        if stream.peer_certificate().is_none() {
            return;
        }
        let principal = principal_of(stream);
        let key = listener.key();
        tracing::debug!(%peer, %principal, "{key}: a client has a certificate");
        let login = |user: &str, outcome| {
            let from = from(peer, listener);
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

    fn note_failure(&self, peer: SocketAddr, listener: TlsListener, error: &io::Error) {
        self.failed.inc();
        let inner = error.get_ref();
        let found = inner.and_then(|inner| inner.downcast_ref::<TlsFailure>());
        let Some(TlsFailure { error: found, .. }) = found else {
            // It went away, or took too long: probes do.
            tracing::debug!(%peer, %error, "a TLS handshake ended");
            return;
        };
        let reason = reason(found, listener);
        if matches!(
            found,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_)
        ) {
            self.note_authentication("failure");
            let from = from(peer, listener);
            self.audit.login(from, CERTIFICATE, "", Err(&reason));
        }
        self.tell(peer, listener, &format!("a TLS handshake failed: {reason}"));
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

fn from(peer: SocketAddr, listener: TlsListener) -> Peer {
    Peer {
        via: listener.kind(),
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
            "the client does not speak TLS, and this listener speaks nothing else; have the client use TLS, or take the listener out of tls.listeners".to_owned()
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
