//! The way to a broker: with TLS or without, as a user or as nobody in particular.

use std::io;

use tokio::net::TcpStream;

use crate::error::RpcError;
use crate::login::Login;
use crate::stream::Stream;
use crate::tls::ClientTls;

/// How a client reaches brokers. Cheap to clone; the default is without TLS and as nobody.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// TLS; `None` connects without.
    pub tls: Option<ClientTls>,
    /// Who the client proves to be on each connection, if it does.
    pub login: Option<Login>,
}

impl Way {
    /// Connects to the broker at `address`, HOST:PORT, for frames.
    ///
    /// # Errors
    /// The socket's, or why one of the two refused the other.
    pub async fn frames(&self, address: &str) -> io::Result<Stream> {
        let socket = connect(address).await?;
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => tls.frames(socket, address).await?,
        };
        self.prove(stream).await
    }

    /// The same for HTTP/2, as gRPC has it.
    ///
    /// # Errors
    /// As [`frames`](Self::frames).
    pub async fn http2(&self, address: &str) -> io::Result<Stream> {
        let socket = connect(address).await?;
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => tls.http2(socket, address).await?,
        };
        self.prove(stream).await
    }

    async fn prove(&self, mut stream: Stream) -> io::Result<Stream> {
        if let Some(login) = &self.login {
            login.prove(&mut stream).await?;
        }
        Ok(stream)
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Refuses what is not HOST:PORT.
///
/// # Errors
/// [`RpcError::BadAddress`].
pub fn check_address(address: &str) -> Result<(), RpcError> {
    let valid = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0));
    if valid {
        Ok(())
    } else {
        Err(RpcError::BadAddress(address.to_owned()))
    }
}
