//! Copies by remote direct memory access: the primary's network card writes into the backup's memory,
//! and no process of the backup takes part.
//!
//! One reliable connection per pair of brokers, made by the connection manager (`rdma_cm`); control
//! calls go over TCP as for [`super::tcp`], to the same address and port number. At the backup every buffer
//! is a memory region of its own, registered over the mapping of the copy's file
//! ([`RdmaServer`]); at the primary what is sent is copied once into a registered ring
//! ([`RdmaTransport`]).
//!
//! | module | what it is |
//! |---|---|
//! | `link` | the primary's end: posting, completions, the connection's end |
//! | `server` | the backup's end: connections, registrations, what ends them |
//! | `window`, `patience` | what of ring and queue is in use; how long to look before waiting |
//! | `key`, `words` | a buffer's name on a link; what is said while connecting |
//! | `verbs` | the library, made safe |
//!
//! # What holds
//! * A completion means that the bytes are in the memory of the backup's machine. It does not mean that its
//!   process lives: cards go on writing for a dead process until the system has taken its queue pairs
//!   away. The bytes stay as long as the incarnation, which is all that replication counts on.
//! * A connection reaches the buffers of its own primary only: each primary has a protection domain at
//!   each backup.
//! * Before a sealed copy's length is read, its primary's connection is destroyed and its regions
//!   are deregistered, and only then may that primary connect again.
//! * A peer that is gone is noticed by the card, after `retries` + 1 times the acknowledgement timeout of
//!   the next write. A link at rest notices only a peer that takes its leave.
//!
//! # Why bytes are copied at the primary
//! Chunks of `log_segments::pool` cannot be registered as they are: a registration pins pages, the pool
//! gives pages of idle chunks back to the system, and ranges that have left memory are read back from
//! the file into memory that was never registered. The copy goes into memory that stays warm, some
//! hundredths of a nanosecond per byte; [`RdmaOptions::send_bytes`] is its size.

mod key;
mod link;
mod patience;
mod server;
mod verbs;
mod window;
mod words;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kera_rpc::tls::ClientTls;
use parking_lot::RwLock;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

pub use server::RdmaServer;

use crate::ids::{BrokerId, ProcessId};
use crate::transport::capability::MEMLOCK_ADVICE;
use crate::transport::hello::Hello;
use crate::transport::tcp::TcpTransport;
use crate::transport::{CallError, Link, LinkError, Pending, Reply, Request, Transport};
use link::{RdmaLink, poll_event};
use verbs::{CmEvent, CmEventKind, CmId, CompletionChannel, Device, EventChannel, Qp, Terms};
use words::{Cause, PROTOCOL, Words};

/// More attempts are none: some cards take 7 for "without end".
const MOST_RETRIES: u8 = 6;
/// The manager's own exponent has five bits.
const MOST_ACK_EXPONENT: u8 = 31;

/// What a connection allows.
#[derive(Clone, Copy, Debug)]
pub struct RdmaOptions {
    /// Bytes of registered memory to send from, for each connection.
    pub send_bytes: usize,
    /// Bytes that wait for room there; above, submissions are refused as full.
    pub unsent_bytes: usize,
    /// Submissions that are not completed.
    pub submissions: usize,
    /// Writes that may be under way; less if the card takes less.
    pub requests: u32,
    /// One of so many writes is told when it completes, and the last of each list.
    pub told_every: u32,
    /// Attempts after the first at each packet, at most 6.
    pub retries: u8,
    /// How long an attempt waits for its acknowledgement: 4.096 microseconds times two to the power
    /// of this; 14 is 67 ms.
    pub ack_exponent: u8,
    /// For connecting: the backup must first be done with an earlier connection.
    pub connect_timeout: Duration,
    /// For the next completion while one is due; the card's own limits are far below.
    pub stall_timeout: Duration,
    /// Longest look for a completion before waiting to be told; zero never looks.
    pub look_for: Duration,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            send_bytes: 8 << 20,
            unsent_bytes: 64 << 20,
            submissions: 4096,
            requests: 256,
            told_every: 32,
            retries: MOST_RETRIES,
            ack_exponent: 14,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
            look_for: Duration::from_micros(20),
        }
    }
}

