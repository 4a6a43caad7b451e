//! What a producer with a transactional id knows of its transaction.

use std::collections::HashSet;
use std::time::Duration;

use kera_protocol::v1;
use kera_rpc::{Client, RpcError};
use parking_lot::Mutex;

use crate::end::{abort, unknown};
use crate::error::{AppendError, ProduceError, TransactionError};
use crate::handle::{ANSWER_WITHIN, TransactionHandle};

/// The transaction of a producer, and the slots whose lanes are part of it.
#[derive(Debug)]
pub(crate) struct Transactional {
    pub(crate) id: String,
    timeout_ms: u32,
    sends_heartbeats: bool,
    state: Mutex<State>,
    /// One transaction begins at a time.
    pub(crate) beginning: tokio::sync::Mutex<()>,
}

/// The number of a stream's producer, and one of its slots.
type SlotOfStream = (u32, usize);

#[derive(Debug)]
struct State {
    identity: (i64, i16),
    /// How often heartbeats are expected, milliseconds; 0: none are.
    heartbeat_ms: u32,
    /// The next transaction begins under another epoch: the one before failed, and its batches may yet arrive.
    is_spoilt: bool,
    /// Lanes were asked for when it ended that nobody waits for any more: the request may yet begin another transaction.
    was_asked_for: bool,
    phase: Phase,
    /// Which of the id's transactions it is, once it has lanes.
    number: Option<u64>,
    /// Slots whose lanes are part of it.
    added: HashSet<SlotOfStream>,
    /// Slots whose lanes are to be, and those that are asked for.
    wanted: HashSet<SlotOfStream>,
    asked: HashSet<SlotOfStream>,
    failure: Option<ProduceError>,
    /// It failed because somebody else ended it.
    was_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None is open.
    None,
    /// Records are taken.
    Open,
    /// No more records are taken, those that were are waited for.
    Closing,
    /// Nothing of it is sent any more; how it ends is asked for.
    Ending,
}

impl Phase {
    /// True while batches may be sent.
    fn sends(self) -> bool {
        matches!(self, Self::Open | Self::Closing)
    }
}

impl Transactional {
    /// Begins under a transactional id: what other instances left open is aborted.
    pub(crate) async fn begin(
        client: &Client,
        id: &str,
        timeout_ms: u32,
        sends_heartbeats: bool,
    ) -> Result<Self, RpcError> {
        let mut new = Self::of(id, timeout_ms, (-1, -1));
        new.sends_heartbeats = sends_heartbeats;
        new.init(client, None).await?;
        Ok(new)
    }

