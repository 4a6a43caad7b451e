//! A broker's place among the living: taken under a lease, kept, taken again, given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tonic::Code;

use super::client::{CallError, Client, Pass, Pauses};
use super::election::{stand, succeed};
use super::messages::*;
use super::presence::{Boards, Place, Presence, decode, encode};
use super::reach::Reach;
use super::space::Space;
use crate::cluster::{LiveBroker, Membership, Seat, Tenure, number_in_use, replaced};
use crate::error::MetadataError;

/// Least and greatest duration of a lease; etcd itself allows none shorter than about 2 s.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Leases that are remembered after the place could not be taken under them.
const TRIED: usize = 64;

/// How often it is asked whether a lease may be kept, or taken.
const MAY_HOLD_AGAIN: Duration = Duration::from_millis(500);

/// What is held: a lease, and the record under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// The last lease there was; 0 before the first.
    pub(super) lease: i64,
    /// Revision of the record; 0 while nothing is held.
    pub(super) revision: u64,
}

/// One broker's place and what keeps it.
pub(super) struct Keeper {
    pub(super) client: Arc<Client>,
    pub(super) space: Space,
    pub(super) boards: Arc<Boards>,
    pub(super) tenure: Arc<Tenure>,
    pub(super) id: u32,
    ttl: Duration,
    /// What is recorded, or is to be once the lease is had again. Held over calls, one at a time.
    live: Mutex<LiveBroker>,
    pub(super) held: watch::Sender<Held>,
    /// Leases under which the place was to be taken and it is not known whether it was: what is recorded
    /// under one of them is this keeper's own, and not of a later start.
    tried: parking_lot::Mutex<VecDeque<i64>>,
}

/// Why a place was not had.
enum Refused {
    /// A later start of this broker has it, which is for good.
    Replaced(MetadataError),
    /// Another broker has it.
    Taken(MetadataError),
    /// For now.
    Failed(MetadataError),
}

impl Refused {
    fn error(self) -> MetadataError {
        match self {
            Self::Replaced(error) | Self::Taken(error) | Self::Failed(error) => error,
        }
    }
}

impl Keeper {
    /// Grants a lease; it counts from before the call.
    async fn grant(&self, deadline: Instant) -> Result<(i64, Instant), MetadataError> {
        let sent = Instant::now();
        let request = LeaseGrantRequest {
            ttl: self.ttl.as_secs() as i64,
        };
        // A lease whose grant got lost ends by itself.
        let granted: LeaseGrantResponse = self.client.read(LEASE_GRANT, request, deadline).await?;
        if granted.id == 0 || granted.ttl <= 0 || !granted.error.is_empty() {
            return Err(self.client.unavailable(granted.error));
        }
        Ok((granted.id, self.until(sent, granted.ttl)))
    }

    /// When a lease that was renewed by a call begun at `sent` may end, less a margin: a tenth, for
    /// clocks that do not run alike.
    fn until(&self, sent: Instant, ttl: i64) -> Instant {
        let ttl = Duration::from_secs(ttl.max(0) as u64).min(self.ttl);
        sent + ttl - ttl / 10
    }

