//! Data connections to a server, within one process.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::ids::{Epoch, StreamId};
use kera_replication::backup::{ReplicaStore, ShmMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, BufferKey, ProcessId};
use kera_replication::transport::tcp::{BackupServer, LinkOptions, ServerOptions, TcpTransport};
use kera_replication::transport::{
    CallError, CopyAnswer, Link, LinkError, Refusal, Reply, Request, Seal, Transport, Write,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::content::{SEGMENT, copy, segment};
use crate::stage::{Ask, PRIMARY, limits, options, shared_dir, whole};

const BACKUP: BrokerId = BrokerId(4);

struct Served {
    store: Arc<ReplicaStore>,
    server: Arc<BackupServer>,
    task: JoinHandle<std::io::Result<()>>,
    address: String,
    transport: TcpTransport,
    /// Keeps the port when the server has stopped.
    _port: TcpSocket,
    _dir: TempDir,
}

async fn served(server: ServerOptions, link: LinkOptions) -> Served {
    let dir = shared_dir();
    let memory = ShmMemory::new(options(dir.path(), false));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    let port = TcpSocket::new_v4().expect("a socket");
    port.set_reuseaddr(true).expect("a port can be shared");
    let any = "127.0.0.1:0".parse().expect("an address");
    port.bind(any).expect("a port");
    let address = port.local_addr().expect("an address").to_string();
    let listener = TcpListener::bind(&address).await.expect("its port");
    let server = BackupServer::new(store.clone(), server);
    let serving = server.clone();
    let task = tokio::spawn(async move { serving.serve(listener).await });
    let transport = TcpTransport::new(PRIMARY, link);
    transport.set_address(BACKUP, &address).expect("an address");
    Served {
        store,
        server,
        task,
        address,
        transport,
        _port: port,
        _dir: dir,
    }
}

impl Served {
    async fn link(&self) -> Box<dyn Link> {
        let connected = self.transport.connect(BACKUP, self.store.process()).await;
        connected.expect("connects")
    }

    fn key(&self, group: u64) -> BufferKey {
        let opened = self.store.open_first(&copy(group, 7));
        opened.expect("opens").buffers[0].key
    }

    /// A connection that has said `hello` by hand.
    async fn raw(&self, hello: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.expect("connects");
        stream.write_all(hello).await.expect("is sent");
        stream
    }

    fn hello(&self, process: ProcessId) -> Vec<u8> {
        let mut hello = b"KERAREPL\x02\0\0\0".to_vec();
        hello.extend_from_slice(&PRIMARY.0.to_le_bytes());
        hello.extend_from_slice(&process.0.to_le_bytes());
        hello
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

/// What a backup says before it closes.
async fn last_words(stream: &mut TcpStream) -> String {
    let mut words = Vec::new();
    let _ = stream.read_to_end(&mut words).await;
    String::from_utf8_lossy(&words).into_owned()
}

#[tokio::test]
async fn writes_of_many_groups_and_sizes_arrive_where_they_belong() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let mut link = served.link().await;
    let keys = [served.key(1), served.key(2), served.key(3)];
    let mut wanted = vec![vec![0u8; SEGMENT as usize]; keys.len()];
    let mut at = [0usize; 3];
    let mut last = 0;
    for round in 0..60usize {
        let mut writes = Vec::new();
        for (group, key) in keys.iter().enumerate() {
            // From a few bytes to more than the receiver keeps beside a copy's memory.
            let len = match (round + group) % 5 {
                0 => 1,
                1 => 61,
                2 => 700,
                3 => 3000,
                _ => 0,
            } * (1 + round % 3);
            let len = if round == 20 { 20_000 } else { len };
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
        let found = served.store.bytes(&copy(group as u64 + 1, 7), wanted.len());
        assert!(found == *wanted, "group {}", group + 1);
    }
}

#[tokio::test]
async fn an_empty_submission_completes_behind_those_before_it() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let mut link = served.link().await;
    assert_eq!(link.submit(vec![]), Ok(1));
    completed(&mut link, 1).await;
    let key = served.key(1);
    link.submit(vec![write(key, 0, &[1; 100])])
        .expect("is taken");
    assert_eq!(link.submit(vec![write(key, 0, &[])]), Ok(3));
    completed(&mut link, 3).await;
    assert_eq!(served.store.bytes(&copy(1, 7), 100), [1; 100]);
}

#[tokio::test]
async fn a_seal_ends_the_link_and_what_was_placed_before_is_told() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let mut link = served.link().await;
    let (id, key) = (copy(1, 7), served.key(1));
    let content = segment(&id, 3, 500);
    link.submit(vec![write(key, 0, &content.bytes)])
        .expect("is taken");
    completed(&mut link, 1).await;
    let here = served.store.incarnation();
    assert_eq!(served.store.seal(&id, 8, here), Ok(whole(&content)));
    link.submit(vec![write(key, content.bytes.len() as u64, &[9; 4000])])
        .expect("is taken");
    let ended = poll_fn(|cx| link.poll_completed(cx)).await;
    let Err(LinkError::Refused { buffer, reason, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(buffer, Some(key));
    assert!(reason.contains("epoch 8 has sealed"), "{reason}");
    assert!(link.submit(vec![]).is_err(), "a link does not come back");
    assert_eq!(served.store.seal(&id, 8, here), Ok(whole(&content)));
}

#[tokio::test]
async fn a_write_that_was_begun_before_a_seal_is_not_finished_after_it() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let (id, key) = (copy(1, 7), served.key(1));
    let content = segment(&id, 1, 20_000);
    let mut stream = served.raw(&served.hello(served.store.process())).await;
    let mut welcome = [0; 16];
    stream.read_exact(&mut welcome).await.expect("a welcome");
    let mut head = b"KRWR".to_vec();
    head.extend_from_slice(&(content.bytes.len() as u32).to_le_bytes());
    head.extend_from_slice(&key.0.to_le_bytes());
    head.extend_from_slice(&0u64.to_le_bytes());
    let (first, rest) = content.bytes.split_at(10_000);
    stream.write_all(&head).await.expect("is sent");
    stream.write_all(first).await.expect("is sent");
    while served.store.bytes(&id, first.len()) != first {
        tokio::task::yield_now().await;
    }
    let here = served.store.incarnation();
    let scanned = served.store.seal(&id, 8, here).expect("seals");
    assert!(matches!(scanned, CopyAnswer::Scanned { length, .. } if length < content.ends[0]));
    stream.write_all(rest).await.expect("is sent");
    let words = last_words(&mut stream).await;
    assert!(words.contains("epoch 8 has sealed"), "{words:?}");
    assert_eq!(served.store.seal(&id, 8, here), Ok(scanned));
}

#[tokio::test]
async fn a_primarys_new_connection_takes_the_place_of_its_old_one() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let mut old = served.link().await;
    let mut new = served.link().await;
    let ended = poll_fn(|cx| old.poll_completed(cx)).await;
    let Err(LinkError::Broken { reason, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert!(reason.contains("newer connection"), "{reason}");
    let key = served.key(1);
    new.submit(vec![write(key, 0, &[5; 10])]).expect("is taken");
    completed(&mut new, 1).await;

    // Another primary's connection is nobody else's business, and reaches nobody else's buffers.
    let other = TcpTransport::new(BrokerId(2), LinkOptions::default());
    other
        .set_address(BACKUP, &served.address)
        .expect("an address");
    let connected = other.connect(BACKUP, served.store.process()).await;
    let mut foreign = connected.expect("connects");
    foreign
        .submit(vec![write(key, 0, &[6; 10])])
        .expect("is taken");
    let ended = poll_fn(|cx| foreign.poll_completed(cx)).await;
    assert!(matches!(ended, Err(LinkError::Refused { .. })), "{ended:?}");
    new.submit(vec![write(key, 10, &[5; 10])])
        .expect("is taken");
    completed(&mut new, 2).await;
    assert_eq!(served.store.bytes(&copy(1, 7), 20), [5; 20]);
}

#[tokio::test]
async fn bytes_that_make_no_sense_end_the_connection_with_a_reason() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let process = served.store.process();
    let mut after_hello = served.raw(&served.hello(process)).await;
    after_hello.write_all(&[7; 100]).await.expect("is sent");
    let words = last_words(&mut after_hello).await;
    assert!(words.contains("a write should begin here"), "{words:?}");

    let mut newer = served.hello(process);
    newer[8] = 9;
    let words = last_words(&mut served.raw(&newer).await).await;
    assert!(words.contains("version 9"), "{words:?}");

    let mut other = served.hello(ProcessId(process.0 ^ 1));
    let words = last_words(&mut served.raw(&other).await).await;
    assert!(words.contains("was restarted and"), "{words:?}");

    // Beyond its buffer; and without bytes.
    other = served.hello(process);
    other.extend_from_slice(b"KRWR");
    other.extend_from_slice(&9u32.to_le_bytes());
    other.extend_from_slice(&served.key(1).0.to_le_bytes());
    other.extend_from_slice(&u64::MAX.to_le_bytes());
    let words = last_words(&mut served.raw(&other).await).await;
    assert!(words.contains("do not fit a buffer"), "{words:?}");
    let len = other.len();
    other[len - 20..len - 16].fill(0);
    let words = last_words(&mut served.raw(&other).await).await;
    assert!(words.contains("no bytes"), "{words:?}");
}

/// A write as it travels; `magic` says whether a word is wanted.
fn raw_write(magic: &[u8; 4], key: BufferKey, bytes: &[u8]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&key.0.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

/// The number of writes that a backup says are placed, next.
async fn next_done(stream: &mut TcpStream) -> u64 {
    let mut word = [0; 16];
    stream.read_exact(&mut word).await.expect("a word");
    let word = word.as_slice();
    assert_eq!(word[..6], *b"KRBK\x02\0", "{word:?}");
    u64::from_le_bytes(word[8..].try_into().expect("8 bytes"))
}

#[tokio::test]
async fn a_backup_says_what_is_placed_when_the_primary_waits_for_it() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let key = served.key(1);
    let mut stream = served.raw(&served.hello(served.store.process())).await;
    let mut welcome = [0; 16];
    stream.read_exact(&mut welcome).await.expect("a welcome");
    for value in 1..=3u8 {
        let write = raw_write(b"KRWR", key, &[value; 100]);
        stream.write_all(&write).await.expect("is sent");
        while served.store.bytes(&copy(1, 7), 100) != [value; 100] {
            tokio::task::yield_now().await;
        }
    }
    // Nothing was said of these three: each could have had a word, and the first one would say 1.
    let last = raw_write(b"KRWS", key, &[4; 100]);
    stream.write_all(&last).await.expect("is sent");
    assert_eq!(next_done(&mut stream).await, 4);

    // Of very much it speaks anyway: whoever waits for the end of it sees that it goes on.
    let large = raw_write(b"KRWR", key, &[5; 64 << 10]);
    for _ in 0..9 {
        stream.write_all(&large).await.expect("is sent");
    }
    let done = next_done(&mut stream).await;
    assert!((5..=13).contains(&done), "{done}");
}

#[tokio::test]
async fn a_server_stops_while_a_primary_rests_and_while_a_large_write_is_halfway() {
    for sent in [0, 10_000] {
        let served = served(ServerOptions::default(), LinkOptions::default()).await;
        let key = served.key(1);
        let mut stream = served.raw(&served.hello(served.store.process())).await;
        let mut welcome = [0; 16];
        stream.read_exact(&mut welcome).await.expect("a welcome");
        if sent > 0 {
            let mut write = raw_write(b"KRWS", key, &[7; 20_000]);
            write.truncate(24 + sent);
            stream.write_all(&write).await.expect("is sent");
            while served.store.bytes(&copy(1, 7), sent) != vec![7; sent] {
                tokio::task::yield_now().await;
            }
        }
        served.server.stop();
        served.task.await.expect("no panic").expect("serves");
        let words = last_words(&mut stream).await;
        assert!(words.contains("the replica store is stopping"), "{words:?}");
    }
}

#[tokio::test]
async fn a_write_that_stops_halfway_is_given_up() {
    let server = ServerOptions {
        stall_timeout: Duration::from_millis(50),
        ..ServerOptions::default()
    };
    let served = served(server, LinkOptions::default()).await;
    let mut hello = served.hello(served.store.process());
    hello.extend_from_slice(b"KRWR");
    let mut stream = served.raw(&hello).await;
    let words = last_words(&mut stream).await;
    assert!(words.contains("did not come within"), "{words:?}");
}

#[tokio::test]
async fn a_backup_that_stops_reading_is_noticed_and_a_full_link_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let silent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut hello = [0; 24];
        stream.read_exact(&mut hello).await.expect("a hello");
        let mut welcome = *b"KRBK\x01\0\0\0\0\0\0\0\0\0\0\0";
        welcome[4] = 1;
        stream.write_all(&welcome).await.expect("is sent");
        std::future::pending::<()>().await;
        drop(stream);
    });
    let options = LinkOptions {
        unsent_bytes: 1 << 20,
        stall_timeout: Duration::from_millis(50),
        ..LinkOptions::default()
    };
    let transport = TcpTransport::new(PRIMARY, options);
    transport.set_address(BACKUP, &address).expect("an address");
    let mut link = transport
        .connect(BACKUP, ProcessId(1))
        .await
        .expect("connects");
    let big = vec![1; 1 << 20];
    let full = loop {
        if let Err(error) = link.submit(vec![write(BufferKey(1), 0, &big)]) {
            break error;
        }
    };
    assert_eq!(full, LinkError::Full(BACKUP));
    let ended = poll_fn(|cx| link.poll_completed(cx)).await;
    let Err(LinkError::Broken { reason, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert!(reason.contains("nothing was heard"), "{reason}");
    silent.abort();
}

#[tokio::test]
async fn a_backup_that_is_not_there_is_said_to_be() {
    let transport = TcpTransport::new(PRIMARY, LinkOptions::default());
    assert!(transport.set_address(BACKUP, "no address").is_err());
    let called = transport.call(BACKUP, Request::Describe).await;
    assert!(matches!(called, Err(CallError::Lost { .. })));
    // Bound and never listening: nobody else is given the port, and who connects is refused.
    let closed = TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    closed.bind(any).expect("a port");
    let address = closed.local_addr().expect("an address").to_string();
    transport.set_address(BACKUP, &address).expect("an address");
    let connected = transport.connect(BACKUP, ProcessId(1)).await;
    assert!(matches!(
        connected.err(),
        Some(LinkError::Unreachable { .. })
    ));
    let called = transport.call(BACKUP, Request::Describe).await;
    assert!(matches!(called, Err(CallError::Lost { .. })), "{called:?}");
}

#[tokio::test]
async fn control_connections_count_as_long_as_they_last() {
    let options = ServerOptions {
        connections: 1,
        ..ServerOptions::default()
    };
    let served = served(options, LinkOptions::default()).await;
    let asked = served.transport.call(BACKUP, Request::Describe).await;
    asked.expect("there is room for one");
    let other = TcpTransport::new(BrokerId(2), LinkOptions::default());
    other
        .set_address(BACKUP, &served.address)
        .expect("an address");
    let refused = other.call(BACKUP, Request::Describe).await;
    assert!(
        matches!(refused, Err(CallError::Lost { .. })),
        "{refused:?}"
    );
    let again = served.transport.call(BACKUP, Request::Describe).await;
    again.expect("the first goes on");
    let Served { transport, .. } = served;
    drop(transport);
    // Its connection ends a moment later.
    while other.call(BACKUP, Request::Describe).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn control_calls_give_what_the_store_gives() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let id = copy(1, 7);
    let content = segment(&id, 3, 8000);
    served.store.fill(&id, &content).expect("fills");
    let ask = |request: Request| served.transport.call(BACKUP, request);
    let here = served.store.incarnation();
    let requests = [
        Request::Describe,
        Request::Flush {
            copy: id,
            length: 1 << 40,
            closed: false,
        },
        Request::Seal(Seal {
            streamlet: id.streamlet,
            epoch: Epoch(8),
            copies: vec![(id, here), (copy(2, 7), here), (id, Default::default())],
        }),
        Request::Seal(Seal {
            streamlet: id.streamlet,
            epoch: Epoch(6),
            copies: vec![],
        }),
        Request::Complete {
            copy: id,
            epoch: Epoch(9),
            segment_size: SEGMENT,
            segments: 4,
            address: 0,
            bytes: content.bytes.clone().into(),
        },
        Request::Complete {
            copy: id,
            epoch: Epoch(8),
            segment_size: SEGMENT,
            segments: 4,
            address: 0,
            bytes: content.bytes.clone().into(),
        },
        Request::Read {
            copy: id,
            address: 3,
            len: 4 * SEGMENT,
        },
        Request::Read {
            copy: copy(9, 7),
            address: 0,
            len: 1,
        },
        Request::Forget {
            stream: StreamId::from_slice(&[9; 16]).expect("16 bytes"),
        },
        Request::List { streamlet: None },
        Request::List {
            streamlet: Some(id.streamlet),
        },
        Request::Free {
            copy: id,
            epoch: Epoch(7),
            version: None,
        },
        Request::Free {
            copy: id,
            epoch: Epoch(8),
            version: None,
        },
    ];
    let mut refused = 0;
    for request in requests {
        let far = ask(request.clone()).await;
        let near = served.store.handle(PRIMARY, request.clone());
        let near = near.map_err(|refusal| CallError::Refused {
            backup: BACKUP,
            refusal,
        });
        refused += usize::from(near.is_err());
        assert_eq!(far, near, "{}", request.name());
    }
    assert_eq!(refused, 5);
    let opened = ask(Request::Open {
        copy: copy(3, 7),
        incarnation: here,
        primary: PRIMARY,
        segment_size: SEGMENT,
        segments: 4,
        address: 0,
        bytes: 1,
    });
    let sealed = Refusal::Sealed { by: Epoch(8) };
    let refusal = opened.await.expect_err("is sealed");
    assert_eq!(refusal.refusal(), Some(&sealed));
    assert!(matches!(
        ask(Request::Describe).await,
        Ok(Reply::Description(_))
    ));
}

#[tokio::test]
async fn a_server_that_stops_places_nothing_more() {
    let served = served(ServerOptions::default(), LinkOptions::default()).await;
    let mut link = served.link().await;
    served.server.stop();
    served.task.await.expect("no panic").expect("ends well");
    let ended = poll_fn(|cx| link.poll_completed(cx)).await;
    assert!(matches!(ended, Err(LinkError::Broken { .. })), "{ended:?}");
    let again = served
        .transport
        .connect(BACKUP, served.store.process())
        .await;
    assert!(matches!(again.err(), Some(LinkError::Unreachable { .. })));
}

#[tokio::test]
async fn open_copies_are_flushed_at_an_interval() {
    let server = ServerOptions {
        flush_interval: Duration::from_millis(5),
        ..ServerOptions::default()
    };
    let dir = shared_dir();
    let memory = ShmMemory::new(options(dir.path(), true));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = BackupServer::new(store.clone(), server);
    let serving = server.clone();
    let task = tokio::spawn(async move { serving.serve(listener).await });
    let id = copy(1, 7);
    let content = segment(&id, 3, 500);
    let (first, rest) = content.bytes.split_at(content.ends[1] as usize);
    let key = store.open_first(&id).expect("opens").buffers[0].key;
    let region = store.region(PRIMARY, key).expect("is registered");
    let stream = id.streamlet.stream.to_string();
    let file = dir.path().join("disk").join(stream).join("1/1.0.log");
    let mut at = 0;
    for part in [first, rest] {
        region.place(at as u64, part).expect("fits");
        at += part.len();
        // Once the record is there the copy would be found after a reboot.
        // The file may be shorter than it will be.
        let there = || std::fs::read(&file).is_ok_and(|b| b.get(..at) == content.bytes.get(..at));
        while !there() || !file.with_extension("copy").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    server.stop();
    task.await.expect("no panic").expect("ends well");
    drop((store, region, server));
    // Shared memory is lost; what was flushed is found.
    std::fs::remove_dir_all(dir.path().join("shared")).expect("is removed");
    let memory = ShmMemory::new(options(dir.path(), true));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    assert_eq!(store.bytes(&id, content.bytes.len()), content.bytes);
    let here = store.incarnation();
    assert_eq!(
        store.seal(&id, 8, here),
        Ok(CopyAnswer::Unknown),
        "of another life"
    );
}
