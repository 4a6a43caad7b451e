//! Making, listing and deleting pins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kera_metadata::pin::{DEFAULT_PIN_AGE_MS, DEFAULT_PIN_BYTES, MAX_PINS, check_pin_name};
use kera_metadata::{
    Compare, Feature, Key, LossCause, MetadataError, MetadataStore, PinKey, PinPolicy, PinRecord,
    Record, StreamConfig, Transaction, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::Ordinal;
use kera_protocol::v1;

use super::elsewhere;
use crate::clock::{retention_ms, wall_ms};
use crate::data::catalog::Stream;
use crate::pins::{below_start, held, lost_at_once};
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Attempts to change a pin that others change at the same time.
const ATTEMPTS: u32 = 16;

/// Who makes, moves or deletes a pin.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    /// As `User:NAME`.
    pub(crate) name: String,
    /// Whether that user may have retention wait, and end such a wait.
    pub(crate) may_wait: bool,
}

impl Maker {
    fn check(&self, stream: &str, policy: PinPolicy) -> Result<(), WireError> {
        if self.may_wait || policy == PinPolicy::Warn {
            return Ok(());
        }
        let text = format!(
            "{user} may not have retention wait for pins of stream \"{stream}\", nor end such a wait: that needs the operation alter-configs, as longer retention does; who may change rules can allow it: kera acl add --allow {user} --operation alter-configs --stream {stream}",
            user = self.name
        );
        Err(WireError::new(ErrorCode::NotAuthorized, text))
    }
}

/// Makes a pin, or moves the one of that name; the pin, and whether there was one. Lanes that begin above its positions by
/// the time it is recorded make it a lost one.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] says what cannot be, or that the cluster version is too old; [`ErrorCode::NotAuthorized`]
/// if the maker may not have retention wait; [`ErrorCode::InvalidName`] for a stream of the broker's own;
/// [`ErrorCode::Overloaded`] if others are faster again and again; or what the metadata store answers.
pub(crate) async fn create_pin(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    request: v1::CreatePinRequest,
    maker: Maker,
) -> Result<(v1::PinInfo, bool), WireError> {
    shared.require(Feature::Pins)?;
    super::changeable(stream)?;
    super::is_meant(stream, &request.stream_id)?;
    let record = stream.record.load_full();
    let pin = PinRecord {
        stream: record.id,
        positions: positions(&record.name, &record.config, &request.positions)?,
        policy: policy_of(request.policy)?,
        name: request.name,
        job: request.job,
        owner: maker.name.clone(),
        created_ms: retention_ms(),
        max_age_ms: request.max_age_ms.unwrap_or(DEFAULT_PIN_AGE_MS),
        max_bytes: request.max_bytes.unwrap_or(DEFAULT_PIN_BYTES),
        lost: None,
        revision: 0,
    };
    pin.check().map_err(invalid)?;
    let (store, config, name) = (
        shared.metadata.clone(),
        record.config.clone(),
        record.name.clone(),
    );
    let made = blocking(move || put(&*store, &name, &config, pin, &maker));
    let (pin, moved) = made.await?;
    Ok((info(&record.name, &record.config, &pin, 0), moved))
}

fn put(
    store: &dyn MetadataStore,
    stream: &str,
    config: &StreamConfig,
    mut pin: PinRecord,
    maker: &Maker,
) -> Result<(PinRecord, bool), WireError> {
    maker.check(stream, pin.policy)?;
    for _ in 0..ATTEMPTS {
        let there = store.pins(Some(pin.stream)).map_err(of_store)?;
        let old = there.iter().find(|one| one.name == pin.name);
        match old {
            Some(old) => maker.check(stream, old.policy)?,
            None if there.len() >= MAX_PINS => {
                return Err(invalid(format!(
                    "stream \"{stream}\" has {} pins, and at most {MAX_PINS} are kept; delete one, `kera pin list --stream {stream}` shows them",
                    there.len()
                )));
            }
            None => {}
        }
        if let Some(gone) = gone(store, config, &pin)? {
            return Err(invalid(format!(
                "lane {}/{} begins above ordinal {}: what the pin needs there is gone already; name where the lane begins, or more",
                gone.streamlet, gone.lane, gone.ordinal
            )));
        }
        let compare = Compare::revision(Key::Pin(pin.key()), old.map_or(0, |old| old.revision));
        let write = Write::PutPin(pin.clone());
        match store.commit(Transaction::new(vec![compare], vec![write])) {
            Ok(committed) => pin.revision = committed.revision,
            Err(MetadataError::Conflict(conflict @ kera_metadata::Conflict::Absent { .. })) => {
                return Err(of_store(conflict.into()));
            }
            Err(MetadataError::Conflict(_)) => continue,
            Err(error) => return Err(of_store(error)),
        }
        // Retention may have decided before it could see the pin.
        let looked = gone(store, config, &pin);
        let loss = looked.and_then(|loss| match loss {
            Some(loss) => lost_at_once(store, stream, &pin, &loss)
                .map(|is_lost| is_lost.then_some(loss))
                .map_err(of_store),
            None => Ok(None),
        });
        // The pin is there, whatever cannot be read now: if it is lost, the next round of retention records that.
        pin.lost = loss.unwrap_or_else(|error| {
            tracing::warn!(stream, pin = pin.name, %error, "whether a new pin has all that it needs is not known yet");
            None
        });
        return Ok((pin, old.is_some()));
    }
    Err(too_many_changes())
}

