//! How the client of a connection proves who it is, and proves it anew; and what it may still read.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_broker::client_link::ClientLink;

use super::{Connection, Current, Ended, FETCH, Gate};
use crate::topic::TopicRef;
use crate::{apis, sasl, versions};

/// As with Kafka, a client does not begin more often to prove anew who it is.
const RENEWED_ONCE_IN: Duration = Duration::from_secs(1);

impl Connection {
    /// A client whose proof counts for a time proves anew who it is. Until it has, it gets nothing else.
    pub(super) fn begin_anew(&mut self) {
        let session = self.session.as_ref();
        let ends = session.is_some_and(|session| session.until.is_some());
        let is_too_soon = |begun: Instant| begun.elapsed() < RENEWED_ONCE_IN;
        if self.gate.is_none() && ends && !self.renewed.is_some_and(is_too_soon) {
            let now = Instant::now();
            self.renewed = Some(now);
            self.gate = Some(Gate {
                step: sasl::Step::Mechanism,
                requests: 0,
                until: now + self.ctx.shared.config.server.receive_timeout,
            });
        }
    }

    pub(super) fn authenticate(&mut self, request: (i16, i16, i32), body: Bytes) {
        // Once it has proved who it is, or where nobody asks, there is nothing to prove: it is told so, and goes.
        let step = self.gate.as_mut().map_or(sasl::Step::Failed, |gate| {
            std::mem::replace(&mut gate.step, sasl::Step::Failed)
        });
        let before = self.session.clone();
        let answer = sasl::answer(self.ctx.clone(), step, before, request, body);
        self.current = Current::Authenticating(Box::pin(answer));
    }

    /// The client has come a step further, or has failed.
    pub(super) fn stepped(&mut self, link: &mut ClientLink, step: sasl::Step) {
        match step {
            sasl::Step::Proved(session) => {
                self.gate = None;
                self.ctx.principal = session.principal.clone();
                link.set_principal(session.principal.clone());
                link.heard();
                self.session = Some(session);
            }
            // It is told, and the connection ends.
            sasl::Step::Failed => self.stopping = true,
            step => {
                if let Some(gate) = &mut self.gate {
                    gate.step = step;
                }
            }
        }
    }

    /// Whether a request is about things that rules decide about, and the rules are too old for that.
    pub(super) fn is_refused_for_age(&self, key: i16) -> bool {
        let is_open = [versions::KEY, sasl::HANDSHAKE, sasl::AUTHENTICATE].contains(&key);
        !is_open && self.ctx.check_age().is_err()
    }

    /// If the rules have changed, a fetch that waits gives nothing of what its client may not read any more.
    pub(super) fn check_fetch_again(&mut self) -> Result<(), Ended> {
        let Current::Fetching(fetch) = &mut self.current else {
            return Ok(());
        };
        if !fetch.is_outdated(&self.ctx.shared) {
            return Ok(());
        }
        let is_denied = |topic: &TopicRef| self.ctx.is_denied(apis::FETCH, topic);
        fetch.session.note_denied(is_denied);
        match self.is_refused_for_age(FETCH) {
            true => Err(Ended::OldRules),
            false => Ok(()),
        }
    }

    /// A client that proves anew who it is has time for its next message from the broker's answer on: that left behind all
    /// that was produced before.
    pub(super) fn renew_gate(&mut self, key: i16) {
        let is_login = matches!(key, sasl::HANDSHAKE | sasl::AUTHENTICATE);
        if let Some(gate) = &mut self.gate
            && is_login
            && self.session.is_some()
        {
            gate.until = Instant::now() + self.ctx.shared.config.server.receive_timeout;
        }
    }
}
