//! Who is let in where replicas are kept.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kera_rpc::stream::Stream;
use tokio::net::TcpStream;

use crate::transport::Pending;

/// What connections pass through before a word is read of them: TLS, and a proof that a broker is at the other end.
pub trait Door: Debug + Send + Sync {
    /// Lets `peer` in, or not; takes at most `within`.
    ///
    /// # Errors
    /// Why not. Who keeps the door has told of it.
    fn enter(
        self: Arc<Self>,
        socket: TcpStream,
        peer: SocketAddr,
        within: Duration,
    ) -> Pending<io::Result<Stream>>;
}
