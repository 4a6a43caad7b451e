//! Connections to a server, within one process.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};
use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, BufferKey, CopyId, ProcessId, StreamletKey};
use kera_replication::transport::rdma::{Otherwise, RdmaOptions, RdmaServer, RdmaTransport};
use kera_replication::transport::tcp::{LinkOptions, TcpTransport};
use kera_replication::transport::{
    Link, LinkError, Preference, Reply, Request, Seal, Transport, TransportKind, Write,
    capabilities,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::machine;

const PRIMARY: BrokerId = BrokerId(1);
const BACKUP: BrokerId = BrokerId(4);
const SEGMENT: u32 = 1 << 20;

struct Served {
    store: Arc<ReplicaStore>,
    server: Arc<RdmaServer>,
    task: JoinHandle<std::io::Result<()>>,
    address: SocketAddr,
    transport: RdmaTransport,
    _dir: TempDir,
    /// Keeps the number of the port.
    _port: TcpListener,
}

fn transport(me: BrokerId, address: SocketAddr) -> RdmaTransport {
    let options = RdmaOptions {
        send_bytes: 64 << 10,
        requests: 32,
        ..RdmaOptions::default()
    };
    let tcp = TcpTransport::new(me, LinkOptions::default());
    let transport = RdmaTransport::new(me, options, tcp, Otherwise::Unreachable);
    let known = transport.set_address(BACKUP, &address.to_string());
    known.expect("an address");
    transport
}

async fn served(address: IpAddr) -> Served {
    let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
    let quota = 64 << 20;
    let memory = ShmMemory::new(ShmOptions {
        dir: dir.path().join("shared"),
        disk: None,
        quota,
    });
    let limits = Limits {
        memory_bytes: quota,
        ..Limits::default()
    };
    let store = ReplicaStore::start(memory, limits, Faults::default()).expect("starts");
    let port = TcpListener::bind((address, 0)).await.expect("a port");
    let address = port.local_addr().expect("an address");
    let server = RdmaServer::bind(address, &store).expect("listens");
    let serving = server.clone();
    let task = tokio::spawn(async move { serving.serve().await });
    Served {
        store,
        server,
        task,
        address,
        transport: transport(PRIMARY, address),
        _dir: dir,
        _port: port,
    }
}

fn copy(group: u64) -> CopyId {
    CopyId {
        streamlet: StreamletKey {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(1),
        },
        group: GroupId(group),
        epoch: Epoch(7),
        generation: 0,
    }
}

impl Served {
    async fn link(&self) -> Box<dyn Link> {
        let connected = self.transport.connect(BACKUP, self.store.process()).await;
        connected.expect("connects")
    }

    fn key_for(&self, primary: BrokerId, group: u64, bytes: u32) -> BufferKey {
        let request = Request::Open {
            copy: copy(group),
            incarnation: self.store.incarnation(),
            primary,
            segment_size: SEGMENT,
            segments: 2,
            address: 0,
            bytes,
        };
        match self.store.handle(primary, request) {
            Ok(Reply::Opened(opened)) => opened.buffers[0].key,
            other => panic!("{other:?}"),
        }
    }

    fn key(&self, group: u64) -> BufferKey {
        self.key_for(PRIMARY, group, SEGMENT)
    }

    fn bytes(&self, group: u64, len: usize) -> Vec<u8> {
        let request = Request::Read {
            copy: copy(group),
            address: 0,
            len: len as u32,
        };
        match self.store.handle(PRIMARY, request) {
            Ok(Reply::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn seal(&self, epoch: u32) {
        let request = Request::Seal(Seal {
            streamlet: copy(1).streamlet,
            epoch: Epoch(epoch),
            copies: vec![],
        });
        self.store.handle(BrokerId(2), request).expect("seals");
    }
}

fn write(buffer: BufferKey, offset: u64, bytes: &[u8]) -> Write {
    // In parts, as they lie in chunks.
    let (a, b) = bytes.split_at(bytes.len() / 3);
    Write {
        buffer,
        offset,
        parts: vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)],
    }
}

async fn completed(link: &mut Box<dyn Link>, number: u64) {
    while poll_fn(|cx| link.poll_completed(cx))
        .await
        .expect("completes")
        < number
    {}
}

/// How a link ends, on which nothing may complete any more.
async fn ended(link: &mut Box<dyn Link>) -> LinkError {
    let polled = poll_fn(|cx| link.poll_completed(cx)).await;
    polled.expect_err("a write completed that should not")
}

/// How a link ends whose peer is gone, with a write under way: at rest it hears only of a peer that
/// takes its leave, which a card does not do for a connection whose making it has not seen the end of.
async fn ends(link: &mut Box<dyn Link>, key: BufferKey) -> LinkError {
    match link.submit(vec![write(key, 0, b"nobody")]) {
        Ok(_) => ended(link).await,
        Err(error) => error,
    }
}

/// Runs `story` where there is a card.
fn over_a_card<F: Future<Output = ()>>(test: &str, story: impl FnOnce(IpAddr) -> F) {
    if let Some(address) = machine::address(test) {
        machine::runtime().block_on(story(address));
    }
}

#[test]
fn auto_picks_rdma_where_there_is_a_card() {
    over_a_card("auto_picks_rdma_where_there_is_a_card", |_| async {
        let all = capabilities(1 << 20);
        assert_eq!(
            Preference::Auto.pick(&all),
            Ok(TransportKind::Rdma),
            "{all:?}"
        );
        println!("{all:?}");
    });
}

#[test]
fn writes_of_many_groups_and_sizes_arrive_where_they_belong() {
    over_a_card("writes_of_many_groups_and_sizes", |address| async move {
        let served = served(address).await;
        let mut link = served.link().await;
        let keys = [served.key(1), served.key(2), served.key(3)];
        let mut wanted = vec![vec![0u8; SEGMENT as usize]; keys.len()];
        let mut at = [0usize; 3];
        let mut last = 0;
        for round in 0..60usize {
            let mut writes = Vec::new();
            for (group, key) in keys.iter().enumerate() {
                let len = match (round + group) % 5 {
                    0 => 1,
                    1 => 61,
                    2 => 700,
                    3 => 5000,
                    _ => 0,
                } * (1 + round % 3);
                // Some are larger than the ring, one than a single request may be.
                let len = if round % 20 == 7 { 200_000 } else { len };
                let len = len.min(SEGMENT as usize - at[group]);
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + round + group) as u8).collect();
                wanted[group][at[group]..at[group] + len].copy_from_slice(&bytes);
                writes.push(write(*key, at[group] as u64, &bytes));
                at[group] += len;
            }
            last = link.submit(writes).expect("is taken");
            assert_eq!(last, round as u64 + 1);
            if round % 7 == 0 {
                completed(&mut link, last).await;
            }
        }
        completed(&mut link, last).await;
        for (group, wanted) in wanted.iter().enumerate() {
            let found = served.bytes(group as u64 + 1, wanted.len());
            assert!(found == *wanted, "group {}", group + 1);
        }
        // Nothing to send completes behind what is sent.
        let after = link.submit(vec![]).expect("is taken");
        completed(&mut link, after).await;
    });
}

