//! A group of this broker as replication takes it: where its bytes are, and who is told what counts.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use kera_log_segments::group::Group;
use kera_log_segments::replicas::GroupOwner;
use kera_log_segments::ship::{ShipRun, Shipping};
use kera_log_segments::window::Place;
use kera_protocol::ids::{LaneId, Ordinal};
use parking_lot::Mutex;

use super::lane::Lane;
use super::replica_set::ReplicaSet;
use super::source::{Shape, Source};
use crate::ids::AckPolicy;

/// Ends of appends remembered, so that a durable address can be told as a batch boundary. With more
/// under way the last one stands for those behind it.
const MAX_PLACES: usize = 4096;

/// A group that is written here and has copies elsewhere. It is a [`Source`] to its copy set, and is
/// [`Shipping`] to its group.
pub(super) struct GroupSource {
    group: Arc<Group>,
    lane: LaneId,
    owner: Weak<dyn GroupOwner>,
    /// Milliseconds since 1970.
    clock: fn() -> u64,
    /// Where appends ended that are not known to be durable, in order of address.
    places: Mutex<VecDeque<Place>>,
    /// What ships it; set right after it was made.
    shipped: OnceLock<(Weak<Lane>, Weak<ReplicaSet>)>,
}

impl GroupSource {
    pub(super) fn new(
        group: Arc<Group>,
        lane: LaneId,
        owner: Weak<dyn GroupOwner>,
        clock: fn() -> u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            group,
            lane,
            owner,
            clock,
            places: Mutex::default(),
            shipped: OnceLock::new(),
        })
    }

    /// Names the set that the group's bytes go to.
    pub(super) fn goes_to(&self, lane: &Arc<Lane>, set: &Arc<ReplicaSet>) {
        let _only_once = self
            .shipped
            .set((Arc::downgrade(lane), Arc::downgrade(set)));
    }

    fn shipped(&self) -> Option<(Arc<Lane>, Arc<ReplicaSet>)> {
        let (lane, set) = self.shipped.get()?;
        Some((lane.upgrade()?, set.upgrade()?))
    }

    /// Remembers that a batch ended here.
    fn note(&self, place: Place) {
        let mut places = self.places.lock();
        if places
            .back()
            .is_some_and(|last| last.address >= place.address)
        {
            return;
        }
        if places.len() >= MAX_PLACES {
            places.pop_back();
        }
        places.push_back(place);
    }

    /// The last batch boundary at or below `address`; those before it are forgotten.
    fn boundary(&self, address: u64) -> Option<Place> {
        let mut places = self.places.lock();
        let passed = places.partition_point(|place| place.address <= address);
        places.drain(..passed).next_back()
    }
}

impl Source for GroupSource {
    fn shape(&self) -> Shape {
        let spec = self.group.spec();
        Shape {
            segment_size: spec.segment_size,
            segments: spec.segments,
        }
    }

    fn ack(&self) -> AckPolicy {
        self.group.policy()
    }

    fn first_ordinal(&self) -> Ordinal {
        self.group.spec().first_ordinal
    }

    fn runs(&self, from: u64, max_bytes: usize) -> Vec<ShipRun> {
        match self.group.ship(from, max_bytes) {
            Ok(shipped) => {
                self.note(shipped.end);
                shipped.runs
            }
            Err(error) => {
                tracing::error!(group = ?self.group, %error, "bytes that a replica lacks cannot be read from the owner's file");
                Vec::new()
            }
        }
    }

    fn max_timestamp(&self) -> i64 {
        self.group.max_timestamp().max(-1)
    }

    fn end(&self) -> Place {
        self.group.end()
    }

    fn is_frozen(&self) -> bool {
        self.group.is_frozen()
    }

    fn freeze(&self) -> Place {
        match self.owner.upgrade() {
            Some(owner) => owner.freeze_group(self.lane, &self.group, (self.clock)()),
            None => self.group.end(),
        }
    }

    fn write_out(&self) {
        if self.group.policy() == AckPolicy::Memory {
            // Another turn takes the bytes along, and a failure is told as any.
            let _turn = self.group.write_out();
        }
    }

    fn durable(&self, address: u64) {
        if let Some(place) = self.boundary(address) {
            self.group.set_copied(place);
        }
    }

    fn closed(&self) {
        self.group.set_copied(self.group.end());
        if let Some(owner) = self.owner.upgrade() {
            owner.group_ended(self.lane, &self.group);
        }
    }

    fn deposed(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.deposed();
        }
    }
}

impl Shipping for GroupSource {
    fn grew(&self) {
        self.note(self.group.end());
        if let Some((lane, set)) = self.shipped() {
            lane.grew(&set);
        }
    }

    fn wrote(&self) {
        if let Some((_, set)) = self.shipped() {
            match self.group.failure() {
                None => match self.ack() {
                    AckPolicy::Memory => {
                        set.own_written(self.group.written().address);
                        set.own_completed(self.group.end_address());
                    }
                    AckPolicy::Written => set.own_completed(self.group.written().address),
                    AckPolicy::Synced => set.own_completed(self.group.synced().address),
                },
                Some(error) => set.own_lost(&error.to_string()),
            }
        }
    }

    fn froze(&self) {
        if let Some((lane, set)) = self.shipped() {
            lane.froze(&set);
        }
    }
}
