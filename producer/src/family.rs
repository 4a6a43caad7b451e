//! What producers of several streams have in common: connections, one bound on memory, a transaction.
//!
//! Each stream has its own lanes, background task and settings, so that appends to one stream never wait for a lock of another.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kera_protocol::error::ErrorCode;
use kera_protocol::frame::Frame;
use kera_protocol::ids::StreamId;
use kera_rpc::{Client, ConnectionError, DataConnection, FrameSink, RetryPolicy, RpcError};
use parking_lot::Mutex;

use crate::end::abort;
use crate::error::{BuildError, ProduceError};
use crate::handle::TransactionHandle;
use crate::link::Link;
use crate::link_sink::LinkSink;
use crate::memory::Memory;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::transactional::Transactional;

/// Bits of a request's token that name its slot, below those of its stream.
const SLOT_BITS: u32 = 20;
/// Most slots of a stream: lanes of all streamlets.
pub(crate) const MAX_SLOTS: u64 = 1 << SLOT_BITS;
/// Most streams at a time.
pub(crate) const MAX_STREAMS: usize = 1 << (u32::BITS - SLOT_BITS);

/// Producers of streams that share a client.
pub(crate) struct Family {
    pub(crate) client: Client,
    pub(crate) memory: Memory,
    /// With a transactional id: all streams are appended to in the same transaction.
    pub(crate) transactional: Option<Transactional>,
    /// The same for all brokers of a cluster.
    pub(crate) max_frame_bytes: usize,
    retry: RetryPolicy,
    /// Without linger batches are sent as soon as nothing is under way.
    pub(crate) lingers: bool,
    /// The connection to each owner, for all streams.
    links: Mutex<HashMap<String, Arc<Link>>>,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    by_number: Vec<Member>,
    /// Those that have not ended.
    open: usize,
    /// Streams that were appended to, or are.
    streams: HashSet<StreamId>,
}

impl Members {
    /// A number for another stream: one that was given back, or the next. While a transaction is open none is given again: the
    /// lanes that are part of it go by the number of their stream's producer, which may be closed before it ends.
    fn number(&self, in_transaction: bool) -> usize {
        let mut known = self.by_number.iter();
        let free = known.position(|member| {
            !in_transaction
                && member.shared.strong_count() == 0
                && member.unanswered.load(Ordering::SeqCst) == 0
        });
        free.unwrap_or(self.by_number.len())
    }
}

/// The producer of one stream.
struct Member {
    shared: Weak<Shared>,
    /// As long as replies may come that name it, its number is given to no other.
    unanswered: Arc<AtomicUsize>,
}

/// Names a batch that was submitted: its stream's number, its slot, and which attempt it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) member: u32,
    pub(crate) slot: usize,
    pub(crate) ticket: u32,
}

impl Token {
    pub(crate) fn packed(self) -> u64 {
        let place = self.member << SLOT_BITS | self.slot as u32;
        u64::from(place) << 32 | u64::from(self.ticket)
    }

    pub(crate) fn unpacked(token: u64) -> Self {
        let place = (token >> 32) as u32;
        Self {
            member: place >> SLOT_BITS,
            slot: place as usize & (MAX_SLOTS as usize - 1),
            ticket: token as u32,
        }
    }
}

