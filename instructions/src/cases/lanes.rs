//! A streamlet's lanes: appends and reads, over files that take everything and keep nothing.

use std::hint::black_box;

use kera_log_segments::group::AckPolicy;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::{LaneReadSpec, Located};

use crate::counted::counted;

#[path = "../../../bench/benches/support/mod.rs"]
mod support;

pub(super) mod replicated;

use support::{Bench, batch};

const READ_BYTES: usize = 64 << 10;

pub(super) fn append_small(times: u64) {
    appends(1 << 10, times);
}

pub(super) fn append(times: u64) {
    appends(16 << 10, times);
}

/// Appends to one lane; chunks of memory and segments are taken on the way, as they come.
fn appends(bytes: usize, times: u64) {
    let bench = Bench::discarding(AckPolicy::Written, 1);
    let mut batch = batch(bytes, 1);
    let mut header = BatchHeader::peek(&batch).expect("a batch");
    let mut sequence = 0;
    // Opens the lane's group.
    bench.append(0, &mut batch, &mut header, &mut sequence);
    counted(&mut || {
        for _ in 0..times {
            black_box(bench.append(0, &mut batch, &mut header, &mut sequence));
        }
    });
}

pub(super) fn read(times: u64) {
    let bench = Bench::discarding(AckPolicy::Written, 1);
    let mut batch = batch(16 << 10, 1);
    let mut header = BatchHeader::peek(&batch).expect("a batch");
    let mut sequence = 0;
    for _ in 0..5 {
        bench.append(0, &mut batch, &mut header, &mut sequence);
    }
    let mut spec = LaneReadSpec {
        lane: LaneId(0),
        from: Located {
            ordinal: 0,
            at: None,
        },
        end_ordinal: Ordinal::MAX,
        max_bytes: READ_BYTES,
        cached_only: true,
    };
    // From the second batch on, as a reader that goes on: with a hint.
    spec.max_bytes = 1;
    spec.from = bench.streamlet.read(spec).expect("a batch").next;
    spec.max_bytes = READ_BYTES;
    counted(&mut || {
        for _ in 0..times {
            let found = bench.streamlet.read(black_box(spec)).expect("batches");
            assert_eq!(found.batches, 4);
            black_box(found);
        }
    });
}
