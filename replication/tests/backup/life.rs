//! The life of a store's process, with real processes and real signals.

use std::fs;
use std::future::poll_fn;

use bytes::Bytes;
use kera_protocol::ids::Epoch;
use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, StartError};
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::transport::tcp::{LinkOptions, TcpTransport};
use kera_replication::transport::{
    CallError, CopyState, Description, KnownList, LinkError, Refusal, Reply, Request, Seal,
    Transport, Write,
};

use crate::child;
use crate::content::{SEGMENT, SEGMENTS, copy, segment};
use crate::stage::{Ask, PRIMARY, limits, options, shared_dir, whole};

const BACKUP: BrokerId = BrokerId(4);

async fn describe(transport: &TcpTransport) -> Description {
    match transport.call(BACKUP, Request::Describe).await {
        Ok(Reply::Description(description)) => description,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_the_backup_was_killed() {
    let dir = shared_dir();
    let backup = child::start(dir.path()).expect("starts");
    let transport = TcpTransport::new(PRIMARY, LinkOptions::default());
    transport
        .set_address(BACKUP, &backup.address)
        .expect("an address");
    let described = describe(&transport).await;

    let id = copy(1, 7);
    let content = segment(&id, 6, 2000);
    let open = Request::Open {
        copy: id,
        incarnation: described.incarnation,
        primary: PRIMARY,
        segment_size: SEGMENT,
        segments: SEGMENTS,
        address: 0,
        bytes: SEGMENT,
    };
    let opened = match transport.call(BACKUP, open.clone()).await {
        Ok(Reply::Opened(opened)) => opened,
        other => panic!("{other:?}"),
    };
    let connected = transport.connect(BACKUP, described.process).await;
    let mut link = connected.expect("connects");
    let mut from = 0;
    let mut last = 0;
    for end in &content.ends {
        let bytes = Bytes::copy_from_slice(&content.bytes[from as usize..*end as usize]);
        let write = Write {
            buffer: opened.buffers[0].key,
            offset: from,
            parts: vec![bytes],
        };
        last = link.submit(vec![write]).expect("is taken");
        from = *end;
    }
    while poll_fn(|cx| link.poll_completed(cx))
        .await
        .expect("completes")
        < last
    {}
    backup.kill();
    let broken = poll_fn(|cx| link.poll_completed(cx)).await;
    assert!(
        matches!(broken, Err(LinkError::Broken { .. })),
        "{broken:?}"
    );

    let backup = child::start(dir.path()).expect("starts again");
    transport
        .set_address(BACKUP, &backup.address)
        .expect("an address");
    // The same store and boot, another process: nothing may be sent to it that was begun before.
    let again = describe(&transport).await;
    assert_eq!(again.incarnation, described.incarnation);
    let refused = transport.connect(BACKUP, described.process).await;
    assert!(matches!(
        refused.err(),
        Some(LinkError::OtherProcess(BACKUP))
    ));
    let refused = transport.call(BACKUP, open).await;
    let sealed = Refusal::Sealed { by: Epoch(7) };
    assert_eq!(
        refused,
        Err(CallError::Refused {
            backup: BACKUP,
            refusal: sealed
        })
    );
    let seal = Request::Seal(Seal {
        streamlet: id.streamlet,
        epoch: Epoch(8),
        copies: vec![(id, described.incarnation)],
    });
    match transport.call(BACKUP, seal).await {
        Ok(Reply::Sealed(sealed)) => assert_eq!(sealed[0].answer, whole(&content)),
        other => panic!("{other:?}"),
    }
    let read = Request::Read {
        copy: id,
        address: 0,
        len: content.bytes.len() as u32,
    };
    let read = transport.call(BACKUP, read).await;
    assert_eq!(read, Ok(Reply::Bytes(content.bytes.clone().into())));
    let list = transport
        .call(BACKUP, Request::List { streamlet: None })
        .await;
    match list {
        Ok(Reply::Copies(copies)) => assert_eq!(copies[0].state, CopyState::Sealed),
        other => panic!("{other:?}"),
    }
    let changed = async |known: Vec<KnownList>| {
        let asked = Request::ListChanged { known };
        match transport.call(BACKUP, asked).await {
            Ok(Reply::Changed(lists)) => lists,
            other => panic!("{other:?}"),
        }
    };
    let mut other = id.streamlet;
    other.streamlet.0 += 1;
    let known = |streamlet, tag| KnownList { streamlet, tag };
    let first = changed(vec![known(id.streamlet, None), known(other, None)]).await;
    let told: Vec<_> = first
        .iter()
        .map(|list| (list.streamlet, list.copies.len()))
        .collect();
    assert_eq!(told, [(id.streamlet, 1), (other, 0)]);
    let again: Vec<_> = first
        .iter()
        .map(|list| known(list.streamlet, list.tag))
        .collect();
    assert_eq!(changed(again.clone()).await, []);
    let free = Request::free(id, Epoch(8), Some(first[0].copies[0].version));
    assert_eq!(transport.call(BACKUP, free).await, Ok(Reply::Done));
    let last = changed(again).await;
    assert_eq!(last.len(), 1, "{last:?}");
    assert_eq!((last[0].streamlet, last[0].copies.len()), (id.streamlet, 0));
}

#[tokio::test]
async fn a_seal_outlives_the_process_that_gave_it() {
    let dir = shared_dir();
    let backup = child::start(dir.path()).expect("starts");
    let transport = TcpTransport::new(PRIMARY, LinkOptions::default());
    transport
        .set_address(BACKUP, &backup.address)
        .expect("an address");
    let id = copy(1, 7);
    let seal = Request::Seal(Seal {
        streamlet: id.streamlet,
        epoch: Epoch(8),
        copies: vec![],
    });
    let sealed = transport.call(BACKUP, seal).await;
    assert_eq!(sealed, Ok(Reply::Sealed(vec![])));
    backup.kill();
    let memory = ShmMemory::new(options(dir.path(), true));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    assert_eq!(store.open_first(&id), Err(Refusal::Sealed { by: Epoch(8) }));
}

#[test]
fn a_store_is_served_by_one_process_at_a_time() {
    let dir = shared_dir();
    let first = child::start(dir.path()).expect("starts");
    let second = child::start(dir.path()).err().expect("is refused");
    assert!(
        second.contains(&format!("process {}", first.pid())),
        "{second}"
    );
    first.kill();
    child::start(dir.path()).expect("starts when the first is gone");
}

#[test]
fn a_file_system_smaller_than_the_quota_is_refused_at_the_start() {
    let dir = shared_dir();
    let mut options = options(dir.path(), false);
    options.quota = u64::MAX;
    let limits = Limits {
        memory_bytes: u64::MAX,
        ..limits()
    };
    let started = ReplicaStore::start(ShmMemory::new(options), limits, Faults::default());
    assert!(matches!(started, Err(StartError::TooSmall { .. })));
}

#[test]
fn a_store_that_cannot_be_trusted_does_not_start() {
    let start = |dir: &std::path::Path| {
        let memory = ShmMemory::new(options(dir, false));
        ReplicaStore::start(memory, limits(), Faults::default())
    };
    let dir = shared_dir();
    let store = start(dir.path()).expect("starts");
    store
        .seal(&copy(1, 7), 8, store.incarnation())
        .expect("seals");
    drop(store);
    let seals = dir.path().join("shared/SEALS");
    let mut bytes = fs::read(&seals).expect("the seals");
    bytes[40] ^= 1;
    fs::write(&seals, bytes).expect("writes");
    let error = start(dir.path()).expect_err("damaged seals").to_string();
    assert!(
        error.contains("SEALS") && error.contains("checksum"),
        "{error}"
    );

    let dir = shared_dir();
    fs::create_dir(dir.path().join("shared")).expect("a directory");
    fs::write(dir.path().join("shared/holiday.jpg"), b"x").expect("writes");
    let error = start(dir.path()).expect_err("foreign").to_string();
    assert!(error.contains("holiday.jpg"), "{error}");
}

#[test]
fn a_copy_whose_files_are_damaged_is_unknown_and_never_absent() {
    use kera_replication::transport::CopyAnswer;
    let dir = shared_dir();
    let start = || {
        let memory = ShmMemory::new(options(dir.path(), false));
        ReplicaStore::start(memory, limits(), Faults::default()).expect("starts")
    };
    let id = copy(3, 7);
    let store = start();
    let here = store.incarnation();
    store.fill(&id, &segment(&id, 1, 10)).expect("fills");
    drop(store);
    let record = dir
        .path()
        .join("shared")
        .join(id.streamlet.stream.to_string())
        .join("1/3.0.copy");
    let mut bytes = fs::read(&record).expect("a record");
    bytes[20] ^= 1;
    fs::write(&record, bytes).expect("writes");
    // The first start takes the files away; the second must know of them all the same.
    drop(start());
    let store = start();
    assert_eq!(store.seal(&id, 8, here), Ok(CopyAnswer::Unknown));
}

#[test]
fn a_file_without_a_record_is_no_copy() {
    use kera_replication::transport::CopyAnswer;
    let dir = shared_dir();
    let start = || {
        let memory = ShmMemory::new(options(dir.path(), false));
        ReplicaStore::start(memory, limits(), Faults::default()).expect("starts")
    };
    let id = copy(3, 7);
    let here = start().incarnation();
    let place = dir
        .path()
        .join("shared")
        .join(id.streamlet.stream.to_string())
        .join("1");
    fs::create_dir_all(&place).expect("a directory");
    // As a process leaves it that was killed while it opened a copy: nobody was told of it.
    fs::write(place.join("3.0.log"), b"old").expect("writes");
    let store = start();
    assert!(!place.join("3.0.log").exists());
    assert_eq!(store.seal(&id, 6, here), Ok(CopyAnswer::Absent));
    store.open_first(&id).expect("opens");
    assert_eq!(store.bytes(&id, 3), [0; 3]);
}
