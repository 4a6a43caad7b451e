//! The streams as a coordinator sees them: lanes that this broker serves as they are, others as their
//! owners told last.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kera_coordinator::{Cut, CutWish, LaneStatus, LaneView, StreamShape};
use kera_metadata::access::{Kind, Operation};
use kera_metadata::{LaneBy, StreamRecord};
use kera_protocol::ids::{LaneKey, Ordinal, StreamId};
use kera_protocol::v1;
use kera_streamlet::Streamlet;

use super::follow::Times;
use super::remote::Remote;
use crate::access::Who;
use crate::config::Listener;
use crate::data::catalog::Stream;
use crate::data::fetch::cursor;
use crate::principal::Principal;
use crate::shared::Shared;

/// A look at the catalog, and at what other owners told.
pub(super) struct View<'a> {
    shared: &'a Shared,
    remote: &'a Remote,
    times: Times,
}

impl<'a> View<'a> {
    /// A look at what `shared` has now.
    pub(super) fn of(shared: &'a Shared) -> Self {
        Self {
            shared,
            remote: shared.coordination.remote(),
            times: Times::new(),
        }
    }

    /// With what other owners told about the time in a request.
    pub(super) fn with_times(self, times: Times) -> Self {
        Self { times, ..self }
    }

    /// The lane's streamlet, if this broker serves it.
    fn served(&self, lane: LaneKey) -> Option<Arc<Streamlet>> {
        let served = self
            .shared
            .data
            .directory
            .serves(lane.stream, lane.streamlet);
        served
            .then(|| self.shared.streamlet(lane.stream, lane.streamlet))
            .flatten()
    }

    /// True if another broker may serve the lane.
    fn is_elsewhere(&self, lane: LaneKey) -> bool {
        self.shared.data.directory.is_shared()
            && !self
                .shared
                .data
                .directory
                .serves(lane.stream, lane.streamlet)
    }
}

fn shape(stream: &Stream) -> StreamShape {
    let record: &StreamRecord = &stream.record.load();
    StreamShape {
        id: record.id,
        name: record.name.clone(),
        streamlets: record.config.streamlets,
        lane_by: match record.config.lane_by {
            LaneBy::Key => v1::LaneBy::Key,
            LaneBy::Producer => v1::LaneBy::Producer,
        },
        generations: {
            let generations = record.lane_generations.iter();
            let all = generations.map(|g| g.partitions(record.config.streamlets));
            all.collect()
        },
    }
}