/// What of a pin lies below where lanes begin.
fn gone(
    store: &dyn MetadataStore,
    config: &StreamConfig,
    pin: &PinRecord,
) -> Result<Option<kera_metadata::PinLoss>, WireError> {
    let starts = store.lane_starts(pin.stream).map_err(of_store)?;
    let starts = starts
        .iter()
        .map(|start| (start.key.streamlet, start.key.lane, start.ordinal));
    Ok(below_start(pin, config.streamlets, starts, wall_ms()))
}

/// The positions of a request by partition: of each lane one.
fn positions(
    stream: &str,
    config: &StreamConfig,
    named: &[v1::LanePosition],
) -> Result<Vec<Ordinal>, WireError> {
    let lanes = config.partitions();
    let mut positions = vec![None; lanes as usize];
    for at in named {
        let partition = u64::from(at.lane) * u64::from(config.streamlets) + u64::from(at.streamlet);
        let partition = usize::try_from(partition).unwrap_or(usize::MAX);
        let is_there = at.streamlet < config.streamlets;
        let place = positions.get_mut(partition).filter(|_| is_there);
        let place = place.ok_or_else(|| {
            invalid(format!(
                "stream \"{stream}\" has no lane {}/{}",
                at.streamlet, at.lane
            ))
        })?;
        if place.replace(at.ordinal).is_some() {
            return Err(invalid(format!(
                "two positions are of lane {}/{}; name one",
                at.streamlet, at.lane
            )));
        }
    }
    let found: Option<Vec<_>> = positions.into_iter().collect();
    found.ok_or_else(|| {
        invalid(format!(
            "stream \"{stream}\" has {lanes} lanes, and {} have a position; name one of each",
            named.len()
        ))
    })
}

fn policy_of(number: i32) -> Result<PinPolicy, WireError> {
    match v1::PinPolicy::try_from(number) {
        Ok(v1::PinPolicy::Unspecified | v1::PinPolicy::Warn) => Ok(PinPolicy::Warn),
        Ok(v1::PinPolicy::Wait) => Ok(PinPolicy::Wait),
        Err(_) => Err(invalid(format!(
            "policy {number} of a pin is not known to this broker; name 1 (warn) or 2 (wait)"
        ))),
    }
}

