//! The store that several brokers share: etcd (<https://etcd.io>), spoken to with a thin client.
//!
//! Transactions of one store that have anything in common take effect in the order they were
//! submitted. What each rests on is compared by etcd itself, so that brokers do not disturb each other
//! and nothing relies on clocks or on who is alive. See `metadata_writer` and `writer` for how, and `space` for
//! where things lie.

mod access;
mod client;
mod creation;
mod election;
mod follow;
mod identity;
mod import;
mod lease;
mod messages;
mod metadata_writer;
mod options;
mod presence;
mod reach;
mod space;
mod view;
mod writer;
mod zones;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::{StreamId, StreamletId};
use prost::Message;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use self::access::Access;
use self::client::{CallError, Client, PAGE, PAGE_OF_PINS, Pauses, pages};
use self::follow::follow;
use self::identity::Identity;
use self::lease::{first, is_at};
use self::messages::*;
use self::metadata_writer::{Finish, MetadataWriter};
use self::options::Location;
use self::presence::{Boards, look_on};
use self::reach::Reach;
use self::space::{Space, range_of};
use self::writer::Writer;
use crate::cluster::{
    Change, Changes, ClusterStore, LiveBroker, Living, Membership, WatchLost, Watched,
};
use crate::encode::Record;
use crate::error::MetadataError;
use crate::image::ImageBuilder;
use crate::store::{Done as Callback, MetadataStore, create_over};
use crate::wrong_store::Stranger;
use kera_records::Transaction;
use kera_records::key::{self, Key};
use kera_records::{BrokerRecord, Image, PinKey, PinRecord, StreamRecord, StreamletRecord};

pub use self::access::{EtcdAccess, ReadFile};
pub use self::import::{ImportOptions, ImportPlan, ImportProgress, StreamImport};
pub use self::options::EtcdOptions;

/// The format of what is stored; a store of a newer one is refused.
/// Format 2 says that records may be of cluster version 1 from the first one on, format 3 of cluster version 2, format 4 of cluster
/// version 3, formats 5 to 8 of cluster versions 4 to 7; none is ever written over an older one.
const FORMAT: u32 = 8;
/// The format of clusters that were made before they had versions.
const BEFORE_VERSIONS: u32 = 1;
/// Operations of etcd's transactions that are kept for comparisons that callers know nothing of.
const RESERVED: usize = 5;
/// Transactions that wait for whoever watches.
const WATCHED: usize = 256;

/// A metadata store on etcd.
///
/// ```no_run
/// use kera_metadata::*;
///
/// let address = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379";
/// EtcdStore::init(address, EtcdOptions::default())?; // once in the cluster's life
/// let store = EtcdStore::open(address, EtcdOptions::default())?;
/// let image = store.load()?;
/// let changes = store.watch(image.revision);
/// # Ok::<(), MetadataError>(())
/// ```
///
/// What has to be etcd's: version 3.4 or newer, and `--max-txn-ops` and `--max-request-bytes` no
/// smaller than its defaults.
pub struct EtcdStore {
    pump: MetadataWriter,
    reach: Arc<Reach>,
    space: Space,
    cluster: Uuid,
    /// The cluster version that it was made with.
    made_with: u32,
    boards: Arc<Boards>,
    /// What one of etcd's transactions takes beside the comparison of the cluster's key.
    server_operations: usize,
    max_operations: usize,
}

fn connect(
    address: &str,
    access: &EtcdAccess,
    options: &EtcdOptions,
) -> Result<(Reach, Space), MetadataError> {
    let location = Location::parse(address)?;
    let access = Access::new(access)?;
    let space = Space::new(&location.prefix);
    let identity = Identity::new(location.name.clone(), space.cluster());
    let client = Client::new(location, access, identity, options.timeout)?;
    Ok((Reach::new(client)?, space))
}

