//! The backup's listener, the seats of its primaries, and its workers.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_replication::backup::BackupStore;
use kera_replication::ids::{BrokerId, BufferKey};
use kera_replication::transport::Refusal;
use kera_replication::transport::tcp::BackupService;
use kera_rpc::v1::backups_server::BackupsServer;
use parking_lot::{Condvar, Mutex};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::dispatch::dispatch;
use super::queue::Queue;
use super::wire::{Cause, HELLO_BYTES, HELLO_MAGIC, Hello, Word};

/// For a connection's first bytes.
const HELLO: Duration = Duration::from_secs(5);
/// For a primary to take an answer.
const STALL: Duration = Duration::from_secs(30);
/// Largest control request: a transfer of 4 MiB, and what names it.
const MAX_CONTROL_BYTES: usize = 8 << 20;

/// A primary's connection.
pub(super) struct Seat {
    primary: BrokerId,
    stream: TcpStream,
    /// Held while a word is said.
    voice: Mutex<()>,
    /// Nothing more is said, and no further request taken.
    parted: AtomicBool,
    /// The connection itself and its requests that workers have.
    present: Mutex<usize>,
    gone: Condvar,
}

impl Seat {
    pub(super) fn enter(&self) {
        *self.present.lock() += 1;
    }

    pub(super) fn leave(&self) {
        let mut present = self.present.lock();
        *present -= 1;
        if *present == 0 {
            self.gone.notify_all();
        }
    }

    pub(super) fn has_parted(&self) -> bool {
        self.parted.load(Ordering::Acquire)
    }

    pub(super) fn say(&self, word: &Word) {
        let _voice = self.voice.lock();
        if self.has_parted() {
            return;
        }
        // Whoever cannot be told is gone.
        let told = (&self.stream).write_all(&word.encode());
        if matches!(word, Word::Farewell(..)) || told.is_err() {
            self.parted.store(true, Ordering::Release);
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits until nobody can place anything for this connection any more.
    fn wait_gone(&self) {
        let mut present = self.present.lock();
        while *present > 0 {
            self.gone.wait(&mut present);
        }
    }
}

struct Shared {
    store: Arc<BackupStore>,
    queue: Queue,
    seats: Mutex<HashMap<BrokerId, Arc<Seat>>>,
    stopping: AtomicBool,
}

/// Serves one store by requests; ends its threads when dropped.
pub struct RpcServer {
    shared: Arc<Shared>,
}

impl RpcServer {
    /// Starts `workers` threads for `store`; nothing is listened to yet.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(store: Arc<BackupStore>, workers: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            store,
            queue: Queue::default(),
            seats: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let server = Self { shared };
        for _ in 0..workers {
            let shared = server.shared.clone();
            std::thread::Builder::new()
                .name("rpc-worker".into())
                .spawn(move || work(&shared))?;
        }
        Ok(server)
    }

    /// A task that accepts until it is dropped. Connections that begin as gRPC go to the control
    /// service.
    pub fn serve(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.shared.clone();
        async move {
            let (control, incoming) = mpsc::channel(16);
            let calls = serve_control(shared.store.clone(), incoming);
            let accepts = async {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(connection(shared.clone(), stream, control.clone()));
                }
            };
            tokio::join!(calls, accepts);
        }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.queue.close();
        for seat in self.shared.seats.lock().values() {
            seat.end();
        }
    }
}

async fn serve_control(store: Arc<BackupStore>, incoming: mpsc::Receiver<tokio::net::TcpStream>) {
    let service = BackupsServer::new(BackupService::new(store));
    let incoming = ReceiverStream::new(incoming).map(Ok::<_, io::Error>);
    let served = tonic::transport::Server::builder()
        .add_service(service.max_decoding_message_size(MAX_CONTROL_BYTES))
        .serve_with_incoming(incoming)
        .await;
    if let Err(error) = served {
        eprintln!("control calls are no longer served: {error}");
    }
}

/// Finds out what a connection is and gives it to whom it is for.
async fn connection(
    shared: Arc<Shared>,
    mut stream: tokio::net::TcpStream,
    control: mpsc::Sender<tokio::net::TcpStream>,
) {
    let _ = stream.set_nodelay(true);
    let greeted = async {
        let mut first = [0; HELLO_MAGIC.len()];
        loop {
            match stream.peek(&mut first).await {
                Ok(0) | Err(_) => return None,
                Ok(read) if first[..read] != HELLO_MAGIC[..read] => {
                    let _ = control.send(stream).await;
                    return None;
                }
                Ok(read) if read == first.len() => break,
                // Peeking does not wait for more than there is.
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).await.ok()?;
        Some((Hello::decode(&hello)?, stream.into_std().ok()?))
    };
    let Ok(Some((hello, stream))) = tokio::time::timeout(HELLO, greeted).await else {
        return;
    };
    // A thread of its own, as RAMCloud's dispatcher: it may block.
    let started = std::thread::Builder::new()
        .name("rpc-dispatch".into())
        .spawn(move || serve(&shared, hello, stream));
    if let Err(error) = started {
        eprintln!("a connection is refused: {error}");
    }
}

fn serve(shared: &Shared, hello: Hello, stream: TcpStream) {
    let listened = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_write_timeout(Some(STALL)))
        .and_then(|()| stream.try_clone());
    let Ok(listened) = listened else { return };
    let seat = Arc::new(Seat {
        primary: hello.primary,
        stream,
        voice: Mutex::new(()),
        parted: AtomicBool::new(false),
        present: Mutex::new(1),
        gone: Condvar::new(),
    });
    if hello.process != shared.store.process() {
        let text = "this backup was started anew and has sealed what was open".to_owned();
        seat.say(&Word::Farewell(Cause::OtherProcess, BufferKey(0), text));
        return;
    }
    let predecessor = shared.seats.lock().insert(hello.primary, seat.clone());
    if let Some(predecessor) = predecessor {
        predecessor.end();
        predecessor.wait_gone();
    }
    // Looked at after the seat is known: whoever stops ends it, or this does.
    if shared.stopping.load(Ordering::Acquire) {
        seat.end();
    } else {
        seat.say(&Word::Welcome);
        dispatch(listened, &seat, &shared.queue);
    }
    seat.leave();
    // A connection may end before all of its answers are given; the last one closes it.
    seat.wait_gone();
    let mut seats = shared.seats.lock();
    if seats
        .get(&hello.primary)
        .is_some_and(|present| Arc::ptr_eq(present, &seat))
    {
        seats.remove(&hello.primary);
    }
}

/// A worker: finds the copy, copies the bytes, answers.
fn work(shared: &Shared) {
    while let Some(request) = shared.queue.pop() {
        let (seat, head) = (&request.seat, request.head);
        let placed = shared
            .store
            .region(seat.primary, head.buffer)
            .and_then(|region| region.place(head.offset, request.bytes.bytes()));
        shared.queue.give_back(request.bytes);
        seat.say(&match placed {
            Ok(()) => Word::Answer(request.number),
            Err(Refusal::Invalid(text)) => Word::Farewell(Cause::Malformed, head.buffer, text),
            Err(refusal) => Word::Farewell(Cause::Refused, head.buffer, refusal.to_string()),
        });
        seat.leave();
    }
}
