//! Copies everything that the store of a broker that worked alone holds into etcd.
//!
//! A stream comes whole or not at all: its streamlets, groups and log starts are written first, in parts, and the
//! stream and its name last. Until then nobody takes notice of them, and another attempt begins by removing them.
//! Every transaction compares that no broker lives: so nobody watches, recovers or takes over what is half there.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_protocol::ids::{Epoch, StreamId};

use super::EtcdStore;
use super::client::{PAGE, pages};
use super::space::range_of;
use super::writer::{Plan, Sent, Writer};
use crate::encode::{Record, encode_value};
use crate::error::MetadataError;
use crate::store::MetadataStore;
use kera_records::key::{self, Key};
use kera_records::{
    BrokerRecord, Counter, GroupRecord, GroupState, Image, LaneStart, PinRecord, SettingsRecord,
    StreamRecord, StreamletRecord,
};
use uuid::Uuid;

/// Most bytes of the values of one transaction: etcd takes 1.5 MiB unless told otherwise.
const PART_BYTES: usize = 512 << 10;

/// How an import goes about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// One was begun from there before: what etcd has of it is taken for what that one brought.
    pub resumed: bool,
    /// Where the cluster has consumer groups of its own, those that are imported are left behind.
    pub without_groups: bool,
}

/// What an import does about one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamImport {
    /// The stream.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// Replicas of each of its groups.
    pub replicas: u32,
    /// Its streamlets.
    pub streamlets: usize,
    /// Its groups.
    pub groups: usize,
    /// etcd has it already.
    pub is_there: bool,
    /// It stays behind: the brokers' own stream where the cluster has another one.
    pub is_left: bool,
}

/// What an import does, or why it does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportPlan {
    /// The broker whose store is imported.
    pub broker: BrokerRecord,
    /// Its streams, by id.
    pub streams: Vec<StreamImport>,
    /// How many settings were changed at run time, of this broker and of all.
    pub settings: usize,
    /// What stands in the way, and what to do about each.
    pub problems: Vec<String>,
    /// Producer ids below this are taken.
    pub producer_ids: u64,
    /// The least epoch that etcd gives a new streamlet.
    least_epoch: u64,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportProgress {
    /// Records that are written.
    pub written: usize,
    /// Records that are to be written in all.
    pub of: usize,
}

/// What is told of every transaction of an import; an error ends it there.
pub(super) type OnProgress<'a> = &'a mut dyn FnMut(ImportProgress) -> Result<(), MetadataError>;

impl EtcdStore {
    /// What an import of `own`, the image of a broker that worked alone, has to do. Nothing is changed. Blocks.
    ///
    /// # Errors
    /// As of [`MetadataStore::load`]; as invalid, an image that is not of one broker.
    pub fn plan_import(
        &self,
        own: &Image,
        options: ImportOptions,
    ) -> Result<ImportPlan, MetadataError> {
        let resumed = options.resumed;
        let [broker] = own.brokers.as_slice() else {
            return Err(MetadataError::invalid(format!(
                "{} brokers are recorded in the store that is to be imported, and one that works alone has one; a broker that never started has nothing to import",
                own.brokers.len()
            )));
        };
        let there = self.load()?;
        let mut problems = self.living_now()?;
        problems.extend(number_taken(broker, &there));
        let mut streams = Vec::with_capacity(own.streams.len());
        for stream in &own.streams {
            let found = there.streams.iter().find(|s| s.id == stream.id);
            let is_left = found.is_none()
                && name_taken(stream, &there).is_some()
                && may_stay_behind(stream, own, options);
            problems.extend(match found {
                _ if is_left => None,
                Some(found) => (!resumed && !is_same(stream, own, found, &there)).then(|| {
                    format!(
                        "stream `{}` ({}) is in the cluster with other content, so it was imported before, from this directory or a copy of it; the cluster's is the one that goes on: remove this directory, or import it into another cluster",
                        stream.name, stream.id
                    )
                }),
                None => name_taken(stream, &there),
            });
            streams.push(StreamImport {
                id: stream.id,
                name: stream.name.clone(),
                replicas: stream.config.replicas,
                streamlets: own.streamlets_of(stream.id).len(),
                groups: own.groups.iter().filter(|g| g.stream == stream.id).count(),
                is_there: found.is_some(),
                is_left,
            });
        }
        for settings in &own.settings {
            problems.extend(other_settings(settings, &there).filter(|_| !resumed));
        }
        problems.extend(other_rules(own, &there).filter(|_| !resumed));
        problems.extend(other_users(own, &there).filter(|_| !resumed));
        problems.extend(other_quotas(own, &there).filter(|_| !resumed));
        let floor = counter(&there, Counter::EpochFloor);
        Ok(ImportPlan {
            broker: broker.clone(),
            streams,
            settings: own.settings.iter().map(|s| s.values.len()).sum(),
            problems,
            producer_ids: counter(own, Counter::ProducerIds),
            least_epoch: floor + 1,
        })
    }

