//! The backup's listener: data connections and control calls on one address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_grpc::serve::CallServer;
use kera_log_segments::pool::heap;
use kera_rpc::stream::Stream;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::data::{DataConnection, Times};
use super::door::Door;
use super::places::{Counts, NoPeers, Peers, Places};
use super::receiver::{Farewell, Receiver, SPARE_BYTES};
use super::seats::{Occupied, Seats};
use super::wire::{Cause, HELLO_MAGIC, MAX_TEXT, PROTOCOL, Word};
use crate::backup::ReplicaStore;
use crate::ids::BrokerId;
use crate::seldom::Seldom;
use crate::transport::hello::{HELLO_BYTES, Hello};

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Connections, of data and of control.
    pub connections: usize,
    /// Connections beyond these that only brokers of the cluster may have.
    pub reserved: usize,
    /// For a connection's first bytes.
    pub hello_timeout: Duration,
    /// A control connection without a call for so long is ended; its client connects again.
    pub idle_timeout: Duration,
    /// For the rest of a write that has begun, and for a primary to take an acknowledgement.
    pub stall_timeout: Duration,
    /// A data connection over which nothing came for so long is ended if its primary has no open copy here: its
    /// thread is for nobody. Looked at every `stall_timeout`.
    pub rest_timeout: Duration,
    /// A primary that wrote within this time keeps its seat against a hello of its number from elsewhere.
    pub seat_kept: Duration,
    /// Between two flushes of what open copies have gathered.
    pub flush_interval: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections: 1024,
            reserved: 64,
            hello_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(30),
            rest_timeout: Duration::from_secs(60),
            seat_kept: Duration::from_secs(10),
            flush_interval: Duration::from_secs(60),
        }
    }
}

/// How long, and how much, is read from a primary that is being sent away, so that it gets to read why.
const PARTING: Duration = Duration::from_secs(1);
const PARTING_BYTES: usize = 16 << 20;
/// How often memory of connections that have ended is given back to the system, once there is much of it.
const GIVE_BACK: Duration = Duration::from_secs(10);
/// About what the allocator gets back from any connection, and from one of data besides.
const OF_CONNECTION: u64 = 16 << 10;
const OF_DATA_CONNECTION: u64 = SPARE_BYTES as u64;
/// Longest pause between two looks at a hello that has begun.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// Serves one store over TCP.
#[derive(Debug)]
pub struct BackupServer {
    store: Arc<ReplicaStore>,
    options: ServerOptions,
    peers: Arc<dyn Peers>,
    /// Through which connections come; `None` takes them as they are.
    door: Option<Arc<dyn Door>>,
    seats: Seats,
    received: Arc<AtomicU64>,
    /// Bytes that connections gave back to the allocator, and it not yet to the system.
    freed: Arc<AtomicU64>,
    places: Arc<Places>,
    refusals: Mutex<Seldom>,
    hijacks: Mutex<Seldom>,
    stopping: watch::Sender<bool>,
}

impl BackupServer {
    /// A server of `store` that knows no other brokers; nothing is listened to yet.
    pub fn new(store: Arc<ReplicaStore>, options: ServerOptions) -> Arc<Self> {
        Self::among(store, options, Arc::new(NoPeers), None)
    }