impl Family {
    pub(crate) fn new(
        client: Client,
        settings: &Settings,
        memory: Memory,
        transactional: Option<Transactional>,
        max_frame_bytes: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            memory,
            transactional,
            max_frame_bytes,
            retry: settings.retry,
            lingers: !settings.linger.is_zero(),
            links: Mutex::default(),
            members: Mutex::default(),
        })
    }

    /// Takes in the producer of a stream, which `make` makes of its number and the count of its batches without an answer.
    ///
    /// # Errors
    /// All have ended, or there are too many, or the stream's sequences cannot begin anew now.
    pub(crate) fn join(
        &self,
        stream: StreamId,
        make: impl FnOnce(u32, Arc<AtomicUsize>) -> Shared,
    ) -> Result<Arc<Shared>, BuildError> {
        let wrong = |reason: &str| BuildError::Setting {
            name: "stream",
            reason: reason.to_owned(),
        };
        let mut members = self.members.lock();
        if members.open == 0 && !members.by_number.is_empty() {
            return Err(BuildError::Closed);
        }
        if let Some(transactional) = &self.transactional
            && members.streams.contains(&stream)
        {
            // Under one epoch a lane has one sequence of batches.
            let known = members.by_number.iter();
            let mut known = known.filter_map(|member| member.shared.upgrade());
            if known.any(|member| member.is_open_for(stream)) {
                return Err(wrong("a producer of it is open: clone that one"));
            }
            if !transactional.begins_anew() {
                return Err(wrong(
                    "it was closed while the transaction was open: end the transaction first",
                ));
            }
        }
        let in_transaction = self
            .transactional
            .as_ref()
            .is_some_and(Transactional::is_open);
        let number = members.number(in_transaction);
        if number >= MAX_STREAMS {
            return Err(wrong(match in_transaction {
                true => {
                    "4,096 streams are open, or were in this transaction: end the transaction and close some, or open another producer"
                }
                false => "4,096 streams are open: close some, or open another producer",
            }));
        }
        let unanswered = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(make(number as u32, unanswered.clone()));
        let member = Member {
            shared: Arc::downgrade(&shared),
            unanswered,
        };
        match members.by_number.get_mut(number) {
            Some(free) => *free = member,
            None => members.by_number.push(member),
        }
        members.open += 1;
        members.streams.insert(stream);
        Ok(shared)
    }

    /// A producer has ended. With the last one the connections end.
    pub(crate) fn leave(&self) {
        {
            let mut members = self.members.lock();
            members.open -= 1;
            if members.open > 0 {
                return;
            }
        }
        for link in self.links() {
            let connection = link.state.lock().connection.take();
            if let Some(connection) = connection {
                connection.close();
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.members.lock().open == 0
    }

    /// The producers that are not dropped. No lock is held while they are dealt with.
    pub(crate) fn members(&self) -> Vec<Arc<Shared>> {
        let members = self.members.lock();
        let members = members.by_number.iter();
        members
            .filter_map(|member| member.shared.upgrade())
            .collect()
    }

    pub(crate) fn link(&self, address: &str) -> Arc<Link> {
        self.links
            .lock()
            .entry(address.to_owned())
            .or_insert_with(|| Link::new(address))
            .clone()
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().values().cloned().collect()
    }

    /// Batches that are submitted and not answered, of all streams to all brokers.
    pub(crate) fn batches_in_flight(&self) -> usize {
        let links = self.links.lock();
        links
            .values()
            .map(|link| link.in_flight.load(Ordering::Relaxed))
            .sum()
    }

    /// Takes the reply to a batch. Returns the connection to flush for what could be sent since.
    #[must_use]
    pub(crate) fn replied(
        &self,
        token: u64,
        reply: Result<Frame, ConnectionError>,
    ) -> Option<Arc<DataConnection>> {
        let token = Token::unpacked(token);
        let shared = {
            let members = self.members.lock();
            let member = members.by_number.get(token.member as usize)?;
            let shared = member.shared.upgrade();
            member.unanswered.fetch_sub(1, Ordering::SeqCst);
            shared
        };
        shared?.replied(token, reply)
    }

    /// Connects `link` in a task of its own.
    pub(crate) fn connect(self: &Arc<Self>, link: &Arc<Link>) {
        let (family, link) = (self.clone(), link.clone());
        tokio::spawn(async move {
            let result = family.connect_link(&link).await;
            link.state.lock().connecting = false;
            match result {
                Ok(connection) => family.connected(&link, connection),
                Err(error) => family.not_connected(&link, &error),
            }
        });
    }

    pub(crate) async fn connect_link(
        self: &Arc<Self>,
        link: &Arc<Link>,
    ) -> Result<Arc<DataConnection>, RpcError> {
        let sink: Arc<dyn FrameSink> = Arc::new(LinkSink::new(self, link));
        self.client.connect_data(&link.address, Some(sink)).await
    }

    /// Puts a new connection to use.
    pub(crate) fn connected(&self, link: &Arc<Link>, connection: Arc<DataConnection>) {
        let mut state = link.state.lock();
        state.attempt = 0;
        state.not_before = None;
        let old = state.connection.replace(connection.clone());
        drop(state);
        *link.trouble.lock() = None;
        drop(old);
        if self.has_ended() {
            return connection.close();
        }
        for member in self.members() {
            member.connected(link);
        }
    }

    fn not_connected(&self, link: &Link, error: &RpcError) {
        tracing::debug!(broker = %link.address, %error, "cannot connect yet");
        {
            let mut state = link.state.lock();
            state.not_before = Some(Instant::now() + self.retry.pause(state.attempt));
            state.attempt = state.attempt.saturating_add(1);
        }
        *link.trouble.lock() = Some(error.to_string());
        self.look_for_owners();
    }

    /// Streamlets may have another owner by now, or soon.
    pub(crate) fn look_for_owners(&self) {
        for member in self.members() {
            member.want_meta.store(true, Ordering::Relaxed);
            member.wake_driver();
        }
    }

    /// Has all open batches sent soon: memory has run out, whichever stream they are of.
    pub(crate) fn press(&self) {
        for member in self.members() {
            member.press();
        }
    }

    /// Nothing of the transaction is sent any more. Its handle, if it has lanes.
    pub(crate) fn give_up_transaction(&self) -> Option<TransactionHandle> {
        let handle = self.transactional.as_ref()?.take();
        self.fail_all(&ProduceError::Aborted);
        // Whoever ends it is told, not the next flush.
        self.take_given_up();
        handle
    }

    /// Tells the coordinator every so often that the producer of the open transaction lives, until it is ended by somebody else
    /// or nobody waits for this any more.
    pub(crate) async fn send_heartbeats(self: Arc<Self>, every: Duration) {
        let Some(transactional) = &self.transactional else {
            return;
        };
        let mut is_told = false;
        loop {
            tokio::time::sleep(every).await;
            match transactional.heartbeat(&self.client).await {
                Ok(()) => {}
                // It may be given back in time.
                Err(error) if error.code() == Some(ErrorCode::NotAuthorized) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(id = transactional.id, %error, "a transaction is aborted when its timeout is over: the right to keep it open is gone");
                    }
                }
                Err(error) if error.code() == Some(ErrorCode::FencedProducer) => {
                    tracing::warn!(id = transactional.id, %error, "somebody has ended a transaction whose producer still lives");
                    transactional.ended_by_others();
                    return;
                }
                // The next one may. A coordinator of an earlier version knows none.
                Err(error) => {
                    tracing::debug!(id = transactional.id, %error, "a heartbeat did not arrive");
                }
            }
        }
    }

    /// Somebody else has ended the transaction and begun another one, which is to be aborted.
    pub(crate) fn transaction_was_ended(&self, other: TransactionHandle) {
        tracing::warn!(
            id = other.transactional_id,
            "somebody has ended a transaction whose producer still appends"
        );
        self.fail_all(&ProduceError::Aborted);
        let client = self.client.clone();
        tokio::spawn(async move { abort(&client, &other).await.is_ok() });
    }

    /// Gives up all batches of all streams.
    fn fail_all(&self, error: &ProduceError) {
        for member in self.members() {
            member.fail_all(error);
        }
    }

    /// Goes on under another epoch: nothing is in flight.
    pub(crate) fn go_on_as(&self, identity: (i64, i16)) {
        for member in self.members() {
            member.go_on_as(identity);
        }
    }

    /// Why a batch of any stream was given up that no flush has told of yet.
    pub(crate) fn take_given_up(&self) -> Option<ProduceError> {
        let members = self.members().into_iter();
        members.fold(None, |first, member| first.or(member.take_given_up()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_stream_slot_and_attempt() {
        for (member, slot, ticket) in [
            (0, 0, 0),
            (1, 2, 3),
            (MAX_STREAMS as u32 - 1, MAX_SLOTS as usize - 1, u32::MAX),
        ] {
            let token = Token {
                member,
                slot,
                ticket,
            };
            assert_eq!(Token::unpacked(token.packed()), token);
        }
    }
}