    /// Records `live` under a lease, unless another broker has the number.
    ///
    /// A start of a broker replaces an earlier one. One that comes back without a lease, after a pause
    /// perhaps, does not: whoever has its place by then started later.
    async fn place(
        &self,
        live: &LiveBroker,
        lease: i64,
        deadline: Instant,
    ) -> Result<u64, Refused> {
        let key = self.space.broker(self.id);
        let held = *self.held.borrow();
        let mut expected = held.revision;
        let mut pauses = Pauses::until(deadline);
        loop {
            let read = RangeRequest::of(key.clone());
            let put = PutRequest {
                key: key.clone(),
                value: encode(live),
                lease,
            };
            let request = TxnRequest {
                compare: vec![is_at(key.clone(), expected)],
                success: vec![operation(Request::Put(put))],
                failure: vec![operation(Request::Range(read))],
            };
            match self.client.transact(request, deadline).await {
                Ok(TxnResponse {
                    header,
                    succeeded: true,
                    ..
                }) => return Ok(revision(&header)),
                Ok(answer) => {
                    let Some(kv) = first(&answer) else {
                        expected = 0;
                        continue;
                    };
                    // Also what an attempt before this one wrote, whose answer was lost.
                    if kv.lease == lease && kv.value == encode(live) {
                        return Ok(kv.revision());
                    }
                    let other = decode(self.id, &kv.value).map_err(|detail| {
                        Refused::Failed(
                            self.client.corrupt(format!("broker {}: {detail}", self.id)),
                        )
                    })?;
                    if other.incarnation.store_id != live.incarnation.store_id {
                        return Err(Refused::Taken(number_in_use(&other)));
                    }
                    let mine = kv.lease == held.lease || self.tried.lock().contains(&kv.lease);
                    if held.lease != 0 && !mine {
                        return Err(Refused::Replaced(replaced(self.id)));
                    }
                    expected = kv.revision();
                }
                Err(CallError::Refused(Code::NotFound, detail)) => {
                    return Err(Refused::Failed(self.client.unavailable(detail)));
                }
                Err(CallError::Refused(code, detail)) => {
                    return Err(Refused::Failed(self.client.refused(code, detail)));
                }
                Err(CallError::NotSent(detail) | CallError::Lost(detail)) => {
                    if !pauses.pause().await {
                        return Err(Refused::Failed(self.client.unavailable(detail)));
                    }
                }
            }
        }
    }

    /// Takes a lease and the place under it.
    async fn take(&self) -> Result<(), Refused> {
        let live = self.live.lock().await;
        let deadline = self.client.deadline();
        let (lease, until) = self.grant(deadline).await.map_err(Refused::Failed)?;
        match self.place(&live, lease, deadline).await {
            Ok(revision) => {
                self.held.send_replace(Held { lease, revision });
                self.tenure.taken_at(revision);
                self.tenure.extend(Some(until));
                Ok(())
            }
            Err(refused) => {
                // The record may be there all the same, and stay if the lease is not given back either.
                self.may_hold(lease);
                self.revoke(lease).await;
                Err(refused)
            }
        }
    }

    fn may_hold(&self, lease: i64) {
        let mut tried = self.tried.lock();
        if tried.len() == TRIED {
            tried.pop_front();
        }
        tried.push_back(lease);
    }

    /// Gives a lease back; one attempt, as it ends by itself.
    async fn revoke(&self, lease: i64) {
        let request = LeaseRevokeRequest { id: lease };
        let deadline = self.client.deadline();
        let revoked: Result<Done, _> = self.client.once(LEASE_REVOKE, request, deadline).await;
        if let Err(error) = revoked {
            tracing::debug!(?error, lease, "a lease is left to end by itself");
        }
    }