impl EtcdStore {
    /// Makes an empty cluster at `address` (`etcd://HOST:PORT[,HOST:PORT...][/PREFIX]`), and answers its
    /// id. Blocks.
    ///
    /// # Errors
    /// [`MetadataError::Initialized`] where there is one already.
    pub fn init(address: &str, options: EtcdOptions) -> Result<Uuid, MetadataError> {
        Self::init_with(address, &EtcdAccess::default(), options)
    }

    /// As [`init`](Self::init), at an etcd that wants TLS or a password. Blocks.
    ///
    /// # Errors
    /// As of [`init`](Self::init), and files of `access` that cannot be read.
    pub fn init_with(
        address: &str,
        access: &EtcdAccess,
        options: EtcdOptions,
    ) -> Result<Uuid, MetadataError> {
        let (reach, space) = connect(address, access, &options)?;
        let client = reach.client.clone();
        let id = Uuid::new_v4();
        let key = space.cluster();
        let message = ClusterMessage {
            format: FORMAT,
            cluster: id.as_bytes().to_vec(),
        };
        let put = PutRequest {
            key: key.clone(),
            value: message.encode_to_vec(),
            lease: 0,
        };
        let read = RangeRequest::of(key.clone());
        let request = TxnRequest {
            compare: vec![is_at(key, 0)],
            success: vec![operation(Request::Put(put))],
            failure: vec![operation(Request::Range(read))],
        };
        reach.run(async move {
            // Who cannot reach etcd at all is told so, and that nothing was made.
            let question = client.identity().question();
            let found: RangeResponse = client.read(RANGE, question, client.deadline()).await?;
            if let Some(kv) = found.kvs.first() {
                return Err(MetadataError::Initialized {
                    store: client.location().name.clone(),
                    cluster: cluster_of(&client, &kv.value)?.0,
                });
            }
            let deadline = client.deadline();
            let mut pauses = Pauses::until(deadline);
            loop {
                let error = match client.once(TXN, request.clone(), deadline).await {
                    Ok(answer) => return made(&client, &answer, id),
                    Err(CallError::Refused(code, detail)) => client.refused(code, detail),
                    Err(CallError::NotSent(detail)) => client.unavailable(detail),
                    Err(CallError::Lost(detail)) => client.unknown(detail),
                };
                let again = matches!(
                    error,
                    MetadataError::Unavailable { .. } | MetadataError::UnknownOutcome { .. }
                );
                if !again || !pauses.pause().await {
                    return Err(error);
                }
            }
        })
    }

    /// Opens the cluster at `address`. Blocks.
    ///
    /// # Errors
    /// [`MetadataError::NotInitialized`] where there is none, [`MetadataError::Unavailable`] where etcd
    /// does not answer within [`EtcdOptions::timeout`].
    pub fn open(address: &str, options: EtcdOptions) -> Result<Self, MetadataError> {
        Self::open_with(address, &EtcdAccess::default(), options)
    }

    /// As [`open`](Self::open), at an etcd that wants TLS or a password. Blocks.
    ///
    /// # Errors
    /// As of [`open`](Self::open), and files of `access` that cannot be read.
    pub fn open_with(
        address: &str,
        access: &EtcdAccess,
        options: EtcdOptions,
    ) -> Result<Self, MetadataError> {
        let (reach, space) = connect(address, access, &options)?;
        let reach = Arc::new(reach);
        let client = reach.client.clone();
        let request = RangeRequest::of(space.cluster());
        let (cluster, made_with) = reach.run(async move {
            let deadline = client.deadline();
            let found: RangeResponse = client.read(RANGE, request, deadline).await?;
            match found.kvs.first() {
                Some(kv) => {
                    let (cluster, made_with) = cluster_of(&client, &kv.value)?;
                    let revision = revision(&found.header);
                    let value = kv.value.clone();
                    client.identity().expect(cluster, value, revision);
                    Ok((cluster, made_with))
                }
                None => Err(MetadataError::NotInitialized {
                    store: client.location().name.clone(),
                }),
            }
        })?;
        let boards = Boards::new();
        reach.spawn(look_on(reach.client.clone(), space.clone(), boards.clone()));
        let server_operations = options.server_operations.max(16);
        // One comparison of each is the cluster's.
        let operations = server_operations - 1;
        let writer = Writer::new(reach.client.clone(), space.clone(), operations);
        let writer = Arc::new(writer);
        // Keeps the runtime for transactions that wait when the store is dropped by a callback.
        let working = reach.clone();
        let timeout = options.timeout;
        let begin = move |transaction: Transaction, submitted, finish: Finish| {
            let writer = writer.clone();
            working.spawn(async move {
                finish.tell(writer.commit(&transaction, submitted, timeout).await);
            });
        };
        let pump = MetadataWriter::start(options.queue_operations, options.under_way, begin);
        let pump = pump.map_err(|error| MetadataError::Storage {
            path: reach.client.location().path(),
            detail: format!("the system starts no thread: {error}"),
        })?;
        Ok(Self {
            pump,
            reach,
            space,
            cluster,
            made_with,
            boards,
            server_operations: operations,
            max_operations: server_operations - RESERVED,
        })
    }