    /// None is open yet.
    fn of(id: &str, timeout_ms: u32, identity: (i64, i16)) -> Self {
        Self {
            id: id.to_owned(),
            timeout_ms,
            sends_heartbeats: false,
            state: Mutex::new(State {
                identity,
                heartbeat_ms: 0,
                is_spoilt: false,
                was_asked_for: false,
                phase: Phase::None,
                number: None,
                added: HashSet::new(),
                wanted: HashSet::new(),
                asked: HashSet::new(),
                failure: None,
                was_ended: false,
            }),
            beginning: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn identity(&self) -> (i64, i16) {
        self.state.lock().identity
    }

    /// Another epoch, if the next transaction needs one.
    pub(crate) async fn renewed(&self, client: &Client) -> Result<Option<(i64, i16)>, RpcError> {
        let known = {
            let state = self.state.lock();
            if !state.is_spoilt {
                return Ok(None);
            }
            state.identity
        };
        let identity = self.init(client, Some(known)).await?;
        self.state.lock().is_spoilt = false;
        Ok(Some(identity))
    }

    /// Begins, or goes on under another epoch.
    async fn init(
        &self,
        client: &Client,
        known: Option<(i64, i16)>,
    ) -> Result<(i64, i16), RpcError> {
        let request = v1::InitTransactionsRequest {
            transactional_id: self.id.clone(),
            timeout_ms: self.timeout_ms,
            known_producer: known.map(|(producer, _)| producer),
            known_epoch: known.map_or(0, |(_, epoch)| epoch.into()),
            sends_heartbeats: self.sends_heartbeats,
        };
        let call = client.transaction_call(&self.id, ANSWER_WITHIN, request);
        let begun = call.await?;
        let epoch = i16::try_from(begun.epoch).map_err(|_| {
            let text = format!("transactional id {}: {} is no epoch", self.id, begun.epoch);
            RpcError::BadAnswer(text)
        })?;
        let identity = (begun.producer, epoch);
        let mut state = self.state.lock();
        state.identity = identity;
        state.heartbeat_ms = begun.heartbeat_ms;
        Ok(identity)
    }

    /// How often heartbeats are expected while a transaction is open; `None` if none are.
    pub(crate) fn heartbeat_every(&self) -> Option<Duration> {
        let ms = self.state.lock().heartbeat_ms;
        (ms > 0).then(|| Duration::from_millis(ms.into()))
    }

    /// Tells the coordinator that the producer of the open transaction lives. Does nothing once that is over.
    pub(crate) async fn heartbeat(&self, client: &Client) -> Result<(), RpcError> {
        let (producer, epoch) = {
            let state = self.state.lock();
            if !state.phase.sends() || state.number.is_none() {
                return Ok(());
            }
            state.identity
        };
        let request = v1::HeartbeatTransactionRequest {
            transactional_id: self.id.clone(),
            producer,
            epoch: epoch.into(),
        };
        let call = client.transaction_call(&self.id, ANSWER_WITHIN, request);
        call.await.map(drop)
    }

    /// Somebody else has ended the open transaction: it cannot be committed.
    pub(crate) fn ended_by_others(&self) {
        let mut state = self.state.lock();
        if state.phase.sends() {
            state.failure.get_or_insert(ProduceError::Aborted);
            state.was_ended = true;
        }
    }

    /// Records are taken from now on. False if a transaction is open.
    pub(crate) fn open(&self) -> bool {
        let mut state = self.state.lock();
        let is_free = state.phase == Phase::None;
        if is_free {
            state.phase = Phase::Open;
            state.number = None;
            state.failure = None;
            state.was_ended = false;
        }
        is_free
    }

    /// Whether records are taken.
    ///
    /// # Errors
    /// [`AppendError::NoTransaction`] or [`AppendError::TransactionFailed`].
    pub(crate) fn check_open(&self) -> Result<(), AppendError> {
        let state = self.state.lock();
        match (&state.failure, state.phase) {
            (Some(error), _) => Err(AppendError::TransactionFailed(error.clone())),
            (None, Phase::Open) => Ok(()),
            (None, _) => Err(AppendError::NoTransaction),
        }
    }

    /// Has the next transaction begin under another epoch, where sequences begin anew. False while one is open.
    pub(crate) fn begins_anew(&self) -> bool {
        let mut state = self.state.lock();
        let is_free = state.phase == Phase::None;
        state.is_spoilt |= is_free;
        is_free
    }

    /// True until it is over.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().phase != Phase::None
    }

    /// True while batches of it may be sent.
    pub(crate) fn sends(&self) -> bool {
        self.state.lock().phase.sends()
    }

    /// The next one may begin.
    pub(crate) fn over(&self) {
        self.state.lock().phase = Phase::None;
    }

    pub(crate) fn close(&self) {
        self.state.lock().phase = Phase::Closing;
    }

    /// The handle of what is open, if it has lanes.
    pub(crate) fn handle(&self) -> Option<TransactionHandle> {
        let state = self.state.lock();
        state.number.map(|number| self.handle_of(&state, number))
    }

    /// Nothing of it is sent any more; its handle, if it has lanes. Unless it is [settled](Self::settled), the
    /// next one begins under another epoch: what is left of this one must not become part of it.
    pub(crate) fn take(&self) -> Option<TransactionHandle> {
        let mut state = self.state.lock();
        state.was_asked_for = !state.asked.is_empty();
        state.phase = Phase::Ending;
        state.added.clear();
        state.wanted.clear();
        state.asked.clear();
        state.failure = None;
        let number = state.number.take();
        state.is_spoilt |= state.was_asked_for || number.is_some();
        number.map(|number| self.handle_of(&state, number))
    }

    fn handle_of(&self, state: &State, number: u64) -> TransactionHandle {
        let (producer, epoch) = state.identity;
        TransactionHandle {
            transactional_id: self.id.clone(),
            producer,
            epoch,
            number,
        }
    }

    /// All batches of it were acknowledged, and it is committed or prepared for certain. The next one begins under the same
    /// epoch, unless a lane was asked for late: under that epoch the request would be taken for the next one's.
    pub(crate) fn settled(&self) {
        let mut state = self.state.lock();
        state.is_spoilt = state.was_asked_for;
    }

    /// A batch was given up: the transaction cannot be committed.
    pub(crate) fn fail(&self, error: &ProduceError) {
        let mut state = self.state.lock();
        if state.phase.sends() {
            state.failure.get_or_insert_with(|| error.clone());
        }
    }

    /// True if somebody else ended it while records were appended.
    pub(crate) fn was_ended(&self) -> bool {
        self.state.lock().was_ended
    }

    pub(crate) fn failure(&self) -> Option<ProduceError> {
        self.state.lock().failure.clone()
    }

    /// Whether batches of a slot may be sent. If its lane is no part of the transaction yet, it is to be.
    pub(crate) fn may_send(&self, slot: SlotOfStream) -> bool {
        let mut state = self.state.lock();
        if state.added.contains(&slot) {
            return true;
        }
        if state.phase.sends() && !state.asked.contains(&slot) {
            state.wanted.insert(slot);
        }
        false
    }

    /// Slots of a stream whose lanes are to be added now; they are asked for from now on.
    pub(crate) fn take_wanted(&self, stream: u32) -> Vec<usize> {
        let mut state = self.state.lock();
        let of_it = state.wanted.extract_if(|(of, _)| *of == stream);
        let wanted: Vec<usize> = of_it.map(|(_, slot)| slot).collect();
        let asked = wanted.iter().map(|slot| (stream, *slot));
        state.asked.extend(asked);
        wanted
    }

    /// The lanes of these slots of a stream were added, or not. If somebody has ended the transaction meanwhile they have begun
    /// another one: this one is failed from now on, and the handle of the other is returned, which is to be aborted.
    pub(crate) fn added(
        &self,
        identity: (i64, i16),
        stream: u32,
        slots: &[usize],
        number: Option<u64>,
    ) -> Option<TransactionHandle> {
        let mut state = self.state.lock();
        if state.identity != identity {
            return None;
        }
        let mut is_awaited = false;
        for slot in slots {
            is_awaited |= state.asked.remove(&(stream, *slot));
        }
        if !is_awaited {
            // It was given up meanwhile.
            return None;
        }
        let Some(given) = number else {
            // The coordinator may have forgotten the id: then only beginning anew helps.
            state.is_spoilt |= state.number.is_none();
            return None;
        };
        if *state.number.get_or_insert(given) != given {
            // What was added before is no part of the other one: a commit would be of some of the records.
            state.failure.get_or_insert(ProduceError::Aborted);
            state.was_ended = true;
            state.wanted.clear();
            return Some(self.handle_of(&state, given));
        }
        let slots = slots.iter().map(|slot| (stream, *slot));
        state.added.extend(slots);
        None
    }

    /// Adds lanes to the transaction.
    pub(crate) async fn add(
        &self,
        client: &Client,
        (producer, epoch): (i64, i16),
        streams: Vec<v1::LanesOfTransaction>,
    ) -> Result<u64, RpcError> {
        let request = v1::AddToTransactionRequest {
            transactional_id: self.id.clone(),
            producer,
            epoch: epoch.into(),
            streams,
            groups: Vec::new(),
        };
        self.ask(client, request).await
    }

    async fn ask(
        &self,
        client: &Client,
        request: v1::AddToTransactionRequest,
    ) -> Result<u64, RpcError> {
        let call = client.transaction_call(&self.id, ANSWER_WITHIN, request);
        call.await.map(|answer| answer.number)
    }
}

/// Positions are on their way to a group. If that is given up, nobody knows whether they are part of the transaction: it
/// cannot be committed any more.
#[must_use]
pub(crate) struct SendingPositions<'a> {
    state: &'a Transactional,
    failure: Option<ProduceError>,
}