    /// Renews the lease; `false` when it has ended.
    async fn renew(&self, lease: i64, deadline: Instant) -> Result<bool, CallError> {
        let sent = Instant::now();
        let requests = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
        // Each renewal is a call of its own.
        let opened = self
            .client
            .open(LEASE_KEEP_ALIVE, Pass::Kept, requests, deadline);
        let (number, mut answers) = opened.await?;
        let patience = deadline.saturating_duration_since(Instant::now());
        let answer = tokio::time::timeout(patience, answers.message()).await;
        let answer: Option<LeaseKeepAliveResponse> = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) => {
                self.client.lost(number);
                let error = CallError::from(status);
                self.client.token_refused(&error);
                return Err(error);
            }
            Err(_) => {
                self.client.lost(number);
                return Err(CallError::Lost("etcd was silent about the lease".into()));
            }
        };
        let Some(LeaseKeepAliveResponse { ttl }) = answer else {
            return Err(CallError::Lost("etcd said nothing of the lease".into()));
        };
        if ttl > 0 {
            self.tenure.extend(Some(self.until(sent, ttl)));
        }
        Ok(ttl > 0)
    }

    /// Keeps the place until it is taken over for good.
    async fn keep(&self) {
        tokio::select! {
            () = self.renewing() => {}
            () = self.clock() => {}
        }
    }

    /// Tells those who wait when the lease may have ended, whatever calls to etcd wait for.
    async fn clock(&self) {
        let mut ticks = tokio::time::interval((self.ttl / 20).max(Duration::from_millis(10)));
        loop {
            ticks.tick().await;
            self.tenure.look();
        }
    }

    async fn renewing(&self) {
        let mut presence = self.boards.presence.subscribe();
        let mut pauses = Pauses::endless();
        let every = self.ttl / 3;
        loop {
            let held = *self.held.borrow();
            if let Err(reason) = self.tenure.may_hold() {
                self.give_back(held, &reason).await;
                tokio::time::sleep(MAY_HOLD_AGAIN).await;
                continue;
            }
            let judgement = {
                let seen = presence.borrow_and_update();
                judge(held, seen.places.get(&self.id), seen.revision)
            };
            match judgement {
                Judgement::Fine => {}
                Judgement::Replaced => {
                    self.tenure.end();
                    tracing::error!(error = %replaced(self.id), "this broker lost its place");
                    return;
                }
                Judgement::Gone => {
                    self.tenure.end();
                    // What an attempt leaves behind is not to be taken for a later start's.
                    self.held.send_modify(|held| held.revision = 0);
                    match self.take().await {
                        Ok(()) => {
                            tracing::info!(broker = self.id, "took a new lease");
                            pauses = Pauses::endless();
                        }
                        Err(Refused::Replaced(error)) => {
                            tracing::error!(%error, "this broker lost its place");
                            return;
                        }
                        Err(Refused::Taken(error)) => {
                            tracing::error!(%error, "this broker has no lease");
                            tokio::time::sleep(self.ttl).await;
                        }
                        Err(Refused::Failed(error)) => {
                            tracing::warn!(%error, "this broker has no lease");
                            pauses.pause().await;
                        }
                    }
                    continue;
                }
            }
            let begun = Instant::now();
            match self.renew(held.lease, begun + every).await {
                Ok(true) => {
                    pauses = Pauses::endless();
                    self.rest(held, begun + every, &mut presence).await;
                }
                Ok(false) => {
                    // It ended: what is held now is nothing.
                    self.held.send_modify(|held| held.revision = 0);
                }
                Err(error) => {
                    tracing::debug!(?error, "the lease was not renewed yet");
                    pauses.pause().await;
                }
            }
        }
    }

    /// Gives the lease back, which may not be kept for now.
    async fn give_back(&self, held: Held, reason: &str) {
        if held.revision == 0 {
            return;
        }
        // First: nothing is served under a lease that others may take for ended.
        self.tenure.end();
        tracing::error!(
            broker = self.id,
            reason,
            "gives its lease back: others take over what it owns"
        );
        self.held.send_modify(|held| held.revision = 0);
        self.revoke(held.lease).await;
    }

    /// Waits until the next renewal is due, the lease may not be kept, or what is seen of the place is not as it should be.
    async fn rest(
        &self,
        held: Held,
        until: Instant,
        presence: &mut watch::Receiver<Arc<Presence>>,
    ) {
        let wrong = presence.wait_for(|seen| {
            !matches!(
                judge(held, seen.places.get(&self.id), seen.revision),
                Judgement::Fine
            )
        });
        let given_back = async {
            while self.tenure.may_hold().is_ok() {
                tokio::time::sleep(MAY_HOLD_AGAIN).await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            _ = wrong => {}
            () = given_back => {}
        }
    }

    async fn update(&self, live: LiveBroker) -> Result<(), MetadataError> {
        let mut present = self.live.lock().await;
        let live = LiveBroker {
            id: self.id,
            incarnation: present.incarnation,
            ..live
        };
        // Also what cannot be told now is for the next lease.
        present.clone_from(&live);
        let held = *self.held.borrow();
        if held.revision == 0 {
            return Ok(());
        }
        let deadline = self.client.deadline();
        let placed = self.place(&live, held.lease, deadline).await;
        let revision = placed.map_err(Refused::error)?;
        self.held.send_replace(Held { revision, ..held });
        Ok(())
    }
}

enum Judgement {
    Fine,
    /// A later start of the same broker has the place.
    Replaced,
    /// Nothing is held, or what is held is not recorded.
    Gone,
}