    /// As [`new`](Self::new), among these brokers, which come through `door` if there is one.
    pub fn among(
        store: Arc<ReplicaStore>,
        options: ServerOptions,
        peers: Arc<dyn Peers>,
        door: Option<Arc<dyn Door>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            peers,
            door,
            places: Places::new(options.connections, options.reserved),
            seats: Seats::new(options.seat_kept),
            options,
            refusals: Mutex::default(),
            hijacks: Mutex::default(),
            received: Arc::default(),
            freed: Arc::default(),
            stopping: watch::Sender::new(false),
        })
    }

    /// Accepts until [`stop`](Self::stop). Connections that begin as gRPC go to the control service.
    ///
    /// # Errors
    /// None today.
    pub async fn serve(self: &Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let (control, control_ended) = super::control::server(
            self.store.clone(),
            &self.options,
            self.stopping.subscribe(),
            self.freed.clone(),
        );
        let mut stopping = self.stopping.subscribe();
        let mut tasks = tokio::task::JoinSet::new();
        let flushing = self.clone();
        tasks.spawn(async move { flushing.flush_now_and_then().await });
        let giving = self.clone();
        tasks.spawn(async move { giving.give_back_now_and_then().await });
        loop {
            let accepted = tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => break,
                accepted = listener.accept() => accepted,
                Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, for example: others may end.
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let is_peer = self.peers.is_at(peer.ip(), None);
            let Some(place) = self.places.take(is_peer) else {
                self.tell_refused(peer, is_peer);
                continue;
            };
            let server = self.clone();
            let control = control.clone();
            tasks.spawn(async move {
                server.connection(stream, peer, control).await;
                server.freed.fetch_add(OF_CONNECTION, Ordering::Relaxed);
                drop(place);
            });
        }
        while tasks.join_next().await.is_some() {}
        drop(control);
        control_ended.wait().await;
        Ok(())
    }

    fn tell_refused(&self, peer: SocketAddr, is_peer: bool) {
        let Some(others) = self.refusals.lock().due(Instant::now()) else {
            return;
        };
        let limit = self.places.limit(is_peer);
        if is_peer {
            tracing::warn!(%peer, limit, others, "a connection of a broker of the cluster is refused, and so were others lately: there are as many as cluster.max_connections and cluster.reserved_connections allow together; see who connects to cluster.listen, or raise cluster.reserved_connections");
        } else {
            tracing::warn!(%peer, limit, others, "a connection is refused, and so were others lately: there are as many as cluster.max_connections allows, and cluster.reserved_connections are for addresses at which brokers of the cluster are known; see who connects to cluster.listen, or raise cluster.max_connections");
        }
    }

    /// Connections that are open, of data and of control.
    pub fn connections(&self) -> Counts {
        self.places.open()
    }

    /// Connections refused since the server was made.
    pub fn refused_connections(&self) -> Counts {
        self.places.refused()
    }

    /// Bytes read from data connections since the server was made, what names their places included.
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Primaries that have a data connection now.
    pub fn primaries(&self) -> usize {
        self.seats.len()
    }

    /// Ends [`serve`](Self::serve): connections are closed, and nothing is placed after it returned.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    async fn flush_now_and_then(&self) {
        let mut stopping = self.stopping.subscribe();
        loop {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(self.options.flush_interval) => {}
            }
            let store = self.store.clone();
            let work = move || {
                store.look_at_marks();
                store.part_with_doubles();
                store.flush_open_and_tell();
            };
            let _ = tokio::task::spawn_blocking(work).await;
        }
    }

    async fn give_back_now_and_then(&self) {
        let mut stopping = self.stopping.subscribe();
        loop {
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(GIVE_BACK) => {}
            }
            if heap::is_due(&self.freed) {
                // It takes milliseconds.
                let _ = tokio::task::spawn_blocking(heap::give_back).await;
            }
        }
    }

    async fn connection(&self, socket: TcpStream, peer: SocketAddr, control: CallServer) {
        let _ = socket.set_nodelay(true);
        let mut first = [0; HELLO_MAGIC.len()];
        let mut stopping = self.stopping.subscribe();
        let entered = async {
            match &self.door {
                None => Ok(Stream::Plain(socket)),
                Some(door) => {
                    door.clone()
                        .enter(socket, peer, self.options.hello_timeout)
                        .await
                }
            }
        };
        let entered = tokio::select! {
            entered = entered => entered,
            _ = stopping.wait_for(|stop| *stop) => return,
        };
        // The door has told why.
        let Ok(mut stream) = entered else { return };
        // Something else than a hello is told from one by its first letter that differs.
        let decide = |there: &[u8]| match HELLO_MAGIC.starts_with(there) {
            true => (there.len() == HELLO_MAGIC.len()).then_some(true),
            false => Some(false),
        };
        let looked = stream.look(&mut first, LONGEST_LOOK, decide);
        let looked = tokio::select! {
            looked = timeout(self.options.hello_timeout, looked) => looked,
            _ = stopping.wait_for(|stop| *stop) => return,
        };
        let Ok(Ok(is_hello)) = looked else {
            tracing::debug!(%peer, "a connection said nothing");
            return;
        };
        if !is_hello {
            Box::pin(control.connection(stream, peer.ip(), None)).await;
            return;
        }
        let mut hello = [0; HELLO_BYTES];
        let read = timeout(self.options.hello_timeout, stream.read_exact(&mut hello));
        if !matches!(read.await, Ok(Ok(_))) {
            return;
        }
        let ended = match Hello::decode(&hello, &PROTOCOL) {
            Ok(hello) if hello.process == self.store.process() => {
                self.data(stream, hello.primary, peer.ip()).await
            }
            Ok(_) => {
                let reason = "this replica store was restarted and has sealed its open replicas";
                Some((stream, Farewell::new(Cause::OtherProcess, reason)))
            }
            Err(text) => Some((stream, Farewell::malformed(text))),
        };
        if let Some((mut stream, farewell)) = ended {
            tracing::info!(%peer, cause = ?farewell.cause, "data connection ended: {}", farewell.text);
            part(&mut stream, &farewell).await;
        }
    }

    /// Serves a primary's data connection, once any earlier one of it has gone. If it ends with a farewell,
    /// the connection to say it on.
    async fn data(
        &self,
        stream: Stream,
        primary: BrokerId,
        from: IpAddr,
    ) -> Option<(Stream, Farewell)> {
        let mut seated = match self.seats.take(primary, from, &*self.peers).await {
            Ok(seated) => seated,
            Err(occupied) => return Some((stream, self.occupied(primary, from, occupied))),
        };
        let receiver = Receiver::new(self.store.clone(), primary);
        let times = Times {
            stalled: self.options.stall_timeout,
            rested: self.options.rest_timeout,
            wrote: seated.wrote.clone(),
        };
        let ended = match DataConnection::begin(stream, receiver, times, self.received.clone()) {
            Ok(mut connection) => {
                let ended = self.until_ended(&mut connection, &mut seated.leaving).await;
                let farewell = |farewell| Some((connection.parting()?, farewell));
                ended.err().and_then(farewell)
            }
            Err(error) => {
                tracing::warn!(%primary, %error, "a data connection cannot be served");
                None
            }
        };
        self.freed.fetch_add(OF_DATA_CONNECTION, Ordering::Relaxed);
        self.seats.leave(primary, seated);
        ended
    }

    fn occupied(&self, primary: BrokerId, from: IpAddr, occupied: Occupied) -> Farewell {
        let by = occupied.by;
        if let Some(others) = self.hijacks.lock().due(Instant::now()) {
            tracing::warn!(%primary, %from, %by, others, "a data connection is refused, and so were others lately: another machine says the number of a broker that writes here now; see who connects to cluster.listen from there, and whether two brokers have one number");
        }
        let seconds = self.options.seat_kept.as_secs_f32();
        let text = format!(
            "{primary} wrote here from {by} within the last {seconds} s, and {from} is none of the addresses at which the cluster knows it: its connection stays; stop one of the two, or have {primary} advertise the address it connects from (cluster.advertise)"
        );
        Farewell::new(Cause::Ending, text)
    }

    async fn until_ended(
        &self,
        connection: &mut DataConnection,
        leaving: &mut watch::Receiver<bool>,
    ) -> Result<(), Farewell> {
        let mut stopping = self.stopping.subscribe();
        let reason = tokio::select! {
            ended = connection.ended() => return ended,
            _ = leaving.wait_for(|leave| *leave) => {
                "a newer connection of this primary takes its place"
            }
            _ = stopping.wait_for(|stop| *stop) => "the replica store is stopping",
        };
        connection.leave().await;
        Err(Farewell::new(Cause::Ending, reason))
    }
}

/// Says why, and reads on for a moment: closing with unread bytes would take the word back.
async fn part(stream: &mut Stream, farewell: &Farewell) {
    let mut text = farewell.text.as_str();
    while text.len() > MAX_TEXT {
        text = &text[..text.floor_char_boundary(MAX_TEXT)];
    }
    let mut bytes = Word::Farewell(farewell.cause, farewell.buffer, text.len())
        .encode()
        .to_vec();
    bytes.extend_from_slice(text.as_bytes());
    let parting = async {
        stream.write_all(&bytes).await?;
        stream.flush().await?;
        stream.shutdown().await?;
        let mut total = 0;
        while total < PARTING_BYTES {
            match stream.discard().await? {
                0 => break,
                read => total += read,
            }
        }
        io::Result::Ok(())
    };
    let _ = timeout(PARTING, parting).await;
}
