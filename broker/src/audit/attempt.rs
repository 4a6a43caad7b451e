//! A change that a client makes: what it is, from before it is tried until its end is known.

use std::sync::Arc;

use kera_protocol::error::WireError;

use super::line::{Event, Line, cut};
use super::{Audit, NAME, Peer, TEXT, principal};
use crate::access::Who;

/// What a client wants changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// What is done: `create_stream`.
    pub action: &'static str,
    /// To what: `stream`.
    pub kind: &'static str,
    /// Which one.
    pub name: String,
    /// With what; no passwords, and nothing made of one.
    pub detail: String,
}

impl Change {
    /// A change of one thing.
    pub fn new(
        action: &'static str,
        kind: &'static str,
        name: impl AsRef<str>,
        detail: impl AsRef<str>,
    ) -> Self {
        Self {
            action,
            kind,
            name: cut(name.as_ref(), longest(kind)),
            detail: cut(detail.as_ref(), TEXT),
        }
    }
}

/// A change under way. One that is dropped without an end may have been made: its client went away first.
pub struct Attempt {
    audit: Arc<Audit>,
    peer: Peer,
    user: String,
    change: Change,
    has_ended: bool,
}

impl Audit {
    /// Somebody who may do so begins to change something.
    pub fn attempt(self: &Arc<Self>, who: Who<'_>, change: Change) -> Attempt {
        Attempt {
            audit: self.clone(),
            peer: who.peer(),
            user: principal(who.user()),
            change,
            has_ended: false,
        }
    }
}

impl Attempt {
    /// It was made, or why not.
    pub fn end<T>(self, outcome: Result<&T, &WireError>) {
        match outcome {
            Ok(_) => self.made(),
            // What may have its place may have been done.
            Err(error) if may_be_made(error) => self.may_be_made(&error.message),
            Err(error) => self.failed(&error.message),
        }
    }

    /// It was made.
    pub fn made(mut self) {
        self.write(Event::Changed, "");
    }

    /// Instead of what was asked for, each of these was done to the thing of the same kind.
    pub fn made_each(mut self, names: impl Iterator<Item = String>) {
        self.has_ended = true;
        for name in names {
            self.change.name = cut(&name, longest(self.change.kind));
            self.write(Event::Changed, "");
        }
    }

    /// It was not made.
    pub fn failed(mut self, why: &str) {
        self.write(Event::ChangeFailed, why);
    }

    /// Nobody knows whether it was made.
    pub fn may_be_made(mut self, why: &str) {
        self.write(Event::ChangeUncertain, why);
    }

    fn write(&mut self, event: Event, why: &str) {
        self.has_ended = true;
        let Change {
            action,
            kind,
            name,
            detail,
        } = &self.change;
        let Peer { via, host } = self.peer;
        let may_be_made = matches!(event, Event::Changed | Event::ChangeUncertain);
        if may_be_made {
            let (_, result) = event.names();
            tracing::info!(user = self.user, %host, listener = %via.listener, listener_name = via.name, kind, name, detail, result, "{action}");
        }
        let audit = &self.audit;
        // A change that was made, or may have been, is never left out.
        let may = match may_be_made {
            true => audit.is_on,
            false => audit.may_write(event, host),
        };
        if !may {
            return;
        }
        audit.write(Line {
            user: Some(self.user.clone()),
            action,
            kind: (*kind).to_owned(),
            name: name.clone(),
            detail: detail.clone(),
            reason: cut(why, TEXT),
            ..Line::new(event, self.peer)
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.has_ended {
            let why = "the client went away, or the broker stopped, before the end was known";
            self.write(Event::ChangeUncertain, why);
        }
    }
}

/// Longest name of a thing of this kind, in characters. Of a rule the name is all that there is: for whom, on what.
fn longest(kind: &str) -> usize {
    match kind {
        "rule" => TEXT,
        _ => NAME,
    }
}

/// Whether what ended so may have been done all the same.
pub(crate) fn may_be_made(error: &WireError) -> bool {
    use kera_protocol::error::ErrorCode as E;
    matches!(
        error.code,
        E::Timeout
            | E::StorageError
            | E::Internal
            | E::NotEnoughCopies
            | E::ShuttingDown
            | E::NotOwner
            // Of a coordinator that lost its place, or its state, after it had written the change down.
            | E::NotCoordinator
            | E::CoordinatorLoading
    )
}