    /// Copies `own`, the image of a broker that worked alone, and answers what it did. An attempt that did not come to
    /// its end is resumed by another, which leaves what is there. Blocks.
    ///
    /// # Errors
    /// As invalid, the problems that [`plan_import`](Self::plan_import) finds, and a broker that starts meanwhile.
    /// After an error some streams may be there, each of them whole.
    pub fn import(
        &self,
        own: &Image,
        options: ImportOptions,
        on_progress: OnProgress<'_>,
    ) -> Result<ImportPlan, MetadataError> {
        let plan = self.plan_import(own, options)?;
        if !plan.problems.is_empty() {
            return Err(MetadataError::invalid(plan.problems.join("; ")));
        }
        let absent = plan.streams.iter().filter(|s| !s.is_there && !s.is_left);
        let absent: Vec<_> = absent.map(|stream| stream.id).collect();
        let of = absent.iter().map(|id| Parts::of(own, *id).len()).sum();
        let mut import = Import {
            store: self,
            writer: Arc::new(Writer::new(
                self.reach.client.clone(),
                self.space.clone(),
                self.server_operations,
            )),
            progress: ImportProgress { written: 0, of },
            on_progress,
        };
        // First, so that nobody else takes the number, nor producer ids that are in use.
        let id = plan.broker.id;
        import.put_absent(Key::Broker(id), Record::Broker(plan.broker.clone()))?;
        for settings in &own.settings {
            let key = Key::Settings(settings.broker);
            import.put_absent(key, Record::Settings(settings.clone()))?;
        }
        if let Some(rules) = &own.rules {
            import.put_absent(Key::Rules, Record::Rules(rules.clone()))?;
        }
        if let Some(users) = &own.users {
            import.put_absent(Key::Users, Record::Users(users.clone()))?;
        }
        if let Some(quotas) = &own.quotas {
            import.put_absent(Key::Quotas, Record::Quotas(quotas.clone()))?;
        }
        import.raise(Counter::ProducerIds, plan.producer_ids)?;
        for id in absent {
            import.stream(own, id, plan.least_epoch)?;
        }
        // Last: streams may be older than one that was deleted.
        import.raise(Counter::EpochFloor, counter(own, Counter::EpochFloor))?;
        Ok(plan)
    }

    /// Who lives, as problems of an import.
    fn living_now(&self) -> Result<Vec<String>, MetadataError> {
        let client = self.reach.client.clone();
        let members = range_of(self.space.members());
        let found = self
            .reach
            .run(async move { Ok(pages(&client, members, 0, true, PAGE).await?.1) })?;
        let numbers = found.iter().filter_map(|kv| self.space.broker_of(&kv.key));
        let problems = numbers.map(|number| {
            format!(
                "broker {number} of the cluster is alive; stop all brokers of the cluster for the import (one that was killed counts until its lease ends, after some seconds) and run this again"
            )
        });
        Ok(problems.collect())
    }
}