    /// Everything whose key begins with one of `prefixes`, at one revision.
    fn scan(
        &self,
        prefixes: Vec<Vec<u8>>,
        keys_only: bool,
    ) -> Result<(u64, Vec<KeyValue>), MetadataError> {
        let client = self.reach.client.clone();
        let ranges: Vec<_> = prefixes
            .iter()
            .map(|prefix| {
                let page = match prefix.first() {
                    Some(&key::PIN) => PAGE_OF_PINS,
                    _ => PAGE,
                };
                (range_of(self.space.key(prefix)), page)
            })
            .collect();
        self.reach.run(async move {
            /// Times that reading is begun anew because etcd forgot the revision it is read at.
            const ATTEMPTS: u32 = 8;
            let mut attempt = 1;
            'anew: loop {
                let mut found = Vec::new();
                let mut at = 0;
                for (range, page) in &ranges {
                    match pages(&client, range.clone(), at, keys_only, *page).await {
                        Ok((revision, kvs)) => {
                            at = revision;
                            found.extend(kvs);
                        }
                        Err(MetadataError::Storage { detail, .. })
                            if detail.contains("compacted") && attempt < ATTEMPTS =>
                        {
                            attempt += 1;
                            continue 'anew;
                        }
                        Err(error) => return Err(error),
                    }
                }
                return Ok((at, found));
            }
        })
    }

    /// A record, and etcd's revision that wrote it.
    fn read_at(&self, key: &Key) -> Result<Option<(Record, u64)>, MetadataError> {
        let client = self.reach.client.clone();
        let bytes = key.encode();
        let request = RangeRequest::of(self.space.key(&bytes));
        let (_, found) = self.reach.run(async move {
            let deadline = client.deadline();
            client.look(vec![request], deadline).await
        })?;
        let Some(kv) = found.first().and_then(|range| range.kvs.first()) else {
            return Ok(None);
        };
        match space::record(&bytes, kv) {
            Ok((_, record)) => Ok(Some((record, kv.revision()))),
            Err(detail) => Err(self.reach.client.corrupt(detail)),
        }
    }

    fn build(&self, found: &[KeyValue], whole: bool) -> Result<Image, MetadataError> {
        let path = self.reach.client.location().path();
        let corrupt = |detail| crate::image::corrupt(&path, detail);
        let mut builder = ImageBuilder::new(&path);
        for kv in found {
            let Some(key) = self.space.record_key(&kv.key) else {
                return Err(corrupt(format!(
                    "it holds a key that is none: {:?}",
                    kv.key
                )));
            };
            let value =
                space::value(key, kv).map_err(|detail| corrupt(format!("{key:?}: {detail}")))?;
            builder.push(key, &value)?;
        }
        if whole {
            builder.forget_unfinished();
            builder.finish_whole()
        } else {
            Ok(builder.finish())
        }
    }
}

