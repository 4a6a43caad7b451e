//! What a connection of the native protocol was allowed to do to streams.

use std::collections::HashSet;
use std::net::IpAddr;

use kera_grpc::serve::Caller;
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::WireError;
use kera_protocol::ids::StreamId;
use kera_protocol::v1;

use super::Who;
use super::native::via_of;
use crate::config::{Listener, Via};
use crate::data::catalog::{stream_id, unknown_id};
use crate::principal::Principal;
use crate::shared::Shared;

/// Streams that are remembered; of more, all are asked for again.
const MOST: usize = 1024;

/// What one connection may do, asked once for each stream as long as the rules stay the same.
#[derive(Debug)]
pub(crate) struct Granted {
    principal: Principal,
    host: IpAddr,
    via: Via,
    revision: u64,
    streams: HashSet<(Operation, StreamId)>,
    /// Streams of which something was allowed: their names are no secret here any more, whatever the rules say since.
    known: HashSet<StreamId>,
}

impl Granted {
    pub(crate) fn new(principal: Principal, caller: &Caller) -> Self {
        Self {
            principal,
            host: caller.address,
            via: via_of(Listener::Native, caller),
            revision: 0,
            streams: HashSet::new(),
            known: HashSet::new(),
        }
    }

    /// True if the rules have changed since this was last called: what goes on has to be checked again.
    pub(crate) fn is_outdated(&mut self, shared: &Shared) -> bool {
        let revision = shared.access.revision();
        let before = std::mem::replace(&mut self.revision, revision);
        if before != revision {
            self.streams.clear();
        }
        before != revision
    }

    /// Checks that the client may append so.
    ///
    /// # Errors
    /// As [`Self::require`].
    pub(crate) fn require_append(
        &mut self,
        shared: &Shared,
        request: &v1::AppendRequest,
    ) -> Result<(), WireError> {
        self.require(shared, Operation::Write, &request.stream)?;
        if request.transactional_id.is_empty() || !shared.access.is_enforced() {
            return Ok(());
        }
        let who = Who {
            principal: &self.principal,
            host: self.host,
            via: self.via,
        };
        let thing = (Kind::TransactionalId, request.transactional_id.as_str());
        shared.access.require(who, Operation::Write, thing)
    }

    /// Checks that the client may do this to a stream.
    ///
    /// # Errors
    /// As [`Access::require_of_id`](super::Access::require_of_id), and while rules decide the same answer about an id that no
    /// stream has: what has no name has no rules.
    pub(crate) fn require(
        &mut self,
        shared: &Shared,
        operation: Operation,
        stream: &[u8],
    ) -> Result<(), WireError> {
        if !shared.access.is_enforced() {
            return Ok(());
        }
        let id = stream_id(stream)?;
        // The rules of the moment before the question: should they change meanwhile, it is asked again.
        let revision = shared.access.revision();
        if revision == self.revision && self.streams.contains(&(operation, id)) {
            return Ok(());
        }
        let Some(stream) = shared.data.catalog.get(id) else {
            return Err(unknown_id(id));
        };
        let who = Who {
            principal: &self.principal,
            host: self.host,
            via: self.via,
        };
        let record = stream.record.load();
        let access = &shared.access;
        match self.known.contains(&id) {
            true => access.require(who, operation, (Kind::Stream, &record.name))?,
            false => access.require_of_id(who, operation, id.as_bytes(), &record.name)?,
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(id);
        if revision == self.revision {
            if self.streams.len() >= MOST {
                self.streams.clear();
            }
            self.streams.insert((operation, id));
        }
        Ok(())
    }
}