/// Another broker has the number, or the directory has another number there.
fn number_taken(own: &BrokerRecord, there: &Image) -> Option<String> {
    let mut brokers = there.brokers.iter();
    let other = brokers.find(|b| (b.id == own.id) != (b.store_id == own.store_id))?;
    Some(match other.id == own.id {
        true => format!(
            "the cluster has another broker {}, at {}, with store {}; a directory keeps its number, so import this one into another cluster",
            own.id, other.address, other.store_id
        ),
        false => format!(
            "this directory is known to the cluster as that of broker {}, and its own records say broker {}; import it into another cluster",
            other.id, own.id
        ),
    })
}

fn name_taken(own: &StreamRecord, there: &Image) -> Option<String> {
    let other = there.streams.iter().find(|s| s.name == own.name)?;
    let advice = match own.internal {
        true => {
            "each holds consumer groups, and two cannot become one; import into a cluster whose brokers have not started yet, or leave this broker's groups behind with --without-groups, which then begin anew"
        }
        false => {
            "delete one of the two, this broker's with `kera stream delete` while it still works alone, or import into another cluster"
        }
    };
    Some(format!(
        "the cluster has another stream `{}` ({}, and this broker's is {}); {advice}",
        own.name, other.id, own.id
    ))
}

/// True of the brokers' own stream where nobody needs it, or is to do without it.
fn may_stay_behind(own: &StreamRecord, image: &Image, options: ImportOptions) -> bool {
    let mut groups = image.groups.iter().filter(|g| g.stream == own.id);
    // What an open group holds is not recorded.
    let may_hold = |g: &GroupRecord| g.state == GroupState::Open || g.holds_records();
    own.internal && (options.without_groups || !groups.any(may_hold))
}

fn other_users(own: &Image, there: &Image) -> Option<String> {
    let (own, there) = (own.users.as_ref()?, there.users.as_ref()?);
    (own.users != there.users && !own.users.is_empty()).then(|| {
        "this broker and the cluster both have users, and they differ; delete this broker's with `kera user delete` while it still works alone".to_owned()
    })
}

fn other_quotas(own: &Image, there: &Image) -> Option<String> {
    let (own, there) = (own.quotas.as_ref()?, there.quotas.as_ref()?);
    (own.quotas != there.quotas && !own.quotas.is_empty()).then(|| {
        "this broker and the cluster both have quotas, and they differ; give both the same ones with `kera quota`".to_owned()
    })
}

fn other_rules(own: &Image, there: &Image) -> Option<String> {
    let (own, there) = (own.rules.as_ref()?, there.rules.as_ref()?);
    let differ = (&own.rules, &own.roles) != (&there.rules, &there.roles);
    let has_some = !own.rules.is_empty() || !own.roles.is_empty();
    (differ && has_some).then(|| {
        "this broker and the cluster both have rules of access, and these or their roles differ; give both the same ones with `kera acl` and `kera role`".to_owned()
    })
}

fn other_settings(own: &SettingsRecord, there: &Image) -> Option<String> {
    let mut settings = there.settings.iter();
    let other = settings.find(|s| s.broker == own.broker)?;
    let whose = match own.broker {
        Some(id) => format!("broker {id}"),
        None => "all brokers".to_owned(),
    };
    (other.values != own.values).then(|| {
        format!(
            "settings of {whose} were changed at run time here and in the cluster, and differ; give both the same values with `kera broker alter`"
        )
    })
}