#[test]
fn a_wrong_key_is_refused_and_what_was_before_it_counts() {
    over_a_card("a_wrong_key_is_refused", |address| async move {
        let served = served(address).await;
        let key = served.key(1);
        for wrong in [BufferKey(key.0 ^ 1), BufferKey(key.0 ^ 0x100), BufferKey(0)] {
            let mut link = served.link().await;
            let first = link
                .submit(vec![write(key, 0, b"right")])
                .expect("is taken");
            let second = link
                .submit(vec![write(wrong, 8, b"wrong")])
                .expect("is taken");
            link.submit(vec![write(key, 16, b"after")])
                .expect("is taken");
            assert_eq!((first, second), (1, 2));
            let mut highest = 0;
            let error = loop {
                match poll_fn(|cx| link.poll_completed(cx)).await {
                    Ok(number) => highest = number,
                    Err(error) => break error,
                }
            };
            assert_eq!(highest, 1, "the first completed, the others never");
            assert!(
                matches!(&error, LinkError::Refused { buffer, .. } if *buffer == Some(wrong)),
                "{error}"
            );
            assert_eq!(link.submit(vec![]), Err(error));
        }
        assert_eq!(served.bytes(1, 13), b"right\0\0\0\0\0\0\0\0");
    });
}

#[test]
fn out_of_bounds_is_refused() {
    over_a_card("out_of_bounds_is_refused", |address| async move {
        let served = served(address).await;
        let (key, beside) = (served.key_for(PRIMARY, 1, 4096), served.key(2));
        for offset in [1 << 40, u64::MAX - 1] {
            let mut link = served.link().await;
            let refused = link.submit(vec![write(key, offset, b"over")]);
            assert!(
                matches!(&refused, Err(LinkError::Refused { buffer, .. }) if *buffer == Some(key)),
                "{offset}: {refused:?}"
            );
        }
        for offset in [4095, 4096, 1 << 30] {
            let mut link = served.link().await;
            link.submit(vec![write(key, offset, b"over")])
                .expect("is taken");
            let error = ended(&mut link).await;
            assert!(
                matches!(&error, LinkError::Refused { buffer, .. } if *buffer == Some(key)),
                "{offset}: {error}"
            );
        }
        assert!(served.bytes(1, 8192).iter().all(|byte| *byte == 0));
        let mut link = served.link().await;
        let last = link.submit(vec![write(key, 4091, b"fits!"), write(beside, 0, b"too")]);
        completed(&mut link, last.expect("is taken")).await;
        assert_eq!(served.bytes(1, 4096)[4091..], *b"fits!");
    });
}

