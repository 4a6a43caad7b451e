//! Creates streams of more streamlets than one of etcd's transactions holds: the streamlets first, in
//! parts, and the stream last. Until then nobody takes notice of them.

use std::collections::BTreeMap;

use super::client::{PAGE, pages};
use super::messages::{DeleteRangeRequest, Request, TxnRequest, operation};
use super::space::range_of;
use super::writer::{Plan, Sent, Writer};
use crate::error::MetadataError;
use crate::queue::Outcome;
use kera_records::key::{self, Key};
use kera_records::{Committed, Compare, Transaction, Write};
use kera_records::{Counter, StreamRecord};

/// Times that a creation is begun anew after a conflict that is not one of its own.
const ATTEMPTS: u32 = 8;

/// The stream that a transaction creates with all its streamlets, if it does nothing else.
fn created(transaction: &Transaction) -> Option<&StreamRecord> {
    let (first, rest) = transaction.write.split_first()?;
    let Write::PutStream(stream) = first else {
        return None;
    };
    let is_new = Compare::revision(Key::Stream(stream.id), 0);
    let known = |c: &Compare| match c {
        Compare::StreamAbsent { .. } | Compare::CounterValue { .. } => true,
        other => *other == is_new,
    };
    let part = |w: &Write| matches!(w, Write::PutStreamlet(s) if s.stream == stream.id);
    let creates = transaction.compare.contains(&is_new)
        && transaction.compare.iter().all(known)
        && rest.iter().all(part);
    creates.then_some(stream)
}

/// Whether a transaction is what [`creation`](crate::creation) makes.
pub(super) fn is_creation(transaction: &Transaction) -> bool {
    created(transaction).is_some()
}

impl Writer {
    /// Commits a creation in parts.
    pub(super) async fn create_in_parts(&self, transaction: &Transaction) -> Outcome {
        let Some(stream) = created(transaction) else {
            return Err(MetadataError::invalid("this creates no stream"));
        };
        let mut view = self.view(transaction);
        for _ in 0..ATTEMPTS {
            // Each part has its own time: the whole may take seconds.
            let deadline = self.client.deadline();
            let (number, changes) = self.evaluate(transaction, &mut view, deadline).await?;
            let mut written = changes.into_values();
            let of_stream = [
                Key::Stream(stream.id).encode(),
                Key::StreamName(stream.name.clone()).encode(),
            ];
            let floor = Key::Counter(Counter::EpochFloor).encode();
            let fixed: Vec<_> = view
                .compared(transaction)
                .into_iter()
                .filter(|(key, _)| of_stream.contains(key) || *key == floor)
                .collect();
            let last: BTreeMap<_, _> = of_stream
                .iter()
                .filter_map(|key| written.remove_entry(key))
                .collect();
            match self.send_parts(number, fixed, written, last).await {
                Ok(Sent::Committed(revision)) => return Ok(Committed { revision }),
                // The floor rose, or the name was taken: the next evaluation says which.
                Ok(Sent::Refused { found, .. }) => {
                    self.clear(stream).await?;
                    let of_streamlet = |key: &[u8]| key.first() == Some(&key::STREAMLET);
                    let found = found.into_iter().filter(|(key, _)| !of_streamlet(key));
                    view.known.extend(found);
                }
                Err(error @ MetadataError::UnknownOutcome { .. }) => return Err(error),
                Err(error) => {
                    // Nobody sees what is left, so that failing to clear it does no harm.
                    let _ = self.clear(stream).await;
                    return Err(error);
                }
            }
        }
        Err(MetadataError::Overloaded { waiting: 0 })
    }

    async fn send_parts(
        &self,
        number: u64,
        fixed: Vec<(Vec<u8>, u64)>,
        mut streamlets: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
        last: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ) -> Result<Sent, MetadataError> {
        let size = self.server_operations.saturating_sub(fixed.len()).max(1);
        while !streamlets.is_empty() {
            let rest = match streamlets.keys().nth(size).cloned() {
                Some(next) => streamlets.split_off(&next),
                None => BTreeMap::new(),
            };
            let absent = streamlets.keys().map(|key| (key.clone(), 0));
            let plan = Plan {
                number,
                compared: fixed.iter().cloned().chain(absent).collect(),
                older: Vec::new(),
                written: streamlets,
                deleted: Vec::new(),
                nobody_lives: false,
            };
            match self.send(&plan, self.client.deadline()).await {
                Ok(Sent::Committed(_)) => {}
                // A part of unknown outcome is no stream: as good as not written.
                Err(MetadataError::UnknownOutcome { detail, .. }) => {
                    return Err(self.client.unavailable(detail));
                }
                other => return other,
            }
            streamlets = rest;
        }
        let plan = Plan {
            number,
            compared: fixed,
            older: Vec::new(),
            written: last,
            deleted: Vec::new(),
            nobody_lives: false,
        };
        self.send(&plan, self.client.deadline()).await
    }

    /// Removes streamlets whose stream was not created after all.
    async fn clear(&self, stream: &StreamRecord) -> Result<(), MetadataError> {
        let streamlets = range_of(
            self.space
                .key(&key::stream_prefix(key::STREAMLET, stream.id)),
        );
        // Not where the stream exists: another caller's, by the same id.
        let stream = range_of(self.space.key(&Key::Stream(stream.id).encode()));
        let (_, exists) = pages(&self.client, stream, 0, true, PAGE).await?;
        if exists.is_empty() {
            let (key, range_end) = streamlets;
            let delete = Request::DeleteRange(DeleteRangeRequest { key, range_end });
            let request = TxnRequest {
                success: vec![operation(delete)],
                ..TxnRequest::default()
            };
            self.client.change(request, self.client.deadline()).await?;
        }
        Ok(())
    }
}