/// What the place that was seen, as of the revision `seen`, says of what is held.
fn judge(held: Held, place: Option<&Place>, seen: u64) -> Judgement {
    if held.revision == 0 {
        return Judgement::Gone;
    }
    if seen < held.revision {
        return Judgement::Fine;
    }
    match place {
        Some(place) if place.lease == held.lease => Judgement::Fine,
        Some(_) => Judgement::Replaced,
        None => Judgement::Gone,
    }
}

/// Compares the revision of one key.
pub(super) fn is_at(key: Vec<u8>, revision: u64) -> Compare {
    Compare {
        result: EQUAL,
        target: MOD,
        key,
        operand: Some(Target::ModRevision(revision as i64)),
        range_end: Vec::new(),
    }
}

/// What a transaction's first operation, a read, found.
pub(super) fn first(answer: &TxnResponse) -> Option<&KeyValue> {
    answer.responses.first().and_then(in_range)
}

/// The controller's record of `broker`.
pub(super) fn controller_value(broker: u32) -> Vec<u8> {
    ControllerMessage { broker }.encode_to_vec()
}

/// What a [`Membership`] holds on to.
struct EtcdSeat {
    keeper: Arc<Keeper>,
    reach: Arc<Reach>,
    keeping: AbortHandle,
    standing: parking_lot::Mutex<Option<AbortHandle>>,
}

impl Seat for EtcdSeat {
    fn update(&self, live: LiveBroker) -> Result<(), MetadataError> {
        live.check()?;
        let keeper = self.keeper.clone();
        self.reach.run(async move { keeper.update(live).await })
    }

    fn campaign(&self) {
        let mut standing = self.standing.lock();
        if standing.is_none() {
            *standing = Some(self.reach.spawn(stand(self.keeper.clone())));
        }
    }

    fn succeed(&self, gone: u32) -> bool {
        if self.standing.lock().is_none() {
            return false;
        }
        let keeper = self.keeper.clone();
        let taken = self
            .reach
            .run(async move { Ok(succeed(&keeper, gone).await) });
        taken.unwrap_or_else(|error| {
            tracing::debug!(%error, "the controller's office is not taken");
            false
        })
    }

    fn leave(&self) {
        self.keeping.abort();
        if let Some(standing) = self.standing.lock().take() {
            standing.abort();
        }
        let held = self.keeper.held.send_replace(Held::default());
        if held.revision != 0 {
            let keeper = self.keeper.clone();
            let revoked = self.reach.run(async move {
                keeper.revoke(held.lease).await;
                Ok(())
            });
            if let Err(error) = revoked {
                tracing::debug!(%error, "a lease is left to end by itself");
            }
        }
    }
}

/// [`ClusterStore::join`](crate::ClusterStore::join).
pub(super) fn join(
    reach: &Arc<Reach>,
    space: &Space,
    boards: &Arc<Boards>,
    live: LiveBroker,
    ttl: Duration,
) -> Result<Membership, MetadataError> {
    live.check()?;
    if !TTL.contains(&ttl) {
        return Err(MetadataError::invalid(format!(
            "a lease of {ttl:?} is asked for; the legal range is {:?} to {:?}",
            TTL.start(),
            TTL.end()
        )));
    }
    let tenure = Tenure::new();
    let keeper = Arc::new(Keeper {
        client: reach.client.clone(),
        space: space.clone(),
        boards: boards.clone(),
        tenure: tenure.clone(),
        id: live.id,
        // etcd counts whole seconds.
        ttl: Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)),
        live: Mutex::new(live),
        held: watch::Sender::new(Held::default()),
        tried: parking_lot::Mutex::default(),
    });
    let taking = keeper.clone();
    reach.run(async move { taking.take().await.map_err(Refused::error) })?;
    let kept = keeper.clone();
    let keeping = reach.spawn(async move { kept.keep().await });
    let seat = EtcdSeat {
        keeper,
        reach: reach.clone(),
        keeping,
        standing: parking_lot::Mutex::new(None),
    };
    Ok(Membership::new(tenure, Box::new(seat)))
}