impl SendingPositions<'_> {
    pub(crate) fn done(mut self) {
        self.failure = None;
    }

    pub(crate) fn failed(mut self, error: &TransactionError) {
        self.failure = Some(ProduceError::Positions(error.to_string()));
    }
}

impl Drop for SendingPositions<'_> {
    fn drop(&mut self) {
        if let Some(failure) = self.failure.take() {
            self.state.fail(&failure);
            // The coordinator may have begun a transaction of which nothing is known here.
            self.state.state.lock().is_spoilt = true;
        }
    }
}

impl Transactional {
    /// Positions are sent from now on.
    ///
    /// # Errors
    /// The transaction cannot be committed any more.
    pub(crate) fn sending_positions(&self) -> Result<SendingPositions<'_>, TransactionError> {
        if let Some(error) = self.failure() {
            return Err(TransactionError::Records(error));
        }
        let text = "the call was given up before it was answered".to_owned();
        Ok(SendingPositions {
            state: self,
            failure: Some(ProduceError::Positions(text)),
        })
    }

    /// Makes a group part of the transaction. Its handle.
    pub(crate) async fn join_group(
        &self,
        client: &Client,
        group: &str,
    ) -> Result<TransactionHandle, TransactionError> {
        let identity = self.identity();
        let request = v1::AddToTransactionRequest {
            transactional_id: self.id.clone(),
            producer: identity.0,
            epoch: identity.1.into(),
            streams: Vec::new(),
            groups: vec![group.to_owned()],
        };
        let given = self.ask(client, request).await?;
        let other = {
            let mut state = self.state.lock();
            let known = *state.number.get_or_insert(given);
            let handle = self.handle_of(&state, given);
            if known == given {
                return Ok(handle);
            }
            // Somebody has ended it: a commit would be of what came after that.
            state.failure.get_or_insert(ProduceError::Aborted);
            state.was_ended = true;
            state.wanted.clear();
            handle
        };
        match abort(client, &other).await {
            Ok(_) => Err(TransactionError::Aborted),
            Err(error) => Err(unknown(&other, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: (i64, i16) = (7, 1);

    #[test]
    fn a_lane_that_was_asked_for_and_not_used_ends_the_epoch() {
        for is_late in [false, true] {
            let transactional = Transactional::of("id", 1000, IDENTITY);
            assert!(transactional.open());
            assert!(!transactional.may_send((0, 0)));
            assert!(transactional.take_wanted(1).is_empty());
            assert_eq!(transactional.take_wanted(0), [0]);
            assert!(transactional.added(IDENTITY, 0, &[0], Some(4)).is_none());
            assert!(transactional.may_send((0, 0)));
            if is_late {
                // Its only batch goes to another lane then, and the answer is not waited for.
                assert!(!transactional.may_send((1, 0)));
                assert_eq!(transactional.take_wanted(1), [0]);
            }
            assert!(transactional.take().is_some());
            transactional.settled();
            assert_eq!(transactional.state.lock().is_spoilt, is_late);
            // What comes of it is nobody's.
            assert!(transactional.added(IDENTITY, 1, &[0], Some(5)).is_none());
        }
    }
}
