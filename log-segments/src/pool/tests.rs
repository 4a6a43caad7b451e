use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (count.clone(), count.into())
}

fn pool(chunks: usize) -> ChunkPool {
    ChunkPool::new(chunks * CHUNK_BYTES).unwrap()
}

#[test]
fn limit_is_checked_and_rounded_to_whole_chunks() {
    assert_eq!(
        ChunkPool::new(CHUNK_BYTES - 1).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        ChunkPool::new(usize::MAX).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        ChunkPool::new(3 * CHUNK_BYTES + 5).unwrap().limit(),
        3 * CHUNK_BYTES
    );
}

#[test]
fn append_takes_what_fits() {
    let pool = pool(1);
    let mut writer = pool.try_take().unwrap();
    let reader = writer.reader();
    assert!(writer.is_empty() && reader.is_empty());
    assert_eq!(writer.append(b"kera"), 4);
    assert_eq!(
        (writer.len(), writer.remaining(), reader.len()),
        (4, CHUNK_BYTES - 4, 4)
    );
    assert_eq!(reader.bytes(1..3), b"er");
    let rest = vec![7u8; CHUNK_BYTES];
    assert_eq!(writer.append(&rest), CHUNK_BYTES - 4);
    assert_eq!((writer.remaining(), writer.append(b"x")), (0, 0));
    assert_eq!(reader.len(), CHUNK_BYTES);
    assert_eq!(reader.bytes(CHUNK_BYTES - 1..CHUNK_BYTES), [7]);
}

#[test]
fn staged_bytes_are_invisible_and_patchable_until_published() {
    let pool = pool(1);
    let mut writer = pool.try_take().unwrap();
    let reader = writer.reader();
    writer.append(b"ab");
    writer.stage(b"....ef");
    assert_eq!((writer.len(), reader.len()), (8, 2));
    writer.patch(2, b"xxcd");
    writer.patch(2, b"--");
    writer.publish();
    assert_eq!(reader.bytes(0..8), b"ab--cdef");
}

#[test]
#[should_panic(expected = "leaves the staged range")]
fn patching_published_bytes_panics() {
    let mut writer = pool(1).try_take().unwrap();
    writer.append(b"abc");
    writer.stage(b"def");
    writer.patch(2, b"!!");
}

#[test]
#[should_panic(expected = "lies beyond the 3 bytes published")]
fn reading_beyond_what_is_published_panics() {
    let mut writer = pool(1).try_take().unwrap();
    writer.append(b"abc");
    writer.stage(b"def");
    let _ = writer.reader().slice(0..4);
}

#[test]
fn chunk_returns_when_writer_readers_and_slices_are_gone() {
    let pool = pool(1);
    let mut writer = pool.try_take().unwrap();
    assert!(pool.try_take().is_none());
    assert_eq!(pool.used(), pool.limit());
    writer.append(b"held");
    let reader = writer.reader();
    let slice = reader.slice(0..4);
    let part = slice.slice(1..3);
    drop(writer);
    drop(reader);
    drop(slice);
    assert!(
        pool.try_take().is_none(),
        "a slice of a slice still holds the chunk"
    );
    assert_eq!(&part[..], b"el");
    drop(part);
    assert_eq!(pool.used(), 0);
    assert!(pool.try_take().is_some());
}

#[test]
fn slices_outlive_the_pool_handle() {
    let mut writer = pool(2).try_take().unwrap();
    writer.append(b"still here");
    let slice = writer.reader().slice(0..10);
    drop(writer);
    assert_eq!(&slice[..], b"still here");
}

#[test]
fn reused_chunk_shows_nothing_of_its_previous_life() {
    let pool = pool(1);
    let mut writer = pool.try_take().unwrap();
    writer.append(b"secret");
    drop(writer);
    let mut writer = pool.try_take().unwrap();
    let reader = writer.reader();
    assert_eq!(reader.len(), 0);
    writer.append(b"xy");
    assert_eq!(reader.bytes(0..reader.len()), b"xy");
}

#[test]
fn free_chunks_are_taken_last_in_first_out() {
    let pool = pool(4);
    let address = |writer: &mut ChunkWriter| {
        writer.append(b"x");
        writer.reader().bytes(0..1).as_ptr() as usize
    };
    let mut a = pool.try_take().unwrap();
    let mut b = pool.try_take().unwrap();
    let (at_a, at_b) = (address(&mut a), address(&mut b));
    assert_ne!(at_a, at_b);
    drop(a);
    drop(b);
    assert_eq!(address(&mut pool.try_take().unwrap()), at_b);
}

#[test]
fn only_chunks_unused_since_the_last_sweep_are_given_back() {
    let pool = pool(200);
    let all: Vec<_> = (0..200).map(|_| pool.try_take().unwrap()).collect();
    assert_eq!(pool.give_back_idle(), 0);
    drop(all);
    assert_eq!(pool.warm(), pool.limit());
    assert_eq!(
        pool.give_back_idle(),
        0,
        "all were in use since the last call"
    );
    // The top three are used in between, so only those below them are idle.
    let three: Vec<_> = (0..3).map(|_| pool.try_take().unwrap()).collect();
    drop(three);
    assert_eq!(pool.give_back_idle(), 197 * CHUNK_BYTES);
    assert_eq!(pool.warm(), 3 * CHUNK_BYTES);
    assert_eq!(pool.give_back_idle(), 3 * CHUNK_BYTES);
    assert_eq!((pool.warm(), pool.used()), (0, 0));
    assert_eq!(
        (0..)
            .map_while(|_| pool.try_take())
            .collect::<Vec<_>>()
            .len(),
        200
    );
}