/// True if both stores hold the same of a stream. An import may raise epochs.
fn is_same(own: &StreamRecord, mine: &Image, found: &StreamRecord, theirs: &Image) -> bool {
    let stream = |s: &StreamRecord| StreamRecord {
        revision: 0,
        ..s.clone()
    };
    let streamlets = |image: &Image| -> Vec<StreamletRecord> {
        let of_stream = image.streamlets_of(own.id).iter();
        let bare = of_stream.map(|s| StreamletRecord {
            revision: 0,
            epoch: Epoch(0),
            ..s.clone()
        });
        bare.collect()
    };
    let groups = |image: &Image| -> Vec<GroupRecord> {
        let of_stream = image.groups.iter().filter(|g| g.stream == own.id);
        let bare = of_stream.map(|g| GroupRecord {
            revision: 0,
            ..g.clone()
        });
        bare.collect()
    };
    let starts = |image: &Image| -> Vec<LaneStart> {
        let of_stream = image.lane_starts.iter().filter(|l| l.key.stream == own.id);
        of_stream.map(|l| LaneStart { revision: 0, ..*l }).collect()
    };
    let pins = |image: &Image| -> Vec<PinRecord> {
        let bare = image.pins_of(own.id).iter().map(|p| PinRecord {
            revision: 0,
            ..p.clone()
        });
        bare.collect()
    };
    stream(own) == stream(found)
        && streamlets(mine) == streamlets(theirs)
        && groups(mine) == groups(theirs)
        && starts(mine) == starts(theirs)
        && pins(mine) == pins(theirs)
}

fn counter(image: &Image, wanted: Counter) -> u64 {
    let mut counters = image.counters.iter();
    counters
        .find(|(counter, _)| *counter == wanted)
        .map_or(0, |(_, value)| *value)
}

/// All records that a stream consists of, but for itself and its name.
struct Parts<'a> {
    streamlets: &'a [StreamletRecord],
    groups: Vec<&'a GroupRecord>,
    starts: Vec<&'a LaneStart>,
    pins: &'a [PinRecord],
}

impl<'a> Parts<'a> {
    fn of(image: &'a Image, id: StreamId) -> Self {
        let groups = image.groups.iter().filter(|g| g.stream == id);
        let starts = image.lane_starts.iter().filter(|l| l.key.stream == id);
        Self {
            streamlets: image.streamlets_of(id),
            groups: groups.collect(),
            starts: starts.collect(),
            pins: image.pins_of(id),
        }
    }

    /// How many records, with the stream and its name.
    fn len(&self) -> usize {
        self.streamlets.len() + self.groups.len() + self.starts.len() + self.pins.len() + 2
    }

    /// The records, each streamlet's epoch raised to `least_epoch`.
    fn records(&self, least_epoch: u64) -> impl Iterator<Item = (Key, Record)> {
        let least = Epoch(u32::try_from(least_epoch).unwrap_or(u32::MAX));
        let streamlets = self.streamlets.iter().map(move |s| {
            let epoch = s.epoch.max(least);
            let record = StreamletRecord { epoch, ..s.clone() };
            (Key::Streamlet(s.key()), Record::Streamlet(record))
        });
        let groups = self.groups.iter().copied();
        let groups = groups.map(|g| (Key::Group(g.key()), Record::Group(g.clone())));
        let starts = self.starts.iter().copied();
        let starts = starts.map(|l| (Key::LaneStart(l.key), Record::LaneStart(*l)));
        let pins = self.pins.iter();
        let pins = pins.map(|p| (Key::Pin(p.key()), Record::Pin(p.clone())));
        streamlets.chain(groups).chain(starts).chain(pins)
    }
}

struct Import<'a> {
    store: &'a EtcdStore,
    writer: Arc<Writer>,
    progress: ImportProgress,
    on_progress: OnProgress<'a>,
}

