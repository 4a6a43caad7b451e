//! What a connection reads: requests, subscriptions, and bytes that come from the disk.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use kera_metadata::access::Operation;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, FrameKind};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;
use kera_streamlet::Streamlet;

use super::{Connection, DISK_READ, FromDisk, MAX_DISK_READS, MAX_PARKED_READS};
use crate::client_link::ClientLink;
use crate::copy_reads;
use crate::data::catalog::stream_id;
use crate::data::fetch::{self, MAX_SUBSCRIPTIONS, Read, Step, Subscription, Target};
use crate::data::memory_budget::MOST_IN_A_CROWD;
use crate::data::traced;
use crate::quotas::Metered;

impl Connection {
    pub(super) fn take_read(
        &mut self,
        link: &mut ClientLink,
        correlation: u32,
        request: &v1::ReadRequest,
    ) {
        let full = WireError::new(
            ErrorCode::Overloaded,
            format!("the connection has {MAX_PARKED_READS} reads waiting; wait for their answers"),
        );
        let granted = self
            .granted
            .require(&link.shared, Operation::Read, &request.stream);
        let read = if self.reads.len() + self.copy_reads.len() >= MAX_PARKED_READS {
            Err(full)
        } else if let Err(error) = granted {
            Err(error)
        } else if let Err(error) = stream_id(&request.stream) {
            // What is kept until it can be served is as short as one that can be.
            Err(error)
        } else if request.from_copy {
            self.copy_reads.push_back((correlation, request.clone()));
            self.quiet = false;
            return;
        } else {
            Read::new(&link.shared.data, correlation, request)
        };
        match read {
            Ok(read) => {
                self.reads.push(read);
                self.quiet = false;
            }
            Err(error) => link.out.push(
                FrameKind::ReadReply,
                correlation,
                &fetch::read_refusal(&error),
                Vec::new(),
            ),
        }
    }