#[test]
fn listeners_are_woken_once_by_a_returned_chunk() {
    let pool = pool(1);
    let (count, waker) = counter();
    assert!(!pool.on_free(&waker), "a chunk is free: try again");
    let writer = pool.try_take().unwrap();
    assert!(pool.on_free(&waker));
    if waker.will_wake(&waker.clone()) {
        assert!(
            pool.on_free(&waker),
            "registering twice is one registration"
        );
    }
    drop(writer);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    drop(pool.try_take());
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
}

#[test]
fn waiters_are_served_in_turn_and_a_cancelled_one_passes_its_turn_on() {
    let pool = pool(1);
    let held = pool.try_take().unwrap();
    let (first_count, first_waker) = counter();
    let (second_count, second_waker) = counter();
    let mut first = Box::pin(pool.take());
    let mut second = pin!(pool.take());
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&first_waker))
            .is_pending()
    );
    assert!(
        second
            .as_mut()
            .poll(&mut Context::from_waker(&second_waker))
            .is_pending()
    );
    drop(held);
    let woken = || {
        (
            first_count.0.load(Ordering::SeqCst),
            second_count.0.load(Ordering::SeqCst),
        )
    };
    assert_eq!(woken(), (1, 0), "one chunk wakes one waiter");
    drop(first);
    assert_eq!(woken(), (1, 1));
    let got = second
        .as_mut()
        .poll(&mut Context::from_waker(&second_waker));
    assert!(matches!(got, Poll::Ready(_)));
}

#[test]
fn a_waiter_whose_chunk_was_snatched_keeps_its_place() {
    let pool = pool(1);
    let held = pool.try_take().unwrap();
    let (first_count, first_waker) = counter();
    let (second_count, second_waker) = counter();
    let mut first = pin!(pool.take());
    let mut second = pin!(pool.take());
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&first_waker))
            .is_pending()
    );
    assert!(
        second
            .as_mut()
            .poll(&mut Context::from_waker(&second_waker))
            .is_pending()
    );
    drop(held);
    let snatched = pool.try_take().unwrap();
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&first_waker))
            .is_pending()
    );
    drop(snatched);
    assert_eq!(first_count.0.load(Ordering::SeqCst), 2);
    assert_eq!(second_count.0.load(Ordering::SeqCst), 0);
    assert!(
        first
            .as_mut()
            .poll(&mut Context::from_waker(&first_waker))
            .is_ready()
    );
}

/// One writer and several readers of one chunk: whatever length a reader sees, all bytes below it
/// hold what was written.
#[test]
fn concurrent_readers_see_only_complete_bytes() {
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let total = if cfg!(miri) { 600 } else { CHUNK_BYTES };
    let pool = pool(2);
    for _ in 0..rounds {
        let mut writer = pool.try_take().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let reader = writer.reader();
                scope.spawn(move || {
                    let mut seen = 0;
                    while seen < total {
                        let len = reader.len();
                        assert!(len >= seen);
                        let slice = reader.slice(seen..len);
                        for (at, byte) in slice.iter().enumerate() {
                            assert_eq!(*byte, ((seen + at) % 251) as u8);
                        }
                        seen = len;
                        std::thread::yield_now();
                    }
                });
            }
            let mut at = 0;
            while at < total {
                let step = (at % 97 + 1).min(total - at);
                let bytes: Vec<u8> = (at..at + step).map(|i| (i % 251) as u8).collect();
                assert_eq!(writer.append(&bytes), step);
                at += step;
            }
        });
        drop(writer);
        assert_eq!(pool.used(), 0);
    }
}

/// Several threads take, fill, hand over and drop while a sweeper gives back: no chunk is ever in
/// two hands, and all are back at the end.
#[test]
fn concurrent_takers_and_sweeper_never_share_a_chunk() {
    let rounds = if cfg!(miri) { 10 } else { 3_000 };
    let pool = pool(8);
    std::thread::scope(|scope| {
        for id in 0..3u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..rounds {
                    if let Some(mut writer) = pool.try_take() {
                        let mark = [id, round as u8, (round >> 8) as u8];
                        writer.append(&mark);
                        held.push((writer.reader().slice(0..3), mark));
                    }
                    if held.len() > 2 {
                        let (slice, mark) = held.remove(round % 3);
                        assert_eq!(&slice[..], mark);
                    }
                }
            });
        }
        for _ in 0..rounds {
            pool.give_back_idle();
            std::thread::yield_now();
        }
    });
    assert_eq!(pool.used(), 0);
    assert_eq!(
        (0..)
            .map_while(|_| pool.try_take())
            .collect::<Vec<_>>()
            .len(),
        8
    );
}
