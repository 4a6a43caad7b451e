//! Commits transactions on etcd.
//!
//! A transaction is evaluated here, by the same rules as in every store, against records that are
//! remembered or read; what the evaluation rests on becomes comparisons of etcd's transaction. If one
//! of them fails, etcd's answer brings the records as they are, and all is evaluated again: so nobody
//! is refused for what was remembered wrongly, and nothing is written on the strength of it.
//!
//! A transaction whose answer was lost is sent again, as it was. Each compares every record it
//! writes, so that it takes effect once at most; and its number in what it wrote tells it was here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use super::client::{CallError, Client, PAGE, Pauses, pages};
use super::messages::*;
use super::space::{self, CONTROLLER, Space, range_of};
use super::view::{Footprint, Known, Range, View};
use crate::encode::{decode_revision, restamp};
use crate::error::MetadataError;
use crate::evaluate::{Changes, LimitsCache, evaluate};
use crate::queue::Outcome;
use kera_records::key;
use kera_records::{Committed, Transaction};

/// Records that are remembered; all are forgotten when there are more.
const REMEMBERED: usize = 1 << 15;
/// Times that a transaction is evaluated anew because records changed meanwhile.
const ATTEMPTS: u32 = 64;

/// What a transaction of etcd's does, in records' keys.
pub(super) struct Plan {
    /// The number in what it writes.
    pub(super) number: u64,
    pub(super) compared: Vec<(Vec<u8>, u64)>,
    /// Ranges none of whose records may be newer than a revision.
    pub(super) older: Vec<(Vec<u8>, u64)>,
    pub(super) written: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    pub(super) deleted: Vec<Vec<u8>>,
    /// It is refused while any broker lives.
    pub(super) nobody_lives: bool,
}

/// What came of a plan.
pub(super) enum Sent {
    Committed(u64),
    /// A comparison failed; this is how the compared keys are.
    Refused {
        found: Vec<(Vec<u8>, Known)>,
        revision: u64,
    },
}

pub(super) struct Writer {
    pub(super) client: Arc<Client>,
    pub(super) space: Space,
    pub(super) server_operations: usize,
    remembered: Mutex<HashMap<Vec<u8>, Known>>,
    /// Set while etcd does not answer.
    away: AtomicBool,
}

impl Writer {
    pub(super) fn new(client: Arc<Client>, space: Space, server_operations: usize) -> Self {
        Self {
            client,
            space,
            server_operations,
            remembered: Mutex::default(),
            away: AtomicBool::new(false),
        }
    }

    /// Commits a transaction that was submitted at `submitted`.
    pub(super) async fn commit(
        &self,
        transaction: &Transaction,
        submitted: Instant,
        timeout: Duration,
    ) -> Outcome {
        // While etcd answers, waiting for others costs a transaction nothing; once it does not, all
        // that wait are answered soon.
        let begin = if self.away.load(Ordering::Relaxed) {
            submitted
        } else {
            Instant::now()
        };
        let deadline = begin + timeout;
        if deadline <= Instant::now() {
            return Err(self
                .client
                .unavailable("it did not answer those before this one".into()));
        }
        let operations = transaction.operations();
        let outcome = if operations <= self.server_operations {
            self.commit_at_once(transaction, deadline).await
        } else if super::creation::is_creation(transaction) {
            self.create_in_parts(transaction).await
        } else {
            Err(MetadataError::invalid(format!(
                "a transaction has {operations} operations; the legal range is 1 to {}, split it",
                self.server_operations
            )))
        };
        let away = matches!(
            outcome,
            Err(MetadataError::Unavailable { .. } | MetadataError::UnknownOutcome { .. })
        );
        self.away.store(away, Ordering::Relaxed);
        outcome
    }