#[test]
fn another_primarys_buffer_is_refused() {
    over_a_card("another_primarys_buffer_is_refused", |address| async move {
        let served = served(address).await;
        let theirs = served.key_for(BrokerId(2), 1, SEGMENT);
        let mut link = served.link().await;
        link.submit(vec![write(theirs, 0, b"stolen")])
            .expect("is taken");
        let error = ended(&mut link).await;
        assert!(matches!(error, LinkError::Refused { .. }), "{error}");
        let other = transport(BrokerId(2), served.address);
        let mut link = other
            .connect(BACKUP, served.store.process())
            .await
            .expect("connects");
        let last = link
            .submit(vec![write(theirs, 0, b"own")])
            .expect("is taken");
        completed(&mut link, last).await;
        assert_eq!(served.bytes(1, 6), b"own\0\0\0");
    });
}

#[test]
fn a_seal_ends_the_connection_and_a_new_one_writes_nothing() {
    over_a_card("a_seal_ends_the_connection", |address| async move {
        let served = served(address).await;
        let key = served.key(1);
        let mut link = served.link().await;
        let last = link
            .submit(vec![write(key, 0, b"before")])
            .expect("is taken");
        completed(&mut link, last).await;
        served.seal(8);
        // The connection is gone, whether the writer has heard of it or not.
        let submitted = link.submit(vec![write(key, 6, b"after")]);
        let error = ended(&mut link).await;
        assert!(submitted.is_ok() || submitted == Err(error.clone()));
        assert!(
            matches!(error, LinkError::Broken { .. } | LinkError::Refused { .. }),
            "{error}"
        );
        let mut link = served.link().await;
        link.submit(vec![write(key, 6, b"after")])
            .expect("is taken");
        let error = ended(&mut link).await;
        assert!(
            matches!(&error, LinkError::Refused { buffer, .. } if *buffer == Some(key)),
            "{error}"
        );
        assert_eq!(served.bytes(1, 11), b"before\0\0\0\0\0");
    });
}

#[test]
fn a_closed_copy_takes_nothing_and_others_go_on() {
    over_a_card("a_closed_copy_takes_nothing", |address| async move {
        let served = served(address).await;
        let (closed, open) = (served.key(1), served.key(2));
        let mut link = served.link().await;
        let last = link.submit(vec![write(open, 0, b"one")]).expect("is taken");
        completed(&mut link, last).await;
        let request = Request::Flush {
            copy: copy(1),
            length: 0,
            closed: true,
        };
        // Without bytes there is nothing to close at; freed, it is gone all the same.
        let _ = served.store.handle(PRIMARY, request);
        let request = Request::Free {
            copy: copy(1),
            epoch: Epoch(7),
            version: None,
        };
        served.store.handle(PRIMARY, request).expect("frees");
        let mut link = served.link().await;
        let last = link.submit(vec![write(open, 3, b"two")]).expect("is taken");
        completed(&mut link, last).await;
        link.submit(vec![write(closed, 0, b"late")])
            .expect("is taken");
        let error = ended(&mut link).await;
        assert!(
            matches!(&error, LinkError::Refused { buffer, .. } if *buffer == Some(closed)),
            "{error}"
        );
        assert_eq!(served.bytes(2, 6), b"onetwo");
    });
}