impl Import<'_> {
    /// Brings a stream that is not there.
    fn stream(&mut self, own: &Image, id: StreamId, least_epoch: u64) -> Result<(), MetadataError> {
        let Some(stream) = own.streams.iter().find(|s| s.id == id) else {
            return Ok(());
        };
        if least_epoch > i32::MAX as u64 {
            return Err(MetadataError::invalid(
                "the cluster has used up its epochs; import into another one",
            ));
        }
        let (record, name) = (Key::Stream(id), Key::StreamName(stream.name.clone()));
        let absent = vec![(record.encode(), 0), (name.encode(), 0)];
        let mut leftovers = Plan::alone(absent.clone());
        let kinds = key::OF_STREAMS.map(|kind| key::stream_prefix(kind, id));
        leftovers.deleted.extend(kinds);
        self.send(leftovers, 0)?;
        let room = self.store.server_operations - absent.len() - 1;
        let mut part = Plan::alone(absent.clone());
        let (mut records, mut bytes) = (0, 0);
        for (key, record) in Parts::of(own, id).records(least_epoch) {
            bytes += part.put(&key, &record, 0);
            records += 1;
            if records == room || bytes >= PART_BYTES {
                let full = std::mem::replace(&mut part, Plan::alone(absent.clone()));
                self.send(full, records)?;
                (records, bytes) = (0, 0);
            }
        }
        if records > 0 {
            self.send(part, records)?;
        }
        let mut last = Plan::alone(Vec::new());
        last.put(&record, &Record::Stream(stream.clone()), 0);
        last.put(&name, &Record::StreamName(id), 0);
        self.send(last, 2)
    }

    /// Writes a record where there is none.
    fn put_absent(&mut self, key: Key, record: Record) -> Result<(), MetadataError> {
        if self.store.read_at(&key)?.is_some() {
            return Ok(());
        }
        let mut plan = Plan::alone(Vec::new());
        plan.put(&key, &record, 0);
        self.send(plan, 0)
    }

    /// Raises a counter to `value`, if it is lower.
    fn raise(&mut self, counter: Counter, value: u64) -> Result<(), MetadataError> {
        let key = Key::Counter(counter);
        let (found, revision) = match self.store.read_at(&key)? {
            Some((Record::Counter(found), revision)) => (found, revision),
            _ => (0, 0),
        };
        if found >= value {
            return Ok(());
        }
        let mut plan = Plan::alone(Vec::new());
        plan.put(&key, &Record::Counter(value), revision);
        self.send(plan, 0)
    }

    /// Commits one transaction, of so many records of streams.
    fn send(&mut self, plan: Plan, records: usize) -> Result<(), MetadataError> {
        let writer = self.writer.clone();
        let refused = self.store.reach.run(async move {
            let deadline = writer.client.deadline();
            let sent = writer.send(&plan, deadline).await?;
            Ok(match sent {
                Sent::Committed(_) => None,
                Sent::Refused { found, .. } => {
                    let pairs = plan.compared.into_iter().zip(found);
                    let mut others =
                        pairs.filter(|(compared, found)| compared.1 != found.1.revision);
                    Some(others.next().map(|((key, _), _)| key))
                }
            })
        })?;
        match refused {
            None => {}
            Some(Some(key)) => {
                let what = Key::decode(&key).map_or_else(|| format!("{key:?}"), |k| k.to_string());
                return Err(MetadataError::invalid(format!(
                    "somebody else changed {what} in the cluster during the import; run it again"
                )));
            }
            // Everything was as it was compared: what did not hold is that nobody lives.
            Some(None) => {
                return Err(MetadataError::invalid(
                    "a broker of the cluster started during the import; stop it and run the import again",
                ));
            }
        }
        self.progress.written += records;
        (self.on_progress)(self.progress)
    }
}

impl Plan {
    /// One that takes effect only while no broker lives, and where keys have these revisions.
    fn alone(compared: Vec<(Vec<u8>, u64)>) -> Self {
        Self {
            number: Uuid::new_v4().as_u64_pair().0,
            compared,
            older: Vec::new(),
            written: BTreeMap::new(),
            deleted: Vec::new(),
            nobody_lives: true,
        }
    }

    /// Writes a record where its key has this revision; answers the bytes of its value.
    fn put(&mut self, key: &Key, record: &Record, revision: u64) -> usize {
        let key = key.encode();
        let value = encode_value(&key, record, self.number);
        let bytes = key.len() + value.len();
        self.compared.push((key.clone(), revision));
        self.written.insert(key, Some(value));
        bytes
    }
}
