//! What a producer counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($( $(#[$doc:meta])+ $name:ident, )+) => {
        #[derive(Default)]
        pub(crate) struct Counters {
            $( pub(crate) $name: AtomicU64, )+
        }

        /// A producer's counts since it was built; see [`Producer::metrics`](crate::Producer::metrics).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Metrics {
            $( $(#[$doc])+ pub $name: u64, )+
            /// Bytes of batches open, waiting or under way, and of buffers kept for reuse; also of other streams that
            /// [share](crate::Producer::for_stream) the limit.
            pub memory_used_bytes: u64,
            /// Batches under way to a broker.
            pub batches_in_flight: u64,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Metrics {
                Metrics {
                    $( $name: self.$name.load(Ordering::Relaxed), )+
                    ..Metrics::default()
                }
            }
        }
    };
}

counters! {
    /// Records in batches that were completed, full or not. Records in open batches are not counted.
    records_batched,
    /// Records acknowledged.
    records_acknowledged,
    /// Records given up.
    records_failed,
    /// Batches completed.
    batches,
    /// Bytes of batches sent, as sent, each attempt counted.
    bytes_sent,
    /// Batches sent again.
    batches_resent,
    /// Batches that the broker knew already when they were sent again.
    duplicates,
    /// Connections made.
    connections,
    /// Times the stream's lanes grew and waiting records were split anew.
    resplits,
    /// Appends refused because memory was full.
    appends_refused,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
