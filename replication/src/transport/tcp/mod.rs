//! Copies over TCP, for those without RDMA: the same protocol, with the kernel in the place of the
//! network card.
//!
//! The backup's end ([`BackupServer`]) checks where bytes go and puts them there, no more; the
//! primary's ([`TcpTransport`]) sends each submission with as few system calls as it takes, and hears
//! back one number for many writes. Control calls share the address, as gRPC.

mod client;
mod control;
mod convert;
mod data;
mod door;
mod link;
mod places;
mod quiet;
mod receiver;
mod seals;
mod seats;
mod server;
mod wire;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use kera_grpc::channel;
use kera_rpc::Way;
use kera_rpc::stream::Stream;
use kera_rpc::tls::ClientTls;
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

pub use control::BackupService;
pub use door::Door;
pub use link::LinkOptions;
pub use places::{Counts, Peers};
pub use server::{BackupServer, ServerOptions};
pub use wire::{HELLO_MAGIC, WRITE_BYTES, WriteHead};

use crate::ids::{BrokerId, BufferKey, ProcessId};
use crate::transport::hello::Hello;
use crate::transport::{CallError, Link, LinkError, Pending, Reply, Request, Transport};
use link::TcpLink;
use quiet::{Patience, ask_when_quiet};
use seals::Seals;
use wire::{Cause, PROTOCOL, WORD_BYTES, Word};

/// Connects one broker, as a primary, with backups over TCP. To be used within a tokio runtime.
#[derive(Debug)]
pub struct TcpTransport {
    me: BrokerId,
    options: LinkOptions,
    way: RwLock<Way>,
    peers: RwLock<HashMap<BrokerId, Peer>>,
}

#[derive(Clone, Debug)]
struct Peer {
    address: String,
    way: Way,
    channel: Channel,
    seals: Arc<Seals>,
}

impl TcpTransport {
    /// The transport of broker `me`, which knows no backups yet.
    pub fn new(me: BrokerId, options: LinkOptions) -> Self {
        Self {
            me,
            options,
            way: RwLock::default(),
            peers: RwLock::default(),
        }
    }

    /// Connects with `tls` from now on, or without; connections that exist stay as they are.
    pub fn use_tls(&self, tls: Option<ClientTls>) {
        let mut peers = self.peers.write();
        self.way.write().tls = tls;
        for peer in peers.values_mut() {
            let endpoint = endpoint(&peer.address, self.options);
            // It was one before.
            if let Ok(endpoint) = endpoint {
                peer.way = self.way.read().clone();
                peer.channel = channel(&peer.way, endpoint, &peer.address);
            }
        }
    }

    /// Says where a backup is to be found: HOST:PORT. Links that exist stay as they are.
    ///
    /// # Errors
    /// `InvalidInput` if it is not HOST:PORT.
    pub fn set_address(&self, backup: BrokerId, address: &str) -> io::Result<()> {
        let endpoint = endpoint(address, self.options).map_err(|_| {
            let reason = format!("\"{address}\" is not an address of {backup}: use HOST:PORT");
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        let mut peers = self.peers.write();
        let way = self.way.read().clone();
        let channel = channel(&way, endpoint, address);
        let address = address.to_owned();
        let peer = Peer {
            address,
            way,
            channel,
            seals: Arc::default(),
        };
        peers.insert(backup, peer);
        Ok(())
    }

    fn peer(&self, backup: BrokerId) -> Option<Peer> {
        self.peers.read().get(&backup).cloned()
    }
}

impl Transport for TcpTransport {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let peer = self.peer(to);
        let hello = Hello {
            primary: self.me,
            process,
        };
        let options = self.options;
        Box::pin(async move {
            let unreachable = |reason: String| LinkError::Unreachable { backup: to, reason };
            let peer = peer.ok_or_else(|| unreachable("its address is not known".into()))?;
            let greeted = greet(&peer.way, &peer.address, hello, options.patience());
            let stream = match timeout(options.connect_timeout, greeted).await {
                Ok(Ok(Ok(stream))) => stream,
                Ok(Ok(Err((cause, text)))) => {
                    return Err(link::farewell(to, cause, BufferKey(0), text));
                }
                Ok(Err(error)) => return Err(unreachable(error.to_string())),
                Err(_) => {
                    let seconds = options.connect_timeout.as_secs_f32();
                    return Err(unreachable(format!("no welcome within {seconds} s")));
                }
            };
            Ok(Box::new(TcpLink::new(to, stream, options)) as Box<dyn Link>)
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let peer = self.peer(to);
        Box::pin(async move {
            match (peer, request) {
                (Some(peer), Request::Seal(seal)) => {
                    let seal = convert::seal_to(&seal);
                    peer.seals.ask(to, peer.channel, seal).await
                }
                (Some(peer), request) => client::call(to, peer.channel, request).await,
                (None, _) => Err(CallError::Lost {
                    backup: to,
                    reason: "its address is not known".into(),
                }),
            }
        })
    }
}

fn endpoint(address: &str, options: LinkOptions) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(endpoint
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .tcp_nodelay(true))
}

/// Connects, says who it is, and waits to be welcomed: by then every earlier connection is gone.
async fn greet(
    way: &Way,
    address: &str,
    hello: Hello,
    patience: Patience,
) -> io::Result<Result<Stream, (Cause, String)>> {
    let mut stream = way.frames(address).await?;
    ask_when_quiet(&stream, patience)?;
    stream.write_all(&hello.encode(&PROTOCOL)).await?;
    stream.flush().await?;
    let mut word = [0; WORD_BYTES];
    stream.read_exact(&mut word).await?;
    match Word::decode(&word) {
        Some(Word::Welcome) => Ok(Ok(stream)),
        Some(Word::Farewell(cause, _, text)) => {
            let mut bytes = vec![0; text];
            stream.read_exact(&mut bytes).await?;
            Ok(Err((cause, String::from_utf8_lossy(&bytes).into_owned())))
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the program at this address is no replica store",
        )),
    }
}
