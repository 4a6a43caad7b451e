//! Binding an address, and accepting what comes there.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::error::BrokerError;

/// How often an address in use is tried, and the pause between.
const BIND_ATTEMPTS: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Of so many failures in a row one is logged: 10 s of them.
const FAILURES_PER_WARNING: u32 = 200;
/// Connections the system may hold that are not accepted yet.
const BACKLOG: u32 = 4096;

/// Binds `address`; `key` is the configuration key to name in an error.
///
/// # Errors
/// [`BrokerError::Listen`].
pub async fn bind(address: &str, key: &'static str) -> Result<TcpListener, BrokerError> {
    let fail = |error| BrokerError::Listen {
        address: address.to_string(),
        key,
        error,
    };
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    // This process holds the lock of the data directory. So if the address is still in use, a killed broker
    // most likely left sockets that the system has not closed yet.
    for attempt in 0..BIND_ATTEMPTS {
        for resolved in tokio::net::lookup_host(address).await.map_err(fail)? {
            match try_bind(resolved) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        if last.kind() != std::io::ErrorKind::AddrInUse {
            break;
        }
        if attempt == 0 {
            tracing::info!(
                address,
                "the address is in use; waiting for it to become free"
            );
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
    Err(fail(last))
}

fn try_bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A restarted broker takes its port back while old connections are still winding down.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The next connection; `None` once the broker stops.
pub async fn next(
    listener: &TcpListener,
    stopping: &mut watch::Receiver<bool>,
) -> Option<(TcpStream, SocketAddr)> {
    tokio::select! {
        accepted = accept_next(listener) => Some(accepted),
        _ = stopping.wait_for(|stop| *stop) => None,
    }
}

/// The next connection, however long the system has none to give.
pub(crate) async fn accept_next(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut failures = 0_u32;
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // Out of descriptors, mostly: the queue holds the others while we wait.
                if failures.is_multiple_of(FAILURES_PER_WARNING) {
                    tracing::warn!(%error, "accepting a connection failed; trying again until it does not");
                }
                failures = failures.wrapping_add(1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