#[test]
fn another_process_is_told_so() {
    over_a_card("another_process_is_told_so", |address| async move {
        let served = served(address).await;
        let process = ProcessId(served.store.process().0 ^ 1);
        let connected = served.transport.connect(BACKUP, process).await;
        assert_eq!(connected.err(), Some(LinkError::OtherProcess(BACKUP)));
        let nobody = transport(PRIMARY, SocketAddr::new(address, 1));
        let connected = nobody.connect(BACKUP, process).await;
        let error = connected.err().expect("nobody is there");
        assert!(
            matches!(&error, LinkError::Unreachable { reason, .. } if reason.contains("no replica store listens")),
            "{error}"
        );
    });
}

#[test]
fn a_new_connection_takes_the_place_of_the_last() {
    over_a_card("a_new_connection_takes_the_place", |address| async move {
        let served = served(address).await;
        let key = served.key(1);
        let mut first = served.link().await;
        let last = first
            .submit(vec![write(key, 0, b"first")])
            .expect("is taken");
        completed(&mut first, last).await;
        let mut second = served.link().await;
        let error = ends(&mut first, key).await;
        assert!(matches!(error, LinkError::Broken { .. }), "{error}");
        let last = second
            .submit(vec![write(key, 5, b"second")])
            .expect("is taken");
        completed(&mut second, last).await;
        assert_eq!(served.bytes(1, 11), b"firstsecond");
    });
}

#[test]
fn a_server_that_stops_ends_its_connections() {
    over_a_card("a_server_that_stops", |address| async move {
        let served = served(address).await;
        let key = served.key(1);
        let mut link = served.link().await;
        served.server.stop();
        served.task.await.expect("no panic").expect("ends well");
        let error = ends(&mut link, key).await;
        assert!(matches!(error, LinkError::Broken { .. }), "{error}");
        let again = served
            .transport
            .connect(BACKUP, served.store.process())
            .await;
        assert!(matches!(again.err(), Some(LinkError::Unreachable { .. })));
    });
}

#[test]
fn without_rdma_at_the_backup_data_goes_over_tcp() {
    use kera_replication::transport::tcp::{BackupServer, ServerOptions};

    over_a_card("without_rdma_at_the_backup", |address| async move {
        let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
        let memory = ShmMemory::new(ShmOptions {
            dir: dir.path().join("shared"),
            disk: None,
            quota: 8 << 20,
        });
        let limits = Limits {
            memory_bytes: 8 << 20,
            ..Limits::default()
        };
        let store = ReplicaStore::start(memory, limits, Faults::default()).expect("starts");
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = BackupServer::new(store.clone(), ServerOptions::default());
        tokio::spawn(async move { server.serve(listener).await });
        let tcp = TcpTransport::new(PRIMARY, LinkOptions::default());
        let options = RdmaOptions::default();
        let transport = RdmaTransport::new(PRIMARY, options, tcp, Otherwise::Tcp);
        transport.set_address(BACKUP, &address).expect("an address");
        let request = Request::Open {
            copy: copy(1),
            incarnation: store.incarnation(),
            primary: PRIMARY,
            segment_size: SEGMENT,
            segments: 2,
            address: 0,
            bytes: 4096,
        };
        let opened = transport.call(BACKUP, request).await.expect("opens");
        let Reply::Opened(opened) = opened else {
            panic!("{opened:?}");
        };
        let link = transport.connect(BACKUP, store.process()).await;
        let mut link = link.expect("connects");
        let key = opened.buffers[0].key;
        let last = link
            .submit(vec![write(key, 0, b"over tcp")])
            .expect("is taken");
        completed(&mut link, last).await;
        let read = Request::Read {
            copy: copy(1),
            address: 0,
            len: 8,
        };
        let read = store.handle(PRIMARY, read);
        assert_eq!(read, Ok(Reply::Bytes(Bytes::from_static(b"over tcp"))));
    });
}