/// The pins of a stream, or of all that `may_see` names, by stream and name, each with the bytes that it holds back; and the
/// brokers that did not say what they hold back. With `local` only what this broker holds back.
///
/// # Errors
/// [`ErrorCode::UnknownStream`], or what the metadata store answers.
pub(crate) async fn list_pins(
    shared: &Arc<Shared>,
    request: v1::ListPinsRequest,
    may_see: impl Fn(&str) -> bool,
) -> Result<v1::ListPinsResponse, WireError> {
    let stream = match request.stream.as_str() {
        "" => None,
        name => Some(super::named(shared, name)?.id()),
    };
    let mut listed = v1::ListPinsResponse {
        now_ms: wall_ms(),
        ..Default::default()
    };
    let store = shared.metadata.clone();
    let pins = blocking(move || store.pins(stream).map_err(of_store)).await?;
    let mut by_stream: HashMap<_, Vec<PinRecord>> = HashMap::new();
    for pin in pins {
        by_stream.entry(pin.stream).or_default().push(pin);
    }
    let mut infos = BTreeMap::new();
    let mut owners = BTreeSet::new();
    for (id, pins) in by_stream {
        let Some(stream) = shared.data.catalog.get(id) else {
            continue;
        };
        let record = stream.record.load_full();
        if !may_see(&record.name) {
            continue;
        }
        owners.extend(shared.other_owners(&stream));
        let (here, of) = (shared.clone(), stream.clone());
        let held = blocking(move || {
            let held = held(&here, &of, &pins, retention_ms());
            Ok::<_, WireError>(pins.into_iter().zip(held).collect::<Vec<_>>())
        });
        for (pin, bytes) in held.await? {
            let info = info(&record.name, &record.config, &pin, bytes);
            infos.insert((info.stream.clone(), info.name.clone()), info);
        }
    }
    if !request.local {
        for (broker, answer) in elsewhere::pins(shared, owners, &request.stream).await {
            match answer {
                Ok(answer) => {
                    for other in answer.pins {
                        if let Some(info) = infos.get_mut(&(other.stream, other.name)) {
                            info.held_bytes += other.held_bytes;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(broker, %error, "a broker does not say what it holds back for pins");
                    listed.silent_brokers.push(broker);
                }
            }
        }
    }
    listed.pins = infos.into_values().collect();
    Ok(listed)
}

/// Deletes a pin, and answers it as it was.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if there is none; [`ErrorCode::NotAuthorized`] if retention waits for it and the maker may
/// not end that; or what the metadata store answers.
pub(crate) async fn delete_pin(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    name: String,
    maker: Maker,
) -> Result<v1::PinInfo, WireError> {
    check_pin_name(&name).map_err(invalid)?;
    let record = stream.record.load_full();
    let (store, of) = (shared.metadata.clone(), record.clone());
    let deleted = blocking(move || {
        let key = PinKey {
            stream: of.id,
            name,
        };
        for _ in 0..ATTEMPTS {
            let found = store.read(&Key::Pin(key.clone())).map_err(of_store)?;
            let Some(Record::Pin(pin)) = found else {
                return Err(invalid(format!(
                    "stream \"{}\" has no pin {:?}; `kera pin list --stream {0}` shows those that there are",
                    of.name, key.name
                )));
            };
            maker.check(&of.name, pin.policy)?;
            let compare = Compare::revision(Key::Pin(key.clone()), pin.revision);
            let write = Write::DeletePin(key.clone());
            match store.commit(Transaction::new(vec![compare], vec![write])) {
                Ok(_) => return Ok(pin),
                Err(MetadataError::Conflict(_)) => {}
                Err(error) => return Err(of_store(error)),
            }
        }
        Err(too_many_changes())
    });
    Ok(info(&record.name, &record.config, &deleted.await?, 0))
}

fn info(stream: &str, config: &StreamConfig, pin: &PinRecord, held_bytes: u64) -> v1::PinInfo {
    let streamlets = config.streamlets.max(1);
    let positions = (0..).zip(&pin.positions);
    let positions = positions.map(|(partition, ordinal): (u32, _)| v1::LanePosition {
        streamlet: partition % streamlets,
        lane: partition / streamlets,
        ordinal: *ordinal,
    });
    let policy = match pin.policy {
        PinPolicy::Warn => v1::PinPolicy::Warn,
        PinPolicy::Wait => v1::PinPolicy::Wait,
    };
    let lost = pin.lost.as_ref().map(|loss| v1::PinLoss {
        streamlet: loss.streamlet.0,
        lane: loss.lane.0,
        ordinal: loss.ordinal,
        at_ms: loss.at_ms,
        cause: match loss.cause {
            LossCause::Retention => v1::PinLossCause::Retention,
            LossCause::Age => v1::PinLossCause::Age,
            LossCause::Bytes => v1::PinLossCause::Bytes,
            LossCause::Trim => v1::PinLossCause::Trim,
        }
        .into(),
    });
    v1::PinInfo {
        stream: stream.to_owned(),
        name: pin.name.clone(),
        job: pin.job.clone(),
        owner: pin.owner.clone(),
        created_ms: pin.created_ms,
        positions: positions.collect(),
        max_age_ms: pin.max_age_ms,
        max_bytes: pin.max_bytes,
        policy: policy.into(),
        lost,
        held_bytes,
    }
}

fn of_store(error: MetadataError) -> WireError {
    metadata_error(&error)
}

fn invalid(text: impl Into<String>) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

fn too_many_changes() -> WireError {
    let text = "the pin was changed by others at the same time, again and again; try again";
    WireError::new(ErrorCode::Overloaded, text)
}

#[cfg(test)]
mod tests {
    use kera_metadata::{MemoryStore, StreamRecord};
    use kera_protocol::ids::{LaneId, LaneKey, StreamletId, StreamletKey};

    use super::*;

    fn at(streamlet: u32, lane: u32, ordinal: Ordinal) -> v1::LanePosition {
        v1::LanePosition {
            streamlet,
            lane,
            ordinal,
        }
    }

    fn maker(may_wait: bool) -> Maker {
        Maker {
            name: "User:ann".to_owned(),
            may_wait,
        }
    }

    fn config() -> StreamConfig {
        StreamConfig {
            streamlets: 2,
            lanes: 2,
            ..StreamConfig::default()
        }
    }

    fn made(store: &MemoryStore) -> StreamRecord {
        let record = StreamRecord::new("clicks", config(), 1);
        store.create_stream(record, 0).unwrap().0
    }

    fn pin(stream: &StreamRecord, name: &str, policy: PinPolicy, at: Ordinal) -> PinRecord {
        PinRecord {
            stream: stream.id,
            name: name.to_owned(),
            job: "orders".to_owned(),
            owner: "User:ann".to_owned(),
            created_ms: 7,
            positions: vec![at; 4],
            max_age_ms: DEFAULT_PIN_AGE_MS,
            max_bytes: DEFAULT_PIN_BYTES,
            policy,
            lost: None,
            revision: 0,
        }
    }

    #[test]
    fn each_lane_has_one_position() {
        let whole = [at(1, 1, 4), at(0, 0, 1), at(1, 0, 2), at(0, 1, 3)];
        let found = positions("clicks", &config(), &whole).unwrap();
        assert_eq!(found, [1, 2, 3, 4]);
        let refused = [
            (&whole[..3], "name one of each"),
            (
                &[at(0, 0, 1), at(0, 0, 1), at(1, 0, 2), at(0, 1, 3)],
                "two positions",
            ),
            (&[at(2, 0, 1)], "has no lane 2/0"),
            (&[at(0, 2, 1)], "has no lane 0/2"),
            (&[at(1, u32::MAX, 1)], "has no lane"),
        ];
        for (named, reason) in refused {
            let error = positions("clicks", &config(), named).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_pin_of_the_same_name_is_moved_and_who_may_not_wait_ends_no_wait() {
        let store = MemoryStore::new();
        let stream = made(&store);
        let make = |policy, ordinal, may_wait| {
            let pin = pin(&stream, "chk-1", policy, ordinal);
            put(&store, "clicks", &config(), pin, &maker(may_wait))
        };
        let refused = make(PinPolicy::Wait, 1, false).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotAuthorized);
        assert!(!make(PinPolicy::Warn, 1, false).unwrap().1);
        let (moved, is_moved) = make(PinPolicy::Wait, 2, true).unwrap();
        assert!(is_moved);
        assert_eq!(store.pins(None).unwrap(), [moved]);
        let refused = make(PinPolicy::Warn, 3, false).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotAuthorized);
        assert_eq!(store.pins(None).unwrap()[0].positions, [2; 4]);
    }

    #[test]
    fn a_stream_has_so_many_pins_and_none_below_where_its_lanes_begin() {
        let store = MemoryStore::new();
        let stream = made(&store);
        let make = |name: &str, ordinal| {
            let pin = pin(&stream, name, PinPolicy::Wait, ordinal);
            put(&store, "clicks", &config(), pin, &maker(true))
        };
        for number in 0..MAX_PINS {
            make(&format!("chk-{number}"), 5).unwrap();
        }
        let refused = make("one-more", 5).unwrap_err();
        assert!(refused.message.contains("at most 100"), "{refused}");
        make("chk-1", 6).unwrap();
        let key = StreamletKey {
            stream: stream.id,
            streamlet: StreamletId(1),
        };
        let epoch = store.streamlet(stream.id, key.streamlet).unwrap().unwrap();
        let start = Write::PutLaneStart {
            key: LaneKey {
                stream: stream.id,
                streamlet: key.streamlet,
                lane: LaneId(1),
            },
            ordinal: 6,
        };
        let trim = Transaction::new(vec![Compare::epoch(&epoch)], vec![start]);
        store.commit(trim).unwrap();
        let refused = make("chk-2", 5).unwrap_err();
        assert!(
            refused.message.contains("lane 1/1 begins above"),
            "{refused}"
        );
        make("chk-2", 6).unwrap();
    }
}
