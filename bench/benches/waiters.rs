//! What it costs to wait for a lane's head, by how many others do: consumers that follow one lane
//! wait again after every batch.

use std::hint::black_box;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kera_log_segments::head::LaneHead;

struct Numbered(usize);

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        black_box(self.0);
    }
}

fn waits(c: &mut Criterion) {
    let mut group = c.benchmark_group("wait for the head");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(200));
    for count in [1, 3, 100, 10_000] {
        let wakers: Vec<Waker> = (0..count)
            .map(|n| Waker::from(Arc::new(Numbered(n))))
            .collect();
        let head = LaneHead::new(0);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| {
                for waker in &wakers {
                    assert!(head.wait(1, waker));
                }
                head.wake_all();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, waits);
criterion_main!(benches);