    async fn commit_at_once(&self, transaction: &Transaction, deadline: Instant) -> Outcome {
        let mut view = self.view(transaction);
        for _ in 0..ATTEMPTS {
            let (number, changes) = self.evaluate(transaction, &mut view, deadline).await?;
            if changes.is_empty() {
                let revision = view.revision;
                return Ok(Committed { revision });
            }
            let plan = self.plan(transaction, &view, changes, number)?;
            match self.send(&plan, deadline).await {
                Ok(Sent::Committed(revision)) => {
                    self.remember(&view, plan, revision);
                    return Ok(Committed { revision });
                }
                Ok(Sent::Refused { found, revision }) => {
                    view.known.extend(found);
                    view.ranges.clear();
                    view.revision = revision;
                }
                Err(error) => {
                    self.forget(&plan);
                    return Err(error);
                }
            }
        }
        Err(MetadataError::Overloaded { waiting: 0 })
    }

    /// What is remembered of what the transaction needs.
    pub(super) fn view(&self, transaction: &Transaction) -> View {
        let mut view = View::default();
        let footprint = Footprint::of(transaction);
        let all = footprint.keys.iter().chain(&footprint.absent);
        let remembered = self.remembered.lock();
        for key in all {
            if let Some(known) = remembered.get(key) {
                view.known.insert(key.clone(), known.clone());
            }
        }
        drop(remembered);
        for key in footprint.absent {
            let guess = || Known::guessed_absent();
            view.known.entry(key).or_insert_with(guess);
        }
        view
    }

    /// Evaluates until nothing is missing and no refusal rests on what is only remembered. Also the
    /// number that what it writes carries.
    pub(super) async fn evaluate(
        &self,
        transaction: &Transaction,
        view: &mut View,
        deadline: Instant,
    ) -> Result<(u64, Changes), MetadataError> {
        let footprint = Footprint::of(transaction);
        let number = Uuid::new_v4().as_u64_pair().0;
        let path = self.client.location().path();
        loop {
            let unknown = |key: &&Vec<u8>| !view.known.contains_key(*key);
            let needed: Vec<_> = footprint.keys.iter().filter(unknown).cloned().collect();
            if !needed.is_empty() {
                self.read_keys(needed, view, deadline).await?;
            }
            for prefix in &footprint.prefixes {
                if view.range_of(prefix).is_none() {
                    self.read_range(prefix, view).await?;
                }
            }
            view.begin();
            let evaluated = evaluate(
                &*view,
                &mut LimitsCache::default(),
                &path,
                transaction,
                number,
                usize::MAX,
            );
            let missing = view.missing();
            if !missing.is_empty() {
                self.read_keys(missing, view, deadline).await?;
                continue;
            }
            let stale = view.stale();
            match evaluated {
                Ok(changes) if !changes.is_empty() => return Ok((number, changes)),
                // A refusal, or the answer to a mere question: it must be true now.
                _ if !stale.is_empty() => self.read_keys(stale, view, deadline).await?,
                // A question about nothing: what is the last revision?
                Ok(_) if view.revision == 0 => {
                    self.read_keys(vec![CONTROLLER.to_vec()], view, deadline)
                        .await?;
                }
                decided => return decided.map(|changes| (number, changes)),
            }
        }
    }

    /// Reads keys as they are now, as many as possible at one revision.
    async fn read_keys(
        &self,
        keys: Vec<Vec<u8>>,
        view: &mut View,
        deadline: Instant,
    ) -> Result<(), MetadataError> {
        for chunk in keys.chunks(self.server_operations) {
            let ranges = chunk.iter().map(|key| self.range(key)).collect();
            let (revision, found) = self.client.look(ranges, deadline).await?;
            view.revision = revision;
            let found = found.iter().map(|range| range.kvs.first());
            view.known.extend(self.found(chunk, found)?);
        }
        Ok(())
    }