    pub(super) fn take_subscribe(
        &mut self,
        link: &mut ClientLink,
        correlation: u32,
        request: &v1::SubscribeRequest,
    ) {
        let outcome = if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let text = format!(
                "the connection has {MAX_SUBSCRIPTIONS} subscriptions; use another connection"
            );
            Err(WireError::new(ErrorCode::Overloaded, text))
        } else if self.subscriptions.contains_key(&request.subscription) {
            let text = format!(
                "subscription {} exists on this connection; choose another number",
                request.subscription
            );
            Err(WireError::new(ErrorCode::InvalidArgument, text))
        } else {
            let granted = self
                .granted
                .require(&link.shared, Operation::Read, &request.stream);
            granted.and_then(|()| Subscription::new(&link.shared.data, request))
        };
        let mut reply = v1::SubscribeResponse::default();
        match outcome {
            Ok(subscription) => {
                self.subscriptions.insert(subscription.id, subscription);
                self.quiet = false;
            }
            Err(error) => {
                reply.error = error.code as u32;
                reply.message = error.message;
            }
        }
        link.out
            .push(FrameKind::SubscribeReply, correlation, &reply, Vec::new());
    }

    pub(super) fn take_credit(&mut self, link: &mut ClientLink, request: &v1::CreditRequest) {
        // Credit for a subscription that has just ended is no error: the two crossed on the way.
        if request.unsubscribe {
            if let Some(ended) = self.subscriptions.remove(&request.subscription) {
                ended.target.head.forget(&link.waker);
                // Others may have waited at the same head.
                self.unpark();
            }
        } else if let Some(subscription) = self.subscriptions.get_mut(&request.subscription) {
            subscription.add_credit(request.credit_bytes);
            self.quiet = false;
        }
    }

    /// If the rules have changed, ends reads and subscriptions that were allowed before and are not now.
    pub(super) fn check_again(&mut self, link: &mut ClientLink) {
        if !self.granted.is_outdated(&link.shared) {
            return;
        }
        let (granted, shared) = (&mut self.granted, link.shared.clone());
        let mut denied = |stream: StreamId| {
            let stream = stream.as_bytes();
            granted.require(&shared, Operation::Read, stream).err()
        };
        self.reads.retain(|read| {
            let Some(error) = denied(read.target.streamlet.stream()) else {
                return true;
            };
            read.target.head.forget(&link.waker);
            let refusal = fetch::read_refusal(&error);
            link.out
                .push(FrameKind::ReadReply, read.correlation, &refusal, Vec::new());
            false
        });
        self.copy_reads.retain(|(correlation, request)| {
            let stream = StreamId::from_slice(&request.stream);
            let Some(error) = stream.and_then(&mut denied) else {
                return true;
            };
            let refusal = fetch::read_refusal(&error);
            link.out
                .push(FrameKind::ReadReply, *correlation, &refusal, Vec::new());
            false
        });
        self.subscriptions.retain(|id, subscription| {
            let Some(error) = denied(subscription.target.streamlet.stream()) else {
                return true;
            };
            subscription.target.head.forget(&link.waker);
            let push = v1::PushData {
                subscription: *id,
                error: error.code as u32,
                message: error.message,
                ..v1::PushData::default()
            };
            let of = &subscription.target.streamlet;
            push_out(link, of, &push, Vec::new());
            false
        });
        // Others may have waited at the same heads.
        self.unpark();
    }

    /// Has every subscription and read looked at again.
    pub(super) fn unpark(&mut self) {
        let subscriptions = self.subscriptions.values_mut().map(|s| &mut s.target);
        let reads = self.reads.iter_mut().map(|read| &mut read.target);
        subscriptions.chain(reads).for_each(Target::unpark);
        self.quiet &= self.subscriptions.is_empty() && self.reads.is_empty();
    }

    /// True if one more read may wait for the disk; `room` is what it may bring.
    fn may_read_disk(&self, room: usize) -> bool {
        let most = if room <= MOST_IN_A_CROWD {
            1
        } else {
            MAX_DISK_READS
        };
        self.disk_reads < most
    }

    /// Answers with nothing the reads that have waited for others' turns as long as their client does. The connection's place
    /// stays.
    fn answer_late(&mut self, link: &mut ClientLink, now: Instant) {
        let reads = std::mem::take(&mut self.reads).into_iter();
        let (late, rest): (Vec<Read>, Vec<Read>) = reads.partition(|read| read.is_late(now));
        self.reads = rest;
        for read in late {
            self.reply_read(link, &read, &read.nothing(), Vec::new());
        }
    }

    pub(super) fn serve_reads(&mut self, link: &mut ClientLink) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.reads.len() {
            // In a crowd it needs no turn to wait for records.
            if self.reads[index].is_waiting(now) {
                index += 1;
                continue;
            }
            let room = self.room_to_read(link);
            if room == 0 {
                if link.claims.waits_for_step() {
                    self.answer_late(link, now);
                }
                // From here on they wait for their client.
                let index = index.min(self.reads.len());
                let rest = self.reads[index..].iter_mut();
                rest.for_each(|read| read.at_once_since = None);
                return;
            }
            let read = &mut self.reads[index];
            match read.step(&link.waker, now, room, false) {
                Step::Wait => index += 1,
                Step::Reply(reply, body) => {
                    let read = self.reads.swap_remove(index);
                    self.reply_read(link, &read, &reply, body);
                }
                // Looked at again when one of those at the disk is back.
                Step::Blocking if !self.may_read_disk(room) => index += 1,
                Step::Blocking => {
                    let mut read = self.reads.swap_remove(index);
                    let room = room.min(DISK_READ);
                    let (tell, waker) = (self.disk.0.clone(), link.waker.clone());
                    self.disk_reads += 1;
                    tokio::task::spawn_blocking(move || {
                        let step = read.step(&waker, now, room, true);
                        let _ = tell.blocking_send(Box::new(FromDisk::Read(read, step)));
                    });
                }
            }
        }
    }

    /// Bytes that the next read or push may bring; 0: others come first, or the client has used up its quota.
    fn room_to_read(&mut self, link: &mut ClientLink) -> usize {
        let reads = Metered::Reads;
        let room = link.room_to_send();
        let waits =
            link.meter.is_waiting(reads) || link.meter.waits_for_turn(reads, room, &link.waker);
        let room = match waits {
            true => 0,
            false => link.claim_room(),
        };
        self.quiet &= room > 0;
        link.meter.most(Metered::Reads, room)
    }

    /// Has threads that may wait read copies.
    pub(super) fn serve_copy_reads(&mut self, link: &mut ClientLink) {
        while !self.copy_reads.is_empty() {
            let room = self.room_to_read(link);
            if room == 0 || !self.may_read_disk(room) {
                return;
            }
            let Some((correlation, request)) = self.copy_reads.pop_front() else {
                return;
            };
            let (tell, shared) = (self.disk.0.clone(), link.shared.clone());
            self.disk_reads += 1;
            tokio::task::spawn_blocking(move || {
                let (reply, body) = copy_reads::answer(&shared, &request);
                let _ = tell.blocking_send(Box::new(FromDisk::Copy(correlation, reply, body)));
            });
        }
    }

    fn reply_read(
        &mut self,
        link: &mut ClientLink,
        read: &Read,
        reply: &v1::ReadResponse,
        body: Vec<Bytes>,
    ) {
        let bytes: usize = body.iter().map(Bytes::len).sum();
        let metrics = &link.shared.data.metrics;
        metrics.read_bytes.inc_by(bytes as u64);
        metrics.read_at_once(read.at_once_since, bytes);
        if let Some(since) = read.at_once_since {
            link.meter.answered(since.elapsed());
        }
        link.meter.charge_answered(Metered::Reads, bytes);
        read.target.streamlet.traffic().note_read(bytes);
        let data = &link.shared.data;
        traced::note_read(data, &read.target.streamlet, read.at_once_since, &body);
        link.out
            .push(FrameKind::ReadReply, read.correlation, reply, body);
    }

    /// One push for each subscription in turn, so that no lane's backlog starves another's.
    pub(super) fn serve_subscriptions(&mut self, link: &mut ClientLink) {
        let mut ready: VecDeque<u32> = self
            .subscriptions
            .values()
            .filter(|s| s.is_ready())
            .map(|s| s.id)
            .collect();
        if let Some(at) = ready.iter().position(|id| *id > self.last_pushed) {
            ready.rotate_left(at);
        }
        while let Some(id) = ready.pop_front() {
            let room = self.room_to_read(link);
            if room == 0 {
                return;
            }
            let Some(subscription) = self.subscriptions.get_mut(&id) else {
                continue;
            };
            match subscription.step(&link.waker, room, false) {
                Step::Wait => {}
                Step::Reply(push, body) => {
                    self.last_pushed = id;
                    let of = &subscription.target.streamlet;
                    if push_out(link, of, &push, body) {
                        self.subscriptions.remove(&id);
                    } else if subscription.has_credit() {
                        ready.push_back(id);
                    }
                }
                Step::Blocking if !self.may_read_disk(room) => {}
                Step::Blocking => self.push_from_disk(link, id, room.min(DISK_READ)),
            }
        }
    }

    /// Has a thread that may wait read for a subscription.
    fn push_from_disk(&mut self, link: &mut ClientLink, id: u32, room: usize) {
        let Some(mut subscription) = self.subscriptions.remove(&id) else {
            return;
        };
        self.subscriptions.insert(id, subscription.placeholder());
        let (tell, waker) = (self.disk.0.clone(), link.waker.clone());
        self.disk_reads += 1;
        tokio::task::spawn_blocking(move || {
            let step = subscription.step(&waker, room, true);
            let push = FromDisk::Push(Box::new(subscription), step);
            let _ = tell.blocking_send(Box::new(push));
        });
    }

    pub(super) fn take_from_disk(&mut self, link: &mut ClientLink, read: FromDisk) {
        self.disk_reads -= 1;
        self.quiet = false;
        match read {
            FromDisk::Read(read, Step::Reply(reply, body)) => {
                self.reply_read(link, &read, &reply, body)
            }
            FromDisk::Read(read, _) => {
                let stream = read.target.streamlet.stream();
                let stream = stream.as_bytes();
                // It goes on waiting: the rules may have changed while it was away.
                match self.granted.require(&link.shared, Operation::Read, stream) {
                    Ok(()) => self.reads.push(read),
                    Err(error) => {
                        let refusal = fetch::read_refusal(&error);
                        self.reply_read(link, &read, &refusal, Vec::new());
                    }
                }
            }
            FromDisk::Copy(correlation, reply, body) => {
                let bytes = body.iter().map(Bytes::len).sum();
                link.meter.charge_answered(Metered::Reads, bytes);
                link.out
                    .push(FrameKind::ReadReply, correlation, &reply, body);
            }
            FromDisk::Push(mut subscription, step) => {
                // Unsubscribed meanwhile: nobody wants it.
                let Some(placeholder) = self.subscriptions.remove(&subscription.id) else {
                    return;
                };
                subscription.add_credit(placeholder.credit());
                subscription.blocked = false;
                let of = &subscription.target.streamlet;
                if let Step::Reply(push, body) = step
                    && push_out(link, of, &push, body)
                {
                    return;
                }
                self.subscriptions.insert(subscription.id, *subscription);
            }
        }
    }
}

/// Queues a push; true if it is the subscription's last.
fn push_out(link: &mut ClientLink, of: &Streamlet, push: &v1::PushData, body: Vec<Bytes>) -> bool {
    let bytes: usize = body.iter().map(Bytes::len).sum();
    link.shared.data.metrics.read_bytes.inc_by(bytes as u64);
    link.meter.charge_answered(Metered::Reads, bytes);
    of.traffic().note_read(bytes);
    traced::note_read(&link.shared.data, of, None, &body);
    link.out
        .push(FrameKind::PushData, frame::PUSH_CORRELATION, push, body);
    push.error != 0 || push.finished
}
