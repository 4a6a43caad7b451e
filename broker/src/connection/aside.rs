//! Appends of a client that owes time, put aside until it does not, and of one that waits for its turn beside users with a
//! latency objective.
//!
//! A client that does not wait for answers would not notice that these are held back. So its appends are not placed either. What
//! comes behind them is taken all the same: a member of a group goes on sending its heartbeats. They count as bytes in flight, and
//! at `server.connection_in_flight_bytes` the socket is not read any more. None waits longer than an answer is held back: then it
//! is refused, and not stored long after its client has given it up.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use kera_protocol::error::WireError;
use kera_protocol::v1;

use super::Connection;
use super::appends::{MOST_HELD, over_quota, refuse};
use crate::client_link::ClientLink;
use crate::data::append::Partial;
use crate::data::catalog::stream_id;
use crate::quotas::Metered;

/// About what one takes beside its batches.
const OF_APPEND: usize = 512;

/// An append that was put aside.
struct Aside {
    correlation: u32,
    request: v1::AppendRequest,
    body: Vec<u8>,
    since: Instant,
}

impl Aside {
    fn bytes(&self) -> usize {
        OF_APPEND + self.body.len() + self.request.transactional_id.len()
    }

    fn gives_up(&self) -> Instant {
        self.since + MOST_HELD
    }
}

/// Those of a connection, oldest first.
#[derive(Default)]
pub(super) struct AsideAppends(VecDeque<Aside>);

impl AsideAppends {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the oldest has waited long enough.
    pub(super) fn gives_up(&self) -> Option<Instant> {
        self.0.front().map(Aside::gives_up)
    }
}

impl Connection {
    /// True if an append of `bytes` that has just come is to wait for those before it, for the time that its client owes, or for
    /// its turn.
    pub(super) fn append_waits(&self, link: &mut ClientLink, bytes: usize) -> bool {
        // The one at the front may have been begun.
        let is_begun = self.charged.is_some();
        !self.aside.is_empty() || (!is_begun && may_not_append(link, bytes))
    }

    pub(super) fn put_aside(
        &mut self,
        link: &mut ClientLink,
        correlation: u32,
        request: v1::AppendRequest,
        body: &[u8],
    ) {
        // What waits is no longer than what can be stored.
        if let Err(error) = stream_id(&request.stream) {
            return refuse(link, correlation, &error, v1::Placement::NotPlaced);
        }
        // Not the whole buffer that the request came in.
        let aside = Aside {
            correlation,
            request: v1::AppendRequest {
                stream: Bytes::copy_from_slice(&request.stream),
                ..request
            },
            body: body.to_vec(),
            since: Instant::now(),
        };
        link.claims.wait_for(aside.bytes());
        self.aside.0.push_back(aside);
    }

    /// Places those that were put aside, as far as the client owes no time and has turns, and refuses what has waited long enough.
    pub(super) fn take_aside(&mut self, link: &mut ClientLink) {
        if self.aside.is_empty() {
            return;
        }
        while !link.starved && !self.aside.is_empty() && !self.front_waits(link) {
            let Some(mut aside) = self.aside.0.pop_front() else {
                break;
            };
            link.claims.release(aside.bytes());
            let (correlation, request) = (aside.correlation, &aside.request);
            if !self.take_append(link, correlation, request, &mut aside.body) {
                link.claims.wait_for(aside.bytes());
                self.aside.0.push_front(aside);
            }
        }
        let now = Instant::now();
        // One that was begun has batches placed, and waits for memory.
        while self.charged.is_none() && self.aside.gives_up().is_some_and(|at| at <= now) {
            let Some(aside) = self.aside.0.pop_front() else {
                break;
            };
            link.claims.release(aside.bytes());
            let waited = MOST_HELD.as_secs();
            let why = match link.meter.waits(Metered::Time) {
                true => format!(
                    "has used up its quota of time (request_percentage), and an append has waited {waited} seconds for it"
                ),
                false => format!(
                    "has no latency objective or has used up what its objective guarantees, and an append has waited {waited} seconds for what others leave of the broker"
                ),
            };
            let error = over_quota(link, &why);
            refuse(link, aside.correlation, &error, v1::Placement::NotPlaced);
        }
    }

    fn front_waits(&self, link: &mut ClientLink) -> bool {
        let bytes = self.aside.0.front().map_or(0, |front| front.body.len());
        self.charged.is_none() && may_not_append(link, bytes)
    }

    /// The connection ends before the client owes nothing.
    pub(super) fn refuse_aside(&mut self, link: &mut ClientLink, why: &WireError) {
        for aside in std::mem::take(&mut self.aside.0) {
            // The first one may have been begun.
            let begun: Partial = std::mem::take(&mut self.partial);
            self.charged = None;
            link.claims.release(aside.bytes());
            refuse(link, aside.correlation, why, begun.placement());
        }
    }
}

fn may_not_append(link: &mut ClientLink, bytes: usize) -> bool {
    let appends = Metered::Appends;
    link.meter.waits(Metered::Time) || link.meter.waits_for_turn(appends, bytes, &link.waker)
}
