//! What arrives: replies, pushes, refusals.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{Frame, FrameKind};
use kera_protocol::ids::Ordinal;
use kera_protocol::v1::{self, Cursor};
use kera_rpc::ConnectionError;
use tokio::time::Instant;

use super::After;
use super::source::Phase;
use super::state::{Link, ROUND_BITS, Ready, State};
use crate::batch::Chunk;
use crate::error::ConsumeError;

/// Pause before a lane that failed for a reason that may not pass is tried again.
const HOPELESS_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause before a streamlet that changes its owner is tried again.
const OWNER_PAUSE: Duration = Duration::from_millis(250);

/// Where reading may go on behind what a broker cannot read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    At(Cursor),
    /// It does not know, or there is nothing.
    Nowhere,
    /// Only the answer to a request says it.
    NotTold,
}

impl State {
    pub(super) fn reply(
        &mut self,
        token: u64,
        reply: Result<Frame, ConnectionError>,
        after: &mut After,
    ) {
        let (key, round) = (token >> ROUND_BITS, token as u16);
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if source.round != round {
            return;
        }
        let frame = match reply {
            Ok(frame) => frame,
            Err(_) => {
                // The link tells when it is gone; what was asked for is asked for again then.
                self.back_to_idle(key, after);
                return;
            }
        };
        match frame.kind {
            FrameKind::SubscribeReply => match frame.message::<v1::SubscribeResponse>() {
                Ok(response) if response.error == 0 => source.tried_again(Instant::now()),
                Ok(response) => {
                    self.end_subscription(key);
                    let error = WireError::from_number(response.error, response.message);
                    self.failed(key, error, None, Behind::NotTold, after);
                }
                Err(error) => self.failed(key, error.into(), None, Behind::NotTold, after),
            },
            _ => match frame.message::<v1::ReadResponse>() {
                Ok(response) if response.error == 0 => {
                    source.ask_once = false;
                    if source.detour.is_some() {
                        after.from_copies += frame.body.len() as u64;
                    }
                    let next = response.next;
                    self.received(
                        key,
                        frame.body,
                        next,
                        response.head_ordinal,
                        response.finished,
                        after,
                    );
                }
                Ok(response) => {
                    let error = WireError::from_number(response.error, response.message);
                    let behind = response.next.map_or(Behind::Nowhere, Behind::At);
                    self.failed(key, error, Some(response.log_start), behind, after);
                }
                Err(error) => self.failed(key, error.into(), None, Behind::NotTold, after),
            },
        }
    }

    pub(super) fn pushed(
        &mut self,
        address: &Arc<str>,
        link: u64,
        frame: Frame,
        after: &mut After,
    ) {
        let Ok(message) = frame.message::<v1::PushData>() else {
            return;
        };
        let Some(Link::Up {
            id, subscriptions, ..
        }) = self.links.get_mut(address)
        else {
            return;
        };
        // Pushes that were under way when a subscription ended have no owner any more.
        let Some(&key) = subscriptions
            .get(&message.subscription)
            .filter(|_| *id == link)
        else {
            return;
        };
        if message.error != 0 || message.finished {
            subscriptions.remove(&message.subscription);
        }
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        let used = source.credit.min(frame.body.len());
        source.credit -= used;
        self.granted -= used;
        if message.error != 0 {
            let error = WireError::from_number(message.error, message.message);
            source.phase = Phase::Idle;
            self.failed(key, error, None, Behind::NotTold, after);
            return;
        }
        self.received(
            key,
            frame.body,
            message.next,
            message.head_ordinal,
            message.finished,
            after,
        );
    }

