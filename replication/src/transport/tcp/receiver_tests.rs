//! The receiver is fed what nobody should send.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};
use proptest::prelude::*;

use super::*;
use crate::backup::{Limits, ShmMemory, ShmOptions};
use crate::faults::Faults;
use crate::ids::{CopyId, StreamletKey};
use crate::transport::{Reply, Request};

const SEGMENT: u32 = 128 << 10;
const PRIMARY: BrokerId = BrokerId(1);

struct Fed {
    receiver: Receiver,
    store: Arc<ReplicaStore>,
    copy: CopyId,
    key: BufferKey,
    near: UnixStream,
    far: UnixStream,
    /// Bytes come as those that a TLS session decrypts.
    decrypted: bool,
    _dir: tempfile::TempDir,
}

fn fed() -> Fed {
    fed_with(SEGMENT)
}

/// A buffer of the segment's first `bytes`; nothing may be placed behind it.
fn fed_with(bytes: u32) -> Fed {
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a directory");
    let memory = ShmMemory::new(ShmOptions {
        dir: dir.path().join("store"),
        disk: None,
        quota: 1 << 20,
    });
    let store = ReplicaStore::start(memory, Limits::default(), Faults::default()).expect("starts");
    let copy = CopyId {
        streamlet: StreamletKey {
            stream: StreamId::random(),
            streamlet: StreamletId(0),
        },
        group: GroupId(1),
        epoch: Epoch(1),
        generation: 0,
    };
    let open = Request::Open {
        copy,
        incarnation: store.incarnation(),
        primary: PRIMARY,
        segment_size: SEGMENT,
        segments: 1,
        address: 0,
        bytes,
    };
    let Ok(Reply::Opened(opened)) = store.handle(PRIMARY, open) else {
        panic!("does not open");
    };
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).expect("does not wait");
    Fed {
        receiver: Receiver::new(store.clone(), PRIMARY),
        key: opened.buffers[0].key,
        store,
        copy,
        near,
        far,
        decrypted: false,
        _dir: dir,
    }
}

impl Fed {
    /// Sends `bytes` in pieces of these lengths, over and over, and lets the receiver have each.
    fn feed(&mut self, mut bytes: &[u8], pieces: &[usize]) -> Result<(), Farewell> {
        let mut lengths = pieces.iter().cycle();
        while !bytes.is_empty() {
            let piece = lengths.next().map_or(bytes.len(), |len| 1 + len);
            let (now, later) = bytes.split_at(piece.min(bytes.len()));
            self.far.write_all(now).expect("the socket takes it");
            bytes = later;
            let mut step = Step::Read(0);
            while matches!(step, Step::Read(_)) {
                let taken = match self.decrypted {
                    false => self.receiver.step(self.near.as_fd())?,
                    true => self.receiver.step_decrypting(&mut self.near)?,
                };
                step = taken.expect("the socket is well");
            }
        }
        Ok(())
    }

    fn stored(&self) -> Vec<u8> {
        let read = Request::Read {
            copy: self.copy,
            address: 0,
            len: SEGMENT,
        };
        match self.store.handle(PRIMARY, read) {
            Ok(Reply::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// However the stream is cut, every byte lies where its write says, and the count is right.
    #[test]
    fn writes_arrive_however_they_are_cut(
        writes in prop::collection::vec(
            (0..SEGMENT / 2, 1..40_000u32, any::<u8>()), 1..12),
        pieces in prop::collection::vec(
            prop_oneof![0..30usize, 0..5_000usize, 30_000..60_000usize], 1..8),
        decrypted: bool,
    ) {
        let mut fed = Fed { decrypted, ..fed() };
        let mut wanted = vec![0; SEGMENT as usize];
        let mut sent = Vec::new();
        for (offset, len, value) in &writes {
            let signalled = value % 3 == 0;
            let head = WriteHead { buffer: fed.key, offset: u64::from(*offset), len: *len, signalled };
            sent.extend_from_slice(&head.encode());
            let bytes: Vec<u8> = (0..*len).map(|i| (i as u8).wrapping_mul(3) ^ value).collect();
            let at = *offset as usize;
            wanted[at..at + bytes.len()].copy_from_slice(&bytes);
            sent.extend_from_slice(&bytes);
        }
        prop_assert!(fed.feed(&sent, &pieces).is_ok());
        prop_assert_eq!(fed.receiver.done(), writes.len() as u64);
        prop_assert!(!fed.receiver.is_amid());
        prop_assert!(fed.stored() == wanted);
    }

    /// Whatever comes, it ends in a farewell or waits for more; nothing is placed beyond the buffer,
    /// nothing panics, and only whole writes are counted.
    #[test]
    fn nonsense_is_sent_away(
        nonsense in prop::collection::vec(any::<u8>(), 0..600),
        heads in prop::collection::vec(
            (any::<bool>(), any::<u64>(), prop_oneof![0..200_000u32, any::<u32>()], 0..300usize), 0..6),
        pieces in prop::collection::vec(0..64usize, 1..5),
        decrypted: bool,
    ) {
        let mut fed = Fed { decrypted, ..fed_with(SEGMENT / 2) };
        let mut sent = Vec::new();
        for (known, number, len, follow) in &heads {
            let buffer = if *known { fed.key } else { BufferKey(*number) };
            // Near the buffer's end as often as anywhere.
            let offset = if number % 2 == 0 {
                u64::from(SEGMENT / 2) - number % 400
            } else {
                number % 200_000
            };
            let head = WriteHead { buffer, offset, len: *len, signalled: false };
            sent.extend_from_slice(&head.encode());
            sent.extend(std::iter::repeat_n(0xA5, *follow));
        }
        sent.extend_from_slice(&nonsense);
        let outcome = fed.feed(&sent, &pieces);
        prop_assert!(fed.receiver.done() <= heads.len() as u64 + nonsense.len() as u64 / 25);
        let beyond = &fed.stored()[SEGMENT as usize / 2..];
        prop_assert!(beyond.iter().all(|byte| *byte == 0));
        if let Err(farewell) = outcome {
            prop_assert!(matches!(farewell.cause, Cause::Refused | Cause::Malformed));
            prop_assert!(!farewell.text.is_empty());
        }
    }
}

#[test]
fn an_end_of_the_stream_is_told_from_silence() {
    let mut fed = fed();
    let step = |fed: &mut Fed| {
        let step = fed.receiver.step(fed.near.as_fd());
        step.expect("no farewell").expect("the socket is well")
    };
    assert_eq!(step(&mut fed), Step::Empty);
    fed.far.shutdown(std::net::Shutdown::Write).expect("closes");
    assert_eq!(step(&mut fed), Step::Ended);
}