impl LaneView for View<'_> {
    fn stream_by_name(&self, name: &str) -> Option<StreamShape> {
        self.shared.data.catalog.named(name).map(|s| shape(&s))
    }

    fn topics_seen_by(&self, user: Option<&str>, host: &str) -> Vec<String> {
        let user = user.map(Arc::from);
        let principal = Principal::of(user.as_ref());
        // A host that is no address has no rights by it.
        let host = host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let who = Who {
            principal: &principal,
            host,
            via: Listener::Kafka.into(),
        };
        let streams = self.shared.data.catalog.all().into_iter();
        let shown = streams.filter(|stream| !stream.record.load().internal);
        let names = shown.map(|stream| stream.name());
        let may_see = |name: &String| {
            let access = &self.shared.access;
            access.allows(who, Operation::Describe, (Kind::Stream, name.as_str()))
        };
        let mut names: Vec<String> = names.filter(may_see).collect();
        names.sort_unstable();
        names
    }

    fn host_matters(&self, host: &str) -> bool {
        let host = host.parse();
        host.is_ok_and(|host| self.shared.access.host_matters(host))
    }

    fn stream_by_id(&self, id: StreamId) -> Option<StreamShape> {
        self.shared.data.catalog.get(id).map(|s| shape(&s))
    }

    fn lane(&self, lane: LaneKey) -> Option<LaneStatus> {
        if self.is_elsewhere(lane) {
            return self.remote.lane(lane);
        }
        let streamlet = self.served(lane)?;
        let (log_start, head) = streamlet.lane_bounds(lane.lane)?;
        // Records of open transactions are nobody's to consume yet. Which they are is not known of a lane that cannot be
        // read: it is as one whose owner is away.
        let stable = streamlet.stable(lane.lane)?.min(head);
        Some(LaneStatus {
            log_start,
            head: stable,
        })
    }

    fn highest_readable(&self, lane: LaneKey) -> Option<Ordinal> {
        // A consumer may have read on since its owner told where the lane ends.
        let (_, head) = self.served(lane)?.lane_bounds(lane.lane)?;
        Some(head)
    }

    fn boundary(&self, lane: LaneKey, generation: u32) -> Option<Ordinal> {
        self.shared.data.catalog.get(lane.stream)?.generation_end(
            lane.streamlet,
            lane.lane,
            generation,
        )
    }

    fn at_time(&self, lane: LaneKey, timestamp_ms: u64) -> Option<Ordinal> {
        let Some(streamlet) = self.served(lane) else {
            return self.times.get(&lane).copied();
        };
        let timestamp = i64::try_from(timestamp_ms).unwrap_or(i64::MAX);
        match streamlet.find_time_here(lane.lane, timestamp) {
            Ok(located) => Some(located.ordinal),
            Err(error) => {
                let (streamlet_there, lane_id) = (streamlet.clone(), lane.lane);
                let look = move || streamlet_there.find_time(lane_id, timestamp).is_ok();
                mend(&self.shared.coordination.looking, look);
                let due = self.shared.coordination.untimed.lock().due(Instant::now());
                if let Some(others) = due {
                    tracing::warn!(%lane, %error, others, "a time could not be found, and so it was with others lately; the group is not placed");
                }
                None
            }
        }
    }

    fn cut(&self, lane: LaneKey, from: Ordinal, wish: CutWish) -> Option<Cut> {
        if self.is_elsewhere(lane) {
            return self.remote.cut(lane, from, wish);
        }
        let streamlet = self.served(lane)?;
        let bytes = wish.bytes as usize;
        match streamlet.batch_boundary_here(lane.lane, from, bytes, wish.ordinals) {
            Ok(found) => found.map(|(start, end)| Cut {
                start: cursor(&start, streamlet.settings().segment_size),
                end,
            }),
            Err(error) => {
                // Asked for again, it may be there.
                let (streamlet, lane_id) = (streamlet.clone(), lane.lane);
                let look = move || streamlet.batch_boundary(lane_id, from, bytes, wish.ordinals);
                mend(&self.shared.coordination.looking, move || look().is_ok());
                if let Some(others) = self.shared.coordination.uncut.lock().due(Instant::now()) {
                    tracing::warn!(%lane, %error, others, "a range could not be cut, and so it was with others lately");
                }
                None
            }
        }
    }

    fn skip_gap(&self, lane: LaneKey, ordinal: Ordinal) -> Ordinal {
        if self.is_elsewhere(lane) {
            return self.remote.skip_gap(lane, ordinal);
        }
        self.served(lane)
            .map_or(ordinal, |s| s.skip_gap(lane.lane, ordinal))
    }
}

/// Looks for what the disk does not tell on a thread that may wait, so that it is fetched from another
/// copy where there is one. One such thread at a time: a look may wait for as long as a copy takes, others
/// come to the same place again and again meanwhile, and the copy itself needs a thread that may wait.
fn mend(looking: &Arc<AtomicBool>, look: impl FnOnce() -> bool + Send + 'static) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    if !looking.swap(true, Ordering::Acquire) {
        let looks = Looking(looking.clone());
        runtime.spawn_blocking(move || {
            let _looks = looks;
            look()
        });
    }
}

/// Held while one thread looks; its drop lets the next one look, also after a panic.
struct Looking(Arc<AtomicBool>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