/// What came of writing the key of the cluster `id`.
fn made(client: &Client, answer: &TxnResponse, id: Uuid) -> Result<Uuid, MetadataError> {
    if answer.succeeded {
        return Ok(id);
    }
    let Some(kv) = first(answer) else {
        return Err(client.unknown("the cluster's key is gone again".into()));
    };
    let (found, _) = cluster_of(client, &kv.value)?;
    // An attempt before this one, whose answer was lost, may have made it.
    if found == id {
        return Ok(id);
    }
    Err(MetadataError::Initialized {
        store: client.location().name.clone(),
        cluster: found,
    })
}

/// The cluster's id, and the cluster version that it was made with.
fn cluster_of(client: &Client, value: &[u8]) -> Result<(Uuid, u32), MetadataError> {
    let message = ClusterMessage::decode(value).map_err(|_| {
        client.corrupt(format!(
            "its key `{}` holds something else",
            key_name(client)
        ))
    })?;
    if message.format > FORMAT {
        return Err(MetadataError::NewerFormat {
            path: client.location().path(),
            found: message.format,
            supported: FORMAT,
        });
    }
    let id = Uuid::from_slice(&message.cluster)
        .map_err(|_| client.corrupt(format!("the id in its key `{}` is none", key_name(client))))?;
    Ok((id, message.format.saturating_sub(BEFORE_VERSIONS)))
}

/// The cluster's key, as people read it.
fn key_name(client: &Client) -> String {
    String::from_utf8_lossy(&client.identity().question().key).into_owned()
}

impl MetadataStore for EtcdStore {
    fn made_with(&self) -> Result<u32, MetadataError> {
        Ok(self.made_with)
    }

    fn load(&self) -> Result<Image, MetadataError> {
        let (revision, found) = self.scan(
            vec![
                Vec::new(),
                vec![key::SETTINGS],
                vec![key::RULES],
                vec![key::USERS],
                vec![key::QUOTAS],
                vec![key::PIN],
            ],
            false,
        )?;
        Ok(Image {
            cluster: self.cluster,
            revision,
            ..self.build(&found, true)?
        })
    }

    fn load_streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Image, MetadataError> {
        let prefixes = [key::STREAMLET, key::GROUP, key::LANE_START]
            .map(|kind| key::streamlet_prefix(kind, stream, streamlet));
        let (revision, found) = self.scan(prefixes.to_vec(), false)?;
        Ok(Image {
            cluster: self.cluster,
            revision,
            ..self.build(&found, false)?
        })
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        Ok(self.read_at(key)?.map(|(record, _)| record))
    }

    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError> {
        let (_, streams) = self.scan(vec![vec![key::STREAM]], true)?;
        let whole: HashSet<StreamId> = streams
            .iter()
            .filter_map(|kv| match Key::decode(self.space.record_key(&kv.key)?)? {
                Key::Stream(id) => Some(id),
                _ => None,
            })
            .collect();
        let (_, found) = self.scan(vec![vec![key::STREAMLET]], false)?;
        let mut streamlets = self.build(&found, false)?.streamlets;
        // Those of a stream that is being created, or never was, are nobody's yet.
        streamlets.retain(|s| whole.contains(&s.stream));
        Ok(streamlets)
    }

    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError> {
        let (_, found) = self.scan(vec![key::kind_prefix(kind, stream)], false)?;
        self.build(&found, false)
    }

    fn pins_after(
        &self,
        after: Option<&PinKey>,
        most: usize,
    ) -> Result<Vec<PinRecord>, MetadataError> {
        let (_, range_end) = range_of(self.space.key(&[key::PIN]));
        let request = RangeRequest {
            range_end,
            limit: i64::try_from(most).unwrap_or(i64::MAX),
            ..RangeRequest::of(self.space.key(&key::pin_after(after)))
        };
        let client = self.reach.client.clone();
        let (_, found) = self.reach.run(async move {
            let deadline = client.deadline();
            client.look(vec![request], deadline).await
        })?;
        let found = found.into_iter().next().unwrap_or_default();
        Ok(self.build(&found.kvs, false)?.pins)
    }

    fn submit(&self, transaction: Transaction, done: Callback) {
        self.pump.push(transaction, done);
    }

