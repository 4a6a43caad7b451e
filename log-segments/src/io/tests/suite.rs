use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;

use bytes::Bytes;

use super::Bench;
use crate::io::{AlignedBuf, BLOCK_BYTES, Directness, FileRef, Op, OpenHow};

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 31 + salt * 7 + at / 251) % 251) as u8 + 1)
        .collect()
}

fn create(bench: &Bench, name: &str) -> FileRef {
    bench
        .io
        .open(&bench.dir.join(name), OpenHow::CreateNew, false)
        .unwrap()
}

/// A direct file, or `None` where the file system below the test does not do it.
fn create_direct(bench: &Bench, name: &str) -> Option<FileRef> {
    match bench
        .io
        .open(&bench.dir.join(name), OpenHow::CreateNew, true)
    {
        Ok(file) => Some(file),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            assert!(
                !bench.io.exists(&bench.dir.join(name)),
                "a refused file must not be left behind"
            );
            eprintln!("direct I/O is refused here, nothing tested");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn read_all(file: &FileRef) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize + 10];
    let read = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(read);
    bytes
}

pub(super) fn writes_and_reads_back(bench: &Bench) {
    let file = create(bench, "a");
    file.write_vectored_at(
        &[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")],
        3,
    )
    .unwrap();
    assert_eq!(file.len().unwrap(), 8);
    assert_eq!(read_all(&file), b"\0\0\0abcde");
    file.write_vectored_at(&[IoSlice::new(b"XY")], 4).unwrap();
    let mut part = [0; 3];
    assert_eq!(file.read_at(&mut part, 3).unwrap(), 3);
    assert_eq!(&part, b"aXY");
    file.write_back(0, 8).unwrap();
    file.sync_data().unwrap();
    file.sync_file_system().unwrap();
    assert_eq!(file.directness(), Directness::Cached);
    assert_eq!(
        file.file_system().unwrap(),
        create(bench, "b").file_system().unwrap()
    );
}

pub(super) fn gathers_more_slices_than_one_call_takes(bench: &Bench) {
    let file = create(bench, "a");
    let parts: Vec<Vec<u8>> = (0..2_500).map(|at| pattern(at % 5, at)).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    file.write_vectored_at(&slices, 0).unwrap();
    assert!(read_all(&file) == parts.concat());

    // And as one operation of a batch.
    let other = create(bench, "b");
    let bufs: Vec<Bytes> = parts.iter().cloned().map(Bytes::from).collect();
    let ops = vec![
        Op::Write {
            file: other.clone(),
            offset: 5,
            bufs: bufs.clone(),
        },
        Op::SyncData {
            file: other.clone(),
        },
    ];
    let done = bench.io.run(ops);
    assert_eq!(*done[0].result.as_ref().unwrap(), parts.concat().len());
    assert_eq!(done[0].bufs, bufs);
    assert!(read_all(&other)[5..] == parts.concat());
}

pub(super) fn open_modes_are_kept(bench: &Bench) {
    let path = bench.dir.join("a");
    for how in [OpenHow::ReadOnly, OpenHow::ReadWrite] {
        assert_eq!(
            bench.io.open(&path, how, false).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
    create(bench, "a")
        .write_vectored_at(&[IoSlice::new(b"x")], 0)
        .unwrap();
    assert_eq!(
        bench
            .io
            .open(&path, OpenHow::CreateNew, false)
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    let reader = bench.io.open(&path, OpenHow::ReadOnly, false).unwrap();
    assert!(reader.write_vectored_at(&[IoSlice::new(b"y")], 0).is_err());
    let writer = bench.io.open(&path, OpenHow::ReadWrite, false).unwrap();
    writer.write_vectored_at(&[IoSlice::new(b"z")], 0).unwrap();
    assert_eq!(read_all(&reader), b"z");
    let nowhere = bench.dir.join("missing/file");
    assert_eq!(
        bench
            .io
            .open(&nowhere, OpenHow::CreateNew, false)
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
}

pub(super) fn directories_list_and_remove(bench: &Bench) {
    let top = bench.dir.join("top");
    let deep = top.join("mid/low");
    assert_eq!(bench.io.list(&top).unwrap_err().kind(), ErrorKind::NotFound);
    bench.io.create_dir_all(&deep).unwrap();
    bench.io.create_dir_all(&deep).unwrap();
    for name in ["b", "a", "c"] {
        bench
            .io
            .open(&top.join(name), OpenHow::CreateNew, false)
            .unwrap();
    }
    bench.io.sync_dir(&top).unwrap();
    assert_eq!(bench.io.list(&top).unwrap(), ["a", "b", "c", "mid"]);
    assert_eq!(bench.io.list(&deep).unwrap(), Vec::<String>::new());
    assert!(
        bench.io.exists(&deep)
            && bench.io.exists(&top.join("b"))
            && !bench.io.exists(&top.join("d"))
    );
    bench.io.remove_file(&top.join("b")).unwrap();
    assert_eq!(
        bench.io.remove_file(&top.join("b")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(bench.io.list(&top).unwrap(), ["a", "c", "mid"]);
    bench.io.remove_dir_all(&top).unwrap();
    assert!(!bench.io.exists(&top) && !bench.io.exists(&deep));
    assert!(bench.io.remove_dir_all(&top).is_err());
}

pub(super) fn length_can_be_set(bench: &Bench) {
    let file = create(bench, "a");
    file.write_vectored_at(&[IoSlice::new(&pattern(5_000, 1))], 0)
        .unwrap();
    file.set_len(4_100).unwrap();
    assert_eq!(read_all(&file), pattern(5_000, 1)[..4_100]);
    file.set_len(4_200).unwrap();
    let bytes = read_all(&file);
    assert_eq!(
        (bytes.len(), &bytes[4_100..]),
        (4_200, &[0u8; 100][..]),
        "what was cut off must not come back"
    );
}

pub(super) fn cached_reads_are_whole_or_refused(bench: &Bench) {
    let file = create(bench, "a");
    let bytes = pattern(10_000, 3);
    file.write_vectored_at(&[IoSlice::new(&bytes)], 0).unwrap();
    let mut buf = vec![0; 20_000];
    if let Some(read) = file.try_read_cached(&mut buf, 100).unwrap() {
        assert_eq!(buf[..read], bytes[100..]);
    }
    if let Some(read) = file.try_read_cached(&mut buf, 10_000).unwrap() {
        assert_eq!(read, 0);
    }
}

pub(super) fn batch_returns_results_and_buffers_in_order(bench: &Bench) {
    let file = create(bench, "a");
    let mut direct = AlignedBuf::zeroed(BLOCK_BYTES);
    direct.copy_from_slice(&pattern(BLOCK_BYTES, 9));
    let ops = vec![
        Op::Write {
            file: file.clone(),
            offset: 0,
            bufs: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
        },
        Op::WriteDirect {
            file: file.clone(),
            offset: 8192,
            buf: direct,
            len: BLOCK_BYTES,
        },
        Op::SyncData { file: file.clone() },
        Op::Read {
            file: file.clone(),
            offset: 1,
            buf: bench.io.buffer(100),
            len: 5,
        },
        Op::SyncFileSystem { file: file.clone() },
    ];
    let done = bench.io.run(ops);
    let lens: Vec<usize> = done
        .iter()
        .map(|done| *done.result.as_ref().unwrap())
        .collect();
    assert_eq!(lens, [6, BLOCK_BYTES, 0, 5, 0]);
    assert_eq!(done[0].bufs, ["one", "two"]);
    assert_eq!(done[1].buf.as_ref().unwrap()[..], pattern(BLOCK_BYTES, 9));
    assert_eq!(&done[3].buf.as_ref().unwrap()[..5], b"netwo");
    assert!(done[2].buf.is_none() && done[4].buf.is_none());
    assert_eq!(read_all(&file)[8192..], pattern(BLOCK_BYTES, 9));
}

pub(super) fn large_batches_complete(bench: &Bench) {
    // More than a ring holds, and more than there are registered buffers.
    let files: Vec<FileRef> = (0..10).map(|at| create(bench, &format!("f{at}"))).collect();
    let count = 700;
    let writes = (0..count).map(|at| {
        let mut buf = bench.io.buffer(BLOCK_BYTES);
        buf[..BLOCK_BYTES].copy_from_slice(&pattern(BLOCK_BYTES, at));
        let offset = (at / files.len() * BLOCK_BYTES) as u64;
        Op::WriteDirect {
            file: files[at % files.len()].clone(),
            offset,
            buf,
            len: BLOCK_BYTES,
        }
    });
    let reads = (0..count).map(|at| {
        let offset = (at / files.len() * BLOCK_BYTES) as u64;
        Op::Read {
            file: files[at % files.len()].clone(),
            offset,
            buf: bench.io.buffer(BLOCK_BYTES),
            len: BLOCK_BYTES,
        }
    });
    let syncs = files.iter().map(|file| Op::SyncData { file: file.clone() });
    let done = bench.io.run(writes.chain(syncs).collect());
    assert_eq!(done.len(), count + files.len());
    assert!(done.iter().all(|done| done.result.is_ok()));
    drop(done);
    for (at, done) in bench.io.run(reads.collect()).into_iter().enumerate() {
        assert_eq!(done.result.unwrap(), BLOCK_BYTES);
        assert_eq!(
            done.buf.unwrap()[..BLOCK_BYTES],
            pattern(BLOCK_BYTES, at),
            "read {at}"
        );
    }
}

pub(super) fn syncs_divide_a_batch(bench: &Bench) {
    let file = create(bench, "a");
    // Each read stands behind a sync, so it sees the write before it and not the one after.
    let mut ops = Vec::new();
    for round in 0..20usize {
        let bufs = vec![Bytes::from(pattern(3_000, round))];
        ops.push(Op::Write {
            file: file.clone(),
            offset: 0,
            bufs,
        });
        ops.push(Op::SyncData { file: file.clone() });
        ops.push(Op::Read {
            file: file.clone(),
            offset: 0,
            buf: bench.io.buffer(3_000),
            len: 3_000,
        });
        ops.push(Op::SyncData { file: file.clone() });
    }
    for (at, done) in bench.io.run(ops).into_iter().enumerate() {
        done.result.unwrap();
        if let Some(buf) = done.buf {
            assert_eq!(buf[..3_000], pattern(3_000, at / 4), "round {}", at / 4);
        }
    }
}

pub(super) fn one_failing_operation_fails_alone(bench: &Bench) {
    let good = create(bench, "good");
    create(bench, "bad");
    let bad = bench
        .io
        .open(&bench.dir.join("bad"), OpenHow::ReadOnly, false)
        .unwrap();
    let write = |file: &FileRef, text: &'static str| Op::Write {
        file: file.clone(),
        offset: 0,
        bufs: vec![Bytes::from_static(text.as_bytes())],
    };
    let refused = bench.io.buffer(BLOCK_BYTES);
    let ops = vec![
        write(&bad, "no"),
        write(&good, "yes"),
        Op::WriteDirect {
            file: bad.clone(),
            offset: 0,
            buf: refused,
            len: BLOCK_BYTES,
        },
        Op::SyncData { file: good.clone() },
    ];
    let done = bench.io.run(ops);
    let ok: Vec<bool> = done.iter().map(|done| done.result.is_ok()).collect();
    assert_eq!(ok, [false, true, false, true]);
    assert_eq!(
        done[0].bufs,
        ["no"],
        "a failed operation gives its buffers back"
    );
    assert!(done[2].buf.is_some());
    assert_eq!(read_all(&good), b"yes");
}

pub(super) fn reads_end_with_the_file(bench: &Bench) {
    let file = create(bench, "a");
    file.write_vectored_at(&[IoSlice::new(&pattern(5_000, 2))], 0)
        .unwrap();
    let read = |offset| Op::Read {
        file: file.clone(),
        offset,
        buf: bench.io.buffer(8_192),
        len: 8_192,
    };
    let mut lens = Vec::new();
    for (done, offset) in bench
        .io
        .run(vec![read(0), read(4_000), read(5_000), read(90_000)])
        .into_iter()
        .zip([0, 4_000])
    {
        let len = done.result.unwrap();
        assert_eq!(done.buf.unwrap()[..len], pattern(5_000, 2)[offset..]);
        lens.push(len);
    }
    assert_eq!(lens, [5_000, 1_000]);
    let done = bench.io.run(vec![read(5_000), read(90_000)]);
    assert!(done.iter().all(|done| matches!(done.result, Ok(0))));
}

pub(super) fn direct_files_take_whole_blocks(bench: &Bench) {
    let Some(file) = create_direct(bench, "a") else {
        return;
    };
    assert_ne!(file.directness(), Directness::Cached);
    let len = 3 * BLOCK_BYTES;
    let mut buf = bench.io.buffer(len);
    buf[..len].copy_from_slice(&pattern(len, 4));
    let write = Op::WriteDirect {
        file: file.clone(),
        offset: BLOCK_BYTES as u64,
        buf,
        len,
    };
    let done = bench
        .io
        .run(vec![write, Op::SyncData { file: file.clone() }]);
    assert_eq!(*done[0].result.as_ref().unwrap(), len);
    done[1].result.as_ref().unwrap();
    let read = |offset: usize| Op::Read {
        file: file.clone(),
        offset: offset as u64,
        buf: bench.io.buffer(len),
        len,
    };
    let mut done = bench.io.run(vec![read(BLOCK_BYTES), read(0)]).into_iter();
    let first = done.next().unwrap();
    assert_eq!(first.result.unwrap(), len);
    assert_eq!(first.buf.unwrap()[..len], pattern(len, 4));
    let second = done.next().unwrap();
    assert_eq!(second.buf.unwrap()[..BLOCK_BYTES], [0; BLOCK_BYTES]);
    if file.directness() == Directness::Confirmed {
        // Bytes that are not whole aligned blocks are refused, not written some other way.
        assert!(file.write_vectored_at(&[IoSlice::new(b"odd")], 0).is_err());
    }
    assert_eq!(file.try_read_cached(&mut [0; 10], 0).unwrap(), None);
}

pub(super) fn direct_reads_end_with_the_file(bench: &Bench) {
    let path = bench.dir.join("a");
    create(bench, "a")
        .write_vectored_at(&[IoSlice::new(&pattern(5_000, 2))], 0)
        .unwrap();
    let Ok(file) = bench.io.open(&path, OpenHow::ReadOnly, true) else {
        return;
    };
    let mut buf = AlignedBuf::zeroed(4 * BLOCK_BYTES);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 5_000);
    assert_eq!(buf[..5_000], pattern(5_000, 2));
    let read = |offset| Op::Read {
        file: file.clone(),
        offset,
        buf: bench.io.buffer(16_384),
        len: 16_384,
    };
    let lens: Vec<usize> = bench
        .io
        .run(vec![read(0), read(4096), read(8192)])
        .into_iter()
        .map(|done| done.result.unwrap())
        .collect();
    assert_eq!(lens, [5_000, 904, 0]);
}

pub(super) fn zeros_are_written(bench: &Bench) {
    let files = [Some(create(bench, "a")), create_direct(bench, "b")];
    for file in files.into_iter().flatten() {
        let mut buf = bench.io.buffer(BLOCK_BYTES);
        buf.fill(0xff);
        let len = 50 * BLOCK_BYTES;
        let done = bench.io.run(vec![
            Op::WriteDirect {
                file: file.clone(),
                offset: 0,
                buf,
                len: BLOCK_BYTES,
            },
            Op::WriteZeros {
                file: file.clone(),
                offset: BLOCK_BYTES as u64,
                len,
            },
        ]);
        assert_eq!(*done[1].result.as_ref().unwrap(), len);
        assert_eq!(file.len().unwrap() as usize, len + BLOCK_BYTES);
        let done = bench.io.run(vec![
            Op::Read {
                file: file.clone(),
                offset: 0,
                buf: AlignedBuf::zeroed(len + BLOCK_BYTES),
                len: len + BLOCK_BYTES,
            },
            Op::WriteZeros {
                file: file.clone(),
                offset: 0,
                len: BLOCK_BYTES,
            },
        ]);
        let buf = done[0].buf.as_ref().unwrap();
        assert!(buf[BLOCK_BYTES..].iter().all(|byte| *byte == 0));
        let done = bench.io.run(vec![
            Op::SyncData { file: file.clone() },
            Op::Read {
                file: file.clone(),
                offset: 0,
                buf: AlignedBuf::zeroed(BLOCK_BYTES),
                len: BLOCK_BYTES,
            },
        ]);
        assert_eq!(done[1].buf.as_ref().unwrap()[..], [0; BLOCK_BYTES]);
    }
}

pub(super) fn batches_run_from_several_threads(bench: &Bench) {
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let io = Arc::clone(&bench.io);
            let file = create(bench, &format!("t{thread}"));
            scope.spawn(move || {
                for round in 0..20usize {
                    let offset = (round * 4_000) as u64;
                    let bytes = pattern(4_000, thread * 100 + round);
                    let done = io.run(vec![
                        Op::Write {
                            file: file.clone(),
                            offset,
                            bufs: vec![Bytes::from(bytes.clone())],
                        },
                        Op::SyncData { file: file.clone() },
                        Op::Read {
                            file: file.clone(),
                            offset,
                            buf: io.buffer(4_000),
                            len: 4_000,
                        },
                    ]);
                    assert_eq!(done[2].buf.as_ref().unwrap()[..4_000], bytes);
                }
            });
        }
    });
}

pub(super) fn empty_batches_and_empty_operations(bench: &Bench) {
    assert!(bench.io.run(Vec::new()).is_empty());
    let file = create(bench, "a");
    let done = bench.io.run(vec![
        Op::Write {
            file: file.clone(),
            offset: 9,
            bufs: Vec::new(),
        },
        Op::Write {
            file: file.clone(),
            offset: 9,
            bufs: vec![Bytes::new()],
        },
        Op::Read {
            file: file.clone(),
            offset: 0,
            buf: bench.io.buffer(0),
            len: 0,
        },
    ]);
    assert!(done.iter().all(|done| matches!(done.result, Ok(0))));
    assert_eq!(file.len().unwrap(), 0);
}

pub(super) fn short_buffers_are_refused(bench: &Bench) {
    let file = create(bench, "a");
    let len = 1 << 30;
    let done = bench.io.run(vec![
        Op::Read {
            file: file.clone(),
            offset: 0,
            buf: bench.io.buffer(10),
            len,
        },
        Op::WriteDirect {
            file: file.clone(),
            offset: 0,
            buf: bench.io.buffer(10),
            len,
        },
    ]);
    for done in done {
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(done.buf.is_some());
    }
    assert_eq!(file.len().unwrap(), 0);
}