    async fn read_range(&self, prefix: &[u8], view: &mut View) -> Result<(), MetadataError> {
        let range = range_of(self.space.key(prefix));
        let (revision, found) = pages(&self.client, range, 0, false, PAGE).await?;
        for kv in found {
            let Some(key) = self.space.record_key(&kv.key) else {
                continue;
            };
            view.known.insert(key.to_vec(), self.known(key, &kv)?);
        }
        view.ranges.push(Range {
            prefix: prefix.to_vec(),
            revision,
        });
        view.revision = revision;
        Ok(())
    }

    fn range(&self, key: &[u8]) -> RangeRequest {
        RangeRequest::of(self.space.key(key))
    }

    fn known(&self, key: &[u8], kv: &KeyValue) -> Result<Known, MetadataError> {
        // The controller's value is no record, and only its revision matters here.
        let value = match key {
            CONTROLLER => Ok(Vec::new()),
            key => space::value(key, kv),
        };
        Ok(Known {
            value: Some(value.map_err(|detail| self.client.corrupt(format!("{key:?}: {detail}")))?),
            revision: kv.revision(),
            fresh: true,
        })
    }

    /// What `keys` are known to be, each of which was `found` so.
    fn found<'a>(
        &self,
        keys: &[Vec<u8>],
        found: impl Iterator<Item = Option<&'a KeyValue>>,
    ) -> Result<Vec<(Vec<u8>, Known)>, MetadataError> {
        let found = keys.iter().zip(found).map(|(key, kv)| {
            let known = match kv {
                Some(kv) => self.known(key, kv)?,
                None => Known {
                    fresh: true,
                    ..Known::guessed_absent()
                },
            };
            Ok((key.clone(), known))
        });
        found.collect()
    }

    fn plan(
        &self,
        transaction: &Transaction,
        view: &View,
        changes: Changes,
        number: u64,
    ) -> Result<Plan, MetadataError> {
        let deleted = changes.deleted().iter().flat_map(|id| {
            let kinds = key::OF_STREAMS.map(|kind| key::stream_prefix(kind, *id));
            kinds.into_iter()
        });
        let plan = Plan {
            number,
            compared: view.compared(transaction),
            older: view
                .ranges
                .iter()
                .map(|range| (range.prefix.clone(), range.revision))
                .collect(),
            deleted: deleted.collect(),
            written: changes.into_values(),
            nobody_lives: false,
        };
        let comparisons = plan.compared.len() + plan.older.len();
        let operations = comparisons.max(plan.written.len() + plan.deleted.len());
        if operations > self.server_operations {
            return Err(MetadataError::invalid(format!(
                "a transaction comes to {operations} operations of etcd's, which takes {}; split it",
                self.server_operations
            )));
        }
        Ok(plan)
    }

    fn request(&self, plan: &Plan) -> TxnRequest {
        let compare = |key: Vec<u8>, result, revision: u64, range_end| Compare {
            result,
            target: MOD,
            key,
            operand: Some(Target::ModRevision(revision as i64)),
            range_end,
        };
        let single = plan
            .compared
            .iter()
            .map(|(key, revision)| compare(self.space.key(key), EQUAL, *revision, Vec::new()));
        let older = plan.older.iter().map(|(prefix, revision)| {
            let (key, end) = range_of(self.space.key(prefix));
            compare(key, LESS, *revision + 1, end)
        });
        let nobody = plan.nobody_lives.then(|| {
            let (key, end) = range_of(self.space.members());
            // No key has such a revision, so that there can be none.
            compare(key, LESS, 1, end)
        });
        let delete = |key, range_end| Request::DeleteRange(DeleteRangeRequest { key, range_end });
        let ranges = plan.deleted.iter().map(|prefix| {
            let (key, end) = range_of(self.space.key(prefix));
            delete(key, end)
        });
        let singles = plan.written.iter().map(|(key, value)| match value {
            Some(value) => Request::Put(PutRequest {
                key: self.space.key(key),
                value: value.clone(),
                lease: 0,
            }),
            None => delete(self.space.key(key), Vec::new()),
        });
        TxnRequest {
            compare: single.chain(older).chain(nobody).collect(),
            success: ranges.chain(singles).map(operation).collect(),
            failure: plan
                .compared
                .iter()
                .map(|(key, _)| operation(Request::Range(self.range(key))))
                .collect(),
        }
    }

    /// Sends a plan until it is known what came of it, or the time is up.
    pub(super) async fn send(&self, plan: &Plan, deadline: Instant) -> Result<Sent, MetadataError> {
        let request = self.request(plan);
        let mut pauses = Pauses::until(deadline);
        // What the first attempt of unknown outcome failed with.
        let mut lost: Option<String> = None;
        loop {
            let detail = match self.client.transact(request.clone(), deadline).await {
                Ok(answer) => return self.decided(plan, answer, lost),
                Err(CallError::Refused(code, detail)) => {
                    return Err(match lost {
                        None => self.client.refused(code, detail),
                        Some(lost) => self.client.unknown(lost),
                    });
                }
                Err(CallError::NotSent(detail)) => detail,
                Err(CallError::Lost(detail)) => {
                    lost.get_or_insert_with(|| detail.clone());
                    detail
                }
            };
            if !pauses.pause().await {
                return Err(match lost {
                    None => self.client.unavailable(detail),
                    Some(lost) => self.client.unknown(lost),
                });
            }
        }
    }

    fn decided(
        &self,
        plan: &Plan,
        answer: TxnResponse,
        lost: Option<String>,
    ) -> Result<Sent, MetadataError> {
        let revision = revision(&answer.header);
        if answer.succeeded {
            return Ok(Sent::Committed(revision));
        }
        if let Some(lost) = lost {
            // An attempt before this one may have been what made this one fail.
            let mut untouched = false;
            for ((key, compared), op) in plan.compared.iter().zip(&answer.responses) {
                let Some(written) = plan.written.get(key) else {
                    continue;
                };
                let kv = in_range(op);
                if let (Some(_), Some(kv)) = (written, kv)
                    && decode_revision(key, &kv.value) == Ok(plan.number)
                {
                    return Ok(Sent::Committed(kv.revision()));
                }
                untouched |= kv.map_or(0, KeyValue::revision) == *compared;
            }
            // A record it would have written is as it was, and another that it compares with is not:
            // it did not happen, and no attempt that comes late can.
            if !untouched {
                return Err(self.client.unknown(lost));
            }
        }
        let keys: Vec<_> = plan.compared.iter().map(|(key, _)| key.clone()).collect();
        let found = self.found(&keys, answer.responses.iter().map(in_range))?;
        Ok(Sent::Refused { found, revision })
    }

    /// Keeps what was read and written, for transactions to come.
    fn remember(&self, view: &View, plan: Plan, revision: u64) {
        let count = view.known.len() + plan.written.len();
        let mut remembered = self.remembered.lock();
        if remembered.len() + count > REMEMBERED || !plan.deleted.is_empty() {
            remembered.clear();
        }
        for (key, known) in &view.known {
            if known.value.is_some() && is_remembered(key) && view.range_of(key).is_none() {
                let known = Known {
                    fresh: false,
                    ..known.clone()
                };
                remembered.insert(key.clone(), known);
            }
        }
        for (key, value) in plan.written {
            match value.map(|value| restamp(&key, &value, revision)) {
                Some(Ok(value)) if is_remembered(&key) => {
                    let known = Known {
                        value: Some(value),
                        revision,
                        fresh: false,
                    };
                    remembered.insert(key, known);
                }
                _ => {
                    remembered.remove(&key);
                }
            }
        }
    }

    fn forget(&self, plan: &Plan) {
        let mut remembered = self.remembered.lock();
        for key in plan.written.keys() {
            remembered.remove(key);
        }
        if !plan.deleted.is_empty() {
            remembered.clear();
        }
    }
}

/// Pins are large, and seldom written twice by the same broker.
fn is_remembered(record: &[u8]) -> bool {
    record != CONTROLLER && record.first() != Some(&key::PIN)
}