    fn max_operations(&self) -> usize {
        self.max_operations
    }

    fn close(&self) {
        self.pump.close();
    }

    fn create_stream_over(
        &self,
        stream: StreamRecord,
        owners: &[u32],
    ) -> Result<(StreamRecord, Vec<StreamletRecord>), MetadataError> {
        let (stream, mut streamlets) = create_over(self, stream, owners)?;
        // What was created in parts has a revision for each.
        if streamlets.len() > self.max_operations / 2 {
            let prefix = key::stream_prefix(key::STREAMLET, stream.id);
            let (_, found) = self.scan(vec![prefix], false)?;
            streamlets = self.build(&found, false)?.streamlets;
        }
        Ok((stream, streamlets))
    }
}

impl ClusterStore for EtcdStore {
    fn watch(&self, after: u64) -> mpsc::Receiver<Watched> {
        let (raw, mut events) = mpsc::channel(WATCHED);
        let (sender, receiver) = mpsc::channel(WATCHED);
        // Not only records: whoever takes or gives back a place is heard of, so that it is known how far all
        // is told; and the cluster's key, should it go.
        let range = range_of(self.space.all());
        let client = self.reach.client.clone();
        let space = self.space.clone();
        self.reach.spawn(follow(client, range, after, raw));
        self.reach.spawn(async move {
            loop {
                let next = tokio::select! {
                    next = events.recv() => next,
                    () = sender.closed() => return,
                };
                let Some(followed) = next else { return };
                let watched = match followed {
                    Ok((events, revision)) => {
                        changes(&space, &events).map(|changes| Changes { changes, revision })
                    }
                    Err(detail) => Err(WatchLost { detail }),
                };
                let lost = watched.is_err();
                if sender.send(watched).await.is_err() || lost {
                    return;
                }
            }
        });
        receiver
    }

    fn join(&self, live: LiveBroker, ttl: Duration) -> Result<Membership, MetadataError> {
        lease::join(&self.reach, &self.space, &self.boards, live, ttl)
    }

    fn cluster(&self) -> Uuid {
        self.cluster
    }

    fn brokers(&self) -> Result<Vec<BrokerRecord>, MetadataError> {
        let (_, found) = self.scan(vec![vec![key::BROKER]], false)?;
        Ok(self.build(&found, false)?.brokers)
    }

    fn living(&self) -> watch::Receiver<Living> {
        self.boards.living.subscribe()
    }

    fn controller(&self) -> watch::Receiver<Option<u32>> {
        self.boards.controller.subscribe()
    }

    fn require(&self, revision: u64) -> Result<(), MetadataError> {
        let client = self.reach.client.clone();
        let (found, _) = self.reach.run(async move {
            let ranges = vec![client.identity().question()];
            client.look(ranges, client.deadline()).await
        })?;
        if found < revision {
            return Err(MetadataError::Stranger(Stranger::Older {
                store: self.reach.client.location().name.clone(),
                cluster: self.cluster,
                seen: revision,
                found,
            }));
        }
        self.reach.client.identity().saw(revision);
        Ok(())
    }

    fn stranger(&self) -> watch::Receiver<Option<Stranger>> {
        self.reach.client.identity().stranger()
    }
}

fn changes(space: &Space, events: &[Event]) -> Result<Vec<Change>, WatchLost> {
    let lost = |detail| WatchLost { detail };
    let mut changes = Vec::with_capacity(events.len());
    for event in events {
        let Some(kv) = &event.kv else { continue };
        let Some(bytes) = space.record_key(&kv.key) else {
            continue;
        };
        let (key, record) = if event.kind == DELETE {
            let key = Key::decode(bytes);
            (key.ok_or_else(|| lost("a key that is none".into()))?, None)
        } else {
            let (key, record) = space::record(bytes, kv).map_err(lost)?;
            (key, Some(record))
        };
        changes.push(Change {
            key,
            record,
            revision: kv.revision(),
        });
    }
    Ok(changes)
}