impl RdmaOptions {
    /// What [`ack_exponent`](Self::ack_exponent) comes to.
    pub fn acknowledgement_timeout(&self) -> Duration {
        Duration::from_nanos(4096 << self.ack_exponent.min(MOST_ACK_EXPONENT))
    }
}

/// What to do with a backup that takes no RDMA connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// It cannot be reached.
    Unreachable,
    /// Its data goes over TCP until the next connection is made.
    Tcp,
}

/// Connects one broker, as a primary, with backups over RDMA. To be used within a tokio runtime.
#[derive(Debug)]
pub struct RdmaTransport {
    me: BrokerId,
    options: RdmaOptions,
    tcp: TcpTransport,
    otherwise: Otherwise,
    addresses: RwLock<HashMap<BrokerId, String>>,
}

impl RdmaTransport {
    /// The transport of broker `me`, which knows no backups yet; `tcp` carries its control calls.
    pub fn new(
        me: BrokerId,
        options: RdmaOptions,
        tcp: TcpTransport,
        otherwise: Otherwise,
    ) -> Self {
        Self {
            me,
            options,
            tcp,
            otherwise,
            addresses: RwLock::default(),
        }
    }

    /// Makes control calls, and reaches backups that take no connection of a card, with `tls` from now on, or without. What
    /// cards write has none.
    pub fn use_tls(&self, tls: Option<ClientTls>) {
        self.tcp.use_tls(tls);
    }

    /// Says where a backup is to be found: HOST:PORT of its TCP listener, on an address of an RDMA
    /// card. Links that exist stay as they are.
    ///
    /// # Errors
    /// `InvalidInput` if it is not HOST:PORT.
    pub fn set_address(&self, backup: BrokerId, address: &str) -> io::Result<()> {
        self.set_addresses(backup, address, address)
    }

    /// As [`set_address`](Self::set_address), where control calls take another way than data.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is not HOST:PORT.
    pub fn set_addresses(&self, backup: BrokerId, data: &str, control: &str) -> io::Result<()> {
        self.tcp.set_address(backup, control)?;
        self.addresses.write().insert(backup, data.to_owned());
        Ok(())
    }
}

impl Transport for RdmaTransport {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let address = self.addresses.read().get(&to).cloned();
        let hello = Hello {
            primary: self.me,
            process,
        };
        let options = self.options;
        let tcp = (self.otherwise == Otherwise::Tcp).then(|| self.tcp.connect(to, process));
        Box::pin(async move {
            let unreachable = |reason: String| LinkError::Unreachable { backup: to, reason };
            let address = address.ok_or_else(|| unreachable("its address is not known".into()))?;
            let connecting = connect(to, &address, hello, options);
            let error = match timeout(options.connect_timeout, connecting).await {
                Ok(Ok(link)) => return Ok(Box::new(link) as Box<dyn Link>),
                Ok(Err(error)) => error,
                Err(_) => NotConnected::Failed(format!(
                    "no answer within {} s",
                    options.connect_timeout.as_secs_f32()
                )),
            };
            match (error, tcp) {
                (NotConnected::OtherProcess, _) => Err(LinkError::OtherProcess(to)),
                (NotConnected::Failed(reason), Some(tcp)) => {
                    tracing::info!(backup = %to, reason, "no RDMA connection; its data goes over TCP");
                    tcp.await
                }
                (NotConnected::Failed(reason), None) => Err(unreachable(reason)),
            }
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        self.tcp.call(to, request)
    }
}

/// Why there is no connection.
enum NotConnected {
    OtherProcess,
    Failed(String),
}

impl NotConnected {
    /// What was being done when the system said no.
    fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Failed(format!("{step}: {}", explained(&error)))
    }
}