    /// Data of a source arrived, or the news that there is none.
    pub(super) fn received(
        &mut self,
        key: u64,
        body: Bytes,
        next: Option<Cursor>,
        head: Ordinal,
        finished: bool,
        after: &mut After,
    ) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        let from = source.next.ordinal;
        let next = next.unwrap_or(source.next);
        if next.ordinal < from || (!body.is_empty() && next.ordinal == from) {
            let error = WireError::new(
                ErrorCode::Internal,
                "broker's answer does not go forward".to_owned(),
            );
            self.failed(key, error, None, Behind::NotTold, after);
            return;
        }
        source.next = next;
        source.out_of_trouble();
        source.head = source.head.max(head);
        source.attempt = 0;
        let finished = finished || next.ordinal >= source.spec.end;
        let empty = body.is_empty();
        // Without records of its own to come, a slice goes on by what is passed.
        let passes = source.spec.slices.is_some() && next.ordinal > from;
        let was_pushed = source.phase == Phase::Subscribed;
        let pause = match empty && !was_pushed && !finished && next.ordinal == from {
            true => source.pause_after_empty(Instant::now()),
            false => None,
        };
        if finished {
            source.phase = Phase::Ended;
            self.withdraw(key);
        } else if !was_pushed {
            source.phase = Phase::Idle;
        }
        if !empty || finished || passes {
            self.deliver(key, body, from, finished);
            after.ready = true;
        }
        if finished || was_pushed {
            return;
        }
        match pause {
            Some(pause) => self.pause(key, pause, after),
            None => self.ask(key, after),
        }
    }

    pub(super) fn deliver(&mut self, key: u64, body: Bytes, from: Ordinal, finished: bool) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        source.untaken += body.len();
        self.buffered += body.len();
        self.ready.push_back(Ready::Chunk(Chunk {
            source: key,
            tag: source.spec.tag,
            life: source.spec.life,
            lane: source.spec.lane,
            slices: source.spec.slices.clone(),
            body,
            from,
            end: source.spec.end,
            next: source.next,
            head: source.head,
            finished,
            skipped: false,
        }));
    }

    /// Goes on behind what the broker cannot read, where that is wanted; the broker's answer to a request
    /// says where that is. False if it is not.
    fn skip_damage(
        &mut self,
        key: u64,
        error: &WireError,
        behind: Behind,
        after: &mut After,
    ) -> bool {
        let (Some(on_skip), Some(source)) = (&self.settings.on_skip, self.sources.get_mut(&key))
        else {
            return false;
        };
        let at = source.next.ordinal;
        match behind {
            Behind::NotTold if source.spec.push && !source.ask_once => {
                source.ask_once = true;
                self.ask(key, after);
                true
            }
            Behind::At(next) if next.ordinal > at => {
                let error = ConsumeError::Lane {
                    lane: source.spec.lane,
                    ordinal: at,
                    error: error.clone(),
                };
                after.skips.push((on_skip.clone(), error));
                let end = source.spec.end;
                source.next = match next.ordinal < end {
                    true => next,
                    false => Cursor {
                        ordinal: end,
                        ..Cursor::default()
                    },
                };
                source.ask_once = false;
                source.attempt = 0;
                source.out_of_trouble();
                let finished = source.next.ordinal >= end;
                if finished {
                    source.phase = Phase::Ended;
                }
                self.deliver(key, Bytes::new(), at, finished);
                if let Some(Ready::Chunk(chunk)) = self.ready.back_mut() {
                    chunk.skipped = true;
                }
                after.ready = true;
                if !finished {
                    self.ask(key, after);
                }
                true
            }
            _ => false,
        }
    }

    /// The broker refused to read a source.
    pub(super) fn failed(
        &mut self,
        key: u64,
        error: WireError,
        log_start: Option<Ordinal>,
        behind: Behind,
        after: &mut After,
    ) {
        self.withdraw(key);
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if source.detour.is_some() && error.code != ErrorCode::OutOfRange {
            tracing::debug!(%error, "a replica cannot be read; another broker is asked");
            self.refused(key, after);
            return;
        }
        source.phase = Phase::Idle;
        source.attempt += 1;
        let at = source.next.ordinal;
        if error.code == ErrorCode::OutOfRange {
            match log_start {
                // Only the answer to a request says where the log starts.
                None if source.spec.push && !source.ask_once => {
                    source.ask_once = true;
                    self.ask(key, after);
                    return;
                }
                Some(start) if start > at => {
                    let start = start.min(source.spec.end);
                    after.skipped += start - at;
                    source.next = Cursor {
                        ordinal: start,
                        ..Cursor::default()
                    };
                    source.ask_once = false;
                    if start >= source.spec.end {
                        source.phase = Phase::Ended;
                        self.deliver(key, Bytes::new(), at, true);
                        after.ready = true;
                    } else {
                        self.ask(key, after);
                    }
                    return;
                }
                _ => {}
            }
        }
        if error.code == ErrorCode::Damaged && self.skip_damage(key, &error, behind, after) {
            return;
        }
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        let elsewhere = match error.code {
            ErrorCode::NotOwner | ErrorCode::UnknownStreamlet | ErrorCode::UnknownLane => {
                source.owner = None;
                true
            }
            ErrorCode::NotEnoughCopies | ErrorCode::ShuttingDown | ErrorCode::UnknownStream => true,
            _ => false,
        };
        self.refresh |= elsewhere;
        // An owner may hear of a stream later than whoever named the owner: whether there is one is asked of others.
        let stream = source.spec.lane.stream;
        let is_gone = self.named.is_some_and(|named| named != Some(stream));
        let unheard = error.code == ErrorCode::UnknownStream && !is_gone;
        if error.code.is_retryable() || unheard {
            source.in_trouble(Instant::now(), error.to_string(), false);
            let mut pause = self.retry.pause(source.attempt);
            if elsewhere {
                // A new owner serves as soon as it can, and readers wait meanwhile.
                pause = pause.min(OWNER_PAUSE);
            }
            self.pause(key, pause.max(Duration::from_millis(1)), after);
            return;
        }
        let lane = source.spec.lane;
        let hopeless = error.code == ErrorCode::UnknownStream;
        if hopeless {
            source.phase = Phase::Ended;
        }
        // One at a time: whoever does not come for it need not hear of every attempt.
        if !source.error_waits {
            source.error_waits = true;
            let error = ConsumeError::Lane {
                lane,
                ordinal: at,
                error,
            };
            self.ready.push_back(Ready::Failed(key, error));
            after.ready = true;
        }
        if !hopeless {
            self.pause(key, HOPELESS_PAUSE, after);
        }
    }

    pub(super) fn pause(&mut self, key: u64, pause: Duration, after: &mut After) {
        if let Some(source) = self.sources.get_mut(&key) {
            source.phase = Phase::Paused;
            self.paused.insert((Instant::now() + pause, key));
            after.drive = true;
        }
    }

    pub(super) fn back_to_idle(&mut self, key: u64, after: &mut After) {
        if let Some(source) = self.sources.get_mut(&key)
            && matches!(source.phase, Phase::Asked | Phase::Subscribed)
        {
            source.phase = Phase::Idle;
            source.round = source.round.wrapping_add(1);
            self.withdraw(key);
            self.idle.push_back(key);
            after.drive = true;
        }
    }

    pub(super) fn end_subscription(&mut self, key: u64) {
        if let Some(source) = self.sources.get(&key)
            && let Some(owner) = &source.owner
            && let Some(Link::Up { subscriptions, .. }) = self.links.get_mut(owner)
        {
            subscriptions.remove(&source.subscription);
        }
    }
}