async fn connect(
    to: BrokerId,
    address: &str,
    hello: Hello,
    options: RdmaOptions,
) -> Result<RdmaLink, NotConnected> {
    let found = tokio::net::lookup_host(address).await;
    let found = found
        .map_err(NotConnected::at("looking up its address"))?
        .next();
    let peer: SocketAddr =
        found.ok_or_else(|| NotConnected::Failed(format!("{address} has no address")))?;

    let channel = EventChannel::new().map_err(NotConnected::at("RDMA cannot be used here"))?;
    let events = channel
        .watched()
        .map_err(NotConnected::at("waiting for events"))?;
    let mut id = CmId::new(&channel).map_err(NotConnected::at("RDMA cannot be used here"))?;
    let exponent = options.ack_exponent.min(MOST_ACK_EXPONENT);
    id.set_ack_timeout(exponent)
        .map_err(NotConnected::at("setting the acknowledgement timeout"))?;

    id.resolve_address(peer, options.connect_timeout)
        .map_err(NotConnected::at("finding the network card that reaches it"))?;
    expect(
        &events,
        CmEventKind::AddressResolved,
        "no network card for RDMA reaches it",
    )
    .await?;
    id.resolve_route(options.connect_timeout)
        .map_err(NotConnected::at("finding the way to it"))?;
    expect(&events, CmEventKind::RouteResolved, "there is no way to it").await?;

    let device = id
        .device()
        .ok_or_else(|| NotConnected::Failed("no network card for RDMA reaches it".into()))?;
    let completions =
        CompletionChannel::new(device).map_err(NotConnected::at("making a completion channel"))?;
    let requests = options.requests.clamp(1, device.max_requests());
    let parts = Qp::source(device, options.send_bytes, requests, completions.clone());
    let parts = parts
        .map_err(|error| NotConnected::Failed(unregistered(&error, options.send_bytes as u64)))?;
    id.create_qp(parts)
        .map_err(NotConnected::at("making a queue pair"))?;

    let terms = Terms {
        retries: options.retries.min(MOST_RETRIES),
        words: &hello.encode(&PROTOCOL),
    };
    id.connect(terms)
        .map_err(NotConnected::at("asking for a connection"))?;
    expect(
        &events,
        CmEventKind::Established,
        "it did not take the connection",
    )
    .await?;
    RdmaLink::new(to, events, &completions, id, requests, options)
        .map_err(NotConnected::at("waiting for completions"))
}

/// Waits for an event of the one kind; any other ends the attempt.
async fn expect(
    events: &AsyncFd<std::sync::Arc<EventChannel>>,
    wanted: CmEventKind,
    otherwise: &'static str,
) -> Result<(), NotConnected> {
    loop {
        let event: CmEvent = std::future::poll_fn(|cx| poll_event(events, cx))
            .await
            .map_err(NotConnected::at("waiting for events"))?;
        match event.kind {
            kind if kind == wanted => return Ok(()),
            CmEventKind::Other => {}
            CmEventKind::Rejected => {
                return Err(match Words::decode(&event.data) {
                    Some(words) if words.cause == Cause::OtherProcess => NotConnected::OtherProcess,
                    Some(words) => NotConnected::Failed(words.text),
                    None => NotConnected::Failed("no replica store listens there for RDMA".into()),
                });
            }
            _ => {
                let error = io::Error::from_raw_os_error(event.status.saturating_abs());
                return Err(NotConnected::Failed(match event.status {
                    0 => otherwise.to_owned(),
                    _ => format!("{otherwise}: {error}"),
                }));
            }
        }
    }
}

/// The cards of this machine by name, or why there is none to be used.
///
/// # Errors
/// What is missing, and how to get it.
pub(super) fn devices() -> Result<Vec<String>, String> {
    // Making a channel also opens the manager's own device file.
    EventChannel::new().map_err(|error| explained(&error))?;
    let devices = Device::all().map_err(|error| explained(&error))?;
    if devices.is_empty() {
        return Err(explained(&io::Error::from_raw_os_error(libc::ENODEV)));
    }
    Ok(devices.into_iter().map(Device::name).collect())
}

/// What the system said, and what to do about it.
fn explained(error: &io::Error) -> String {
    let what = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            "librdmacm.so.1 cannot be loaded; install it and the cards' providers (Debian: librdmacm1, ibverbs-providers)"
        }
        Some(libc::ENODEV) => "no network card for RDMA is there",
        Some(libc::ENOENT) => {
            "/dev/infiniband/rdma_cm is not there; load the module rdma_ucm, and give containers the device"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the devices under /dev/infiniband cannot be opened; check their owner and group"
        }
        _ => return error.to_string(),
    };
    what.to_owned()
}

/// Why memory was not registered, and what to set.
fn unregistered(error: &io::Error, bytes: u64) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => format!(
            "{bytes} bytes cannot be registered with the network card: the process may lock too little memory; {MEMLOCK_ADVICE}"
        ),
        _ => format!("{bytes} bytes cannot be registered with the network card: {error}"),
    }
}
