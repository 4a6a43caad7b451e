//! Making and deleting pins.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kera_metadata::pin::{
    DEFAULT_PIN_AGE_MS, DEFAULT_PIN_BYTES, MAX_PIN_POSITIONS, MAX_PIN_TEXT, MAX_PINS,
    check_pin_name,
};
use kera_metadata::{
    Compare, Feature, Key, LossCause, MetadataError, MetadataStore, PinKey, PinPolicy, PinRecord,
    Record, StreamConfig, Transaction, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::Ordinal;
use kera_protocol::v1;

use crate::clock::{retention_ms, wall_ms};
use crate::data::catalog::Stream;
use crate::pins::{below_start, lost_at_once};
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Attempts to change a pin that others change at the same time.
const ATTEMPTS: u32 = 16;
/// A stream was made no later than this after its pins, whatever clocks of brokers say that are set well.
const CLOCKS_APART_MS: u64 = 3_600_000;

/// Who makes, moves or deletes a pin.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    /// As `User:NAME`.
    pub(crate) name: String,
    /// Whether that user may have retention wait, and end such a wait.
    pub(crate) may_wait: bool,
}

/// What is kept of who makes a pin, for people: subjects of certificates may be long.
fn owner_text(name: &str) -> String {
    let mut text = name.replace(char::is_control, "?");
    text.truncate(text.floor_char_boundary(MAX_PIN_TEXT));
    text
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
/// the time it is recorded make it a lost one. If the request says which pin it replaces, another one is left alone; where
/// that is just what is asked for, an earlier attempt has made it.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] says what cannot be, that the name has another pin by now, or that the cluster version is too old; [`ErrorCode::NotAuthorized`]
/// if the maker may not have retention wait; [`ErrorCode::InvalidName`] for a stream of the broker's own;
/// [`ErrorCode::Overloaded`] if others are faster again and again, or if who may only read makes and moves pins too fast; or what
/// the metadata store answers.
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
        owner: owner_text(&maker.name),
        created_ms: shared
            .pins
            .stamp(stamp(&record.name, record.created_ms, retention_ms())?),
        max_age_ms: request.max_age_ms.unwrap_or(DEFAULT_PIN_AGE_MS),
        max_bytes: request.max_bytes.unwrap_or(DEFAULT_PIN_BYTES),
        lost: None,
        revision: 0,
    };
    pin.check().map_err(invalid)?;
    within_heads(shared, stream, &pin)?;
    if !maker.may_wait {
        let taken = shared
            .pins
            .pace
            .take(record.id, pin.positions.len(), Instant::now());
        taken.map_err(|wait| too_fast(&record.name, wait))?;
    }
    // What is counted of the stream's pins is still so when one more is written, as far as this broker makes them.
    let _one_at_a_time = stream.pinning.lock().await;
    let (store, config, name) = (
        shared.metadata.clone(),
        record.config.clone(),
        record.name.clone(),
    );
    let replaces = request.replaces_created_ms;
    // The store of a broker that works alone lies on the same disk.
    let is_full = shared.clustered.is_none() && shared.data.env.disk_full.load(Ordering::Relaxed);
    let made = blocking(move || put(&*store, &name, &config, pin, replaces, is_full, &maker));
    let (pin, moved) = made.await?;
    Ok((info(&record.name, &record.config, &pin, 0), moved))
}

fn too_fast(stream: &str, wait: Duration) -> WireError {
    let text = format!(
        "pins of stream \"{stream}\" were made and moved too fast by those who may only read it; try again in {} ms, or move them less often. Who has the operation alter-configs may do it at any pace",
        wait.as_millis()
    );
    WireError::new(ErrorCode::Overloaded, text)
}

/// When a pin is made, by this broker's clock.
fn stamp(stream: &str, made_ms: u64, now_ms: u64) -> Result<u64, WireError> {
    if now_ms.saturating_add(CLOCKS_APART_MS) >= made_ms {
        return Ok(now_ms);
    }
    let text = format!(
        "the clock of this broker says {now_ms} ms since 1970, and stream \"{stream}\" was made at {made_ms}: one of them is wrong, and by such a clock a pin would be too old or too young; set the clock right"
    );
    Err(invalid(text))
}

/// Refuses positions above where lanes end, as far as that is known here: such a pin would hold nothing back.
fn within_heads(shared: &Shared, stream: &Stream, pin: &PinRecord) -> Result<(), WireError> {
    let me = shared.data.directory.me();
    let streamlets = stream.record.load().config.streamlets;
    for streamlet in stream.streamlets.iter() {
        if shared.named_owner(&streamlet) != Some(me) || !streamlet.is_recovered() {
            continue;
        }
        for (lane, _, head) in streamlet.bounds() {
            let ordinal = pin.position(streamlets, streamlet.id(), lane);
            if ordinal > head {
                return Err(invalid(format!(
                    "ordinal {ordinal} is above {head}, where lane {}/{lane} ends; name where it ends, or less",
                    streamlet.id()
                )));
            }
        }
    }
    Ok(())
}

/// Which pin of a stream makes room for a new one, if there is none: of those that were lost longer ago than they were to wait,
/// the first.
fn outlived<'a>(
    stream: &str,
    there: &'a [PinRecord],
    pin: &PinRecord,
) -> Result<Option<&'a PinRecord>, WireError> {
    let others = || there.iter().filter(|one| one.name != pin.name);
    let positions: usize = others().map(|one| one.positions.len()).sum();
    if positions + pin.positions.len() > MAX_PIN_POSITIONS {
        return Err(invalid(format!(
            "pins of stream \"{stream}\" have {positions} positions, and with those of another {} there would be more than {MAX_PIN_POSITIONS}; delete a pin, `kera pin list --stream {stream}` shows them",
            pin.positions.len()
        )));
    }
    let is_moved = others().count() < there.len();
    if is_moved || there.len() < MAX_PINS {
        return Ok(None);
    }
    let lost_ms = |one: &&PinRecord| one.lost.as_ref().map_or(u64::MAX, |loss| loss.at_ms);
    let is_outlived =
        |one: &&PinRecord| lost_ms(one).saturating_add(one.max_age_ms) < pin.created_ms;
    let outlived = others().filter(is_outlived).min_by_key(lost_ms);
    outlived.map(Some).ok_or_else(|| {
        invalid(format!(
            "stream \"{stream}\" has {} pins, and at most {MAX_PINS} are kept; delete one, `kera pin list --stream {stream}` shows them",
            there.len()
        ))
    })
}

/// Whether a pin says what another one is to say: where, for whom, for how long.
fn is_as_asked(there: &PinRecord, asked: &PinRecord) -> bool {
    let bare = |pin: &PinRecord| PinRecord {
        created_ms: 0,
        lost: None,
        revision: 0,
        ..pin.clone()
    };
    bare(there) == bare(asked)
}

/// Whether retention waits for more with a pin than with the one whose place it takes.
fn holds_more(old: Option<&PinRecord>, pin: &PinRecord) -> bool {
    let is_held = |old: &PinRecord| {
        let mut positions = old.positions.iter().zip(&pin.positions);
        old.policy == PinPolicy::Wait
            && old.lost.is_none()
            && old.positions.len() == pin.positions.len()
            && positions.all(|(old, new)| old <= new)
    };
    pin.policy == PinPolicy::Wait && !old.is_some_and(is_held)
}

fn put(
    store: &dyn MetadataStore,
    stream: &str,
    config: &StreamConfig,
    mut pin: PinRecord,
    replaces: Option<u64>,
    is_full: bool,
    maker: &Maker,
) -> Result<(PinRecord, bool), WireError> {
    maker.check(stream, pin.policy)?;
    let now_ms = pin.created_ms;
    for _ in 0..ATTEMPTS {
        let there = store.pins(Some(pin.stream)).map_err(of_store)?;
        let old = there.iter().find(|one| one.name == pin.name);
        let found = old.map_or(0, |old| old.created_ms);
        if let (Some(replaces), Some(old)) = (replaces, old)
            && replaces != found
            && is_as_asked(old, &pin)
        {
            let lost = match &old.lost {
                Some(loss) => Some(loss.clone()),
                None => gone(store, config, old).map_err(made_for_all_that)?,
            };
            let made = PinRecord {
                lost,
                ..old.clone()
            };
            return Ok((made, replaces != 0));
        }
        if replaces.is_some_and(|replaces| replaces != found) {
            return Err(invalid(format!(
                "pin {:?} of stream \"{stream}\" was made, moved or deleted by somebody else since it was looked at, and is left as it is; `kera pin describe {stream} {}` shows it, ask again if it is to be replaced",
                pin.name, pin.name
            )));
        }
        if let Some(old) = old {
            maker.check(stream, old.policy)?;
        }
        // One that is moved may free what it has held back, if retention waits for it.
        if is_full && old.is_none_or(|old| old.policy == PinPolicy::Warn) {
            let text = format!(
                "the disk is full, and stream \"{stream}\" has no pin {:?} that retention waits for, so that a move would free something; free space first",
                pin.name
            );
            return Err(WireError::new(ErrorCode::StorageFull, text));
        }
        let outlived = outlived(stream, &there, &pin)?;
        // What is told apart by when it was set is told apart also where that was a moment ago.
        pin.created_ms = match found.saturating_sub(now_ms) {
            // Also where another broker's clock is a little ahead.
            ahead if found >= now_ms && ahead < CLOCKS_APART_MS => found + 1,
            _ => now_ms,
        };
        if let Some(gone) = gone(store, config, &pin)? {
            return Err(invalid(format!(
                "lane {}/{} begins above ordinal {}: what the pin needs there is gone already; name where the lane begins, or more",
                gone.streamlet, gone.lane, gone.ordinal
            )));
        }
        let revision = |key, revision| Compare::revision(Key::Pin(key), revision);
        let mut compare = vec![revision(pin.key(), old.map_or(0, |old| old.revision))];
        let mut write = vec![Write::PutPin(pin.clone())];
        if holds_more(old, &pin)
            && let Some(record) = store.stream(pin.stream).map_err(of_store)?
        {
            // Written as it is: a trim that was decided without this pin is refused.
            let unchanged = Compare::revision(Key::Stream(record.id), record.revision);
            compare.push(unchanged);
            write.push(Write::PutStream(record));
        }
        if let Some(outlived) = outlived {
            compare.push(revision(outlived.key(), outlived.revision));
            write.push(Write::DeletePin(outlived.key()));
        }
        match store.commit(Transaction::new(compare, write)) {
            Ok(committed) => pin.revision = committed.revision,
            Err(MetadataError::Conflict(conflict @ kera_metadata::Conflict::Absent { .. })) => {
                return Err(of_store(conflict.into()));
            }
            Err(MetadataError::Conflict(_)) => continue,
            Err(error) => return Err(of_store(error)),
        }
        // A lane may begin later since it was looked at.
        pin.lost = gone(store, config, &pin).map_err(made_for_all_that)?;
        if let Some(loss) = &pin.lost {
            // Also if somebody has recorded it, or moved the pin, since then: what it needs here is gone.
            lost_at_once(store, stream, &pin, loss);
        }
        return Ok((pin, old.is_some()));
    }
    Err(too_many_changes())
}

/// A pin is there of which nobody knows whether it has all that it needs: no answer says that it has.
fn made_for_all_that(error: WireError) -> WireError {
    let text = format!(
        "the pin is made, and whether all is there that it needs could not be read: {}; ask again, or see `kera pin list`",
        error.message
    );
    WireError::new(error.code, text)
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

/// Deletes a pin, and answers it as it was. If the request says when its positions were set, one that was made or moved since is
/// left alone.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if there is none, or another one by now; [`ErrorCode::NotAuthorized`] if retention waits for it and the maker may
/// not end that; or what the metadata store answers.
pub(crate) async fn delete_pin(
    shared: &Arc<Shared>,
    stream: &Arc<Stream>,
    request: v1::DeletePinRequest,
    maker: Maker,
) -> Result<v1::PinInfo, WireError> {
    check_pin_name(&request.name).map_err(invalid)?;
    super::is_meant(stream, &request.stream_id)?;
    let record = stream.record.load_full();
    let (store, of) = (shared.metadata.clone(), record.clone());
    let deleted = blocking(move || {
        let key = PinKey {
            stream: of.id,
            name: request.name,
        };
        delete(&*store, &of.name, key, request.created_ms, &maker)
    });
    Ok(info(&record.name, &record.config, &deleted.await?, 0))
}

fn delete(
    store: &dyn MetadataStore,
    stream: &str,
    key: PinKey,
    created_ms: Option<u64>,
    maker: &Maker,
) -> Result<PinRecord, WireError> {
    for _ in 0..ATTEMPTS {
        let found = store.read(&Key::Pin(key.clone())).map_err(of_store)?;
        let Some(Record::Pin(pin)) = found else {
            return Err(invalid(format!(
                "stream \"{stream}\" has no pin {:?}; `kera pin list --stream {stream}` shows those that there are",
                key.name
            )));
        };
        if created_ms.is_some_and(|meant| meant != pin.created_ms) {
            return Err(invalid(format!(
                "pin {:?} of stream \"{stream}\" was made or moved since it was looked at, and is left as it is; `kera pin describe {stream} {}` shows it, ask again if it is to be deleted",
                key.name, key.name
            )));
        }
        maker.check(stream, pin.policy)?;
        let compare = Compare::revision(Key::Pin(key.clone()), pin.revision);
        let write = Write::DeletePin(key.clone());
        match store.commit(Transaction::new(vec![compare], vec![write])) {
            Ok(_) => return Ok(pin),
            Err(MetadataError::Conflict(_)) => {}
            Err(error) => return Err(of_store(error)),
        }
    }
    Err(too_many_changes())
}

/// A pin, as it is told.
pub(super) fn info(
    stream: &str,
    config: &StreamConfig,
    pin: &PinRecord,
    held_bytes: u64,
) -> v1::PinInfo {
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
        held: Vec::new(),
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
    use kera_protocol::ids::{LaneId, LaneKey, StreamletId};

    use super::*;

    fn at(streamlet: u32, lane: u32, ordinal: Ordinal) -> v1::LanePosition {
        v1::LanePosition {
            streamlet,
            lane,
            ordinal,
        }
    }

    #[test]
    fn whoever_has_a_long_name_makes_pins_too() {
        let subject = format!("User:CN={}\n,O=\u{e9}", "\u{e9}".repeat(MAX_PIN_TEXT));
        let owner = owner_text(&subject);
        assert!(owner.starts_with("User:CN=\u{e9}") && owner.len() <= MAX_PIN_TEXT);
        let pin = PinRecord {
            owner,
            ..pin(
                &StreamRecord::new("clicks", config(), 1),
                "long",
                PinPolicy::Warn,
                0,
            )
        };
        assert_eq!(pin.check(), Ok(()));
        assert_eq!(owner_text("User:a\tb"), "User:a?b");
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

    /// Lane 1/1 begins there.
    fn trim(store: &MemoryStore, stream: &StreamRecord, ordinal: Ordinal) {
        let streamlet = StreamletId(1);
        let epoch = store.streamlet(stream.id, streamlet).unwrap().unwrap();
        let start = Write::PutLaneStart {
            key: LaneKey {
                stream: stream.id,
                streamlet,
                lane: LaneId(1),
            },
            ordinal,
        };
        let trim = Transaction::new(vec![Compare::epoch(&epoch)], vec![start]);
        store.commit(trim).unwrap();
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
            put(
                &store,
                "clicks",
                &config(),
                pin,
                None,
                false,
                &maker(may_wait),
            )
        };
        let refused = make(PinPolicy::Wait, 1, false).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotAuthorized);
        assert!(!make(PinPolicy::Warn, 1, false).unwrap().1);
        let (moved, is_moved) = make(PinPolicy::Wait, 2, true).unwrap();
        assert!(is_moved);
        assert_eq!(store.pins(None).unwrap(), std::slice::from_ref(&moved));
        assert_eq!(
            moved.created_ms, 8,
            "set in the same moment, it is another one"
        );
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
            put(&store, "clicks", &config(), pin, None, false, &maker(true))
        };
        for number in 0..MAX_PINS {
            make(&format!("chk-{number}"), 5).unwrap();
        }
        let refused = make("one-more", 5).unwrap_err();
        assert!(refused.message.contains("at most 100"), "{refused}");
        make("chk-1", 6).unwrap();
        trim(&store, &stream, 6);
        let refused = make("chk-2", 5).unwrap_err();
        assert!(
            refused.message.contains("lane 1/1 begins above"),
            "{refused}"
        );
        make("chk-2", 6).unwrap();
    }

    #[test]
    fn a_pin_that_was_made_anew_is_neither_moved_nor_deleted_by_who_knew_the_one_before() {
        let store = MemoryStore::new();
        let stream = made(&store);
        let make = |at, created_ms, replaces| {
            let pin = PinRecord {
                created_ms,
                ..pin(&stream, "chk-1", PinPolicy::Wait, at)
            };
            put(
                &store,
                "clicks",
                &config(),
                pin,
                replaces,
                false,
                &maker(true),
            )
        };
        let delete = |created_ms| {
            let key = PinKey {
                stream: stream.id,
                name: "chk-1".to_owned(),
            };
            super::delete(&store, "clicks", key, created_ms, &maker(true))
        };
        let (first, moved) = make(1, 10, Some(0)).unwrap();
        assert!(!moved);
        // The same attempt again, whose answer was lost: it is there, and as old as it was.
        let (again, moved) = make(1, 11, Some(0)).unwrap();
        assert_eq!((again, moved), (first.clone(), false));
        let refused = make(2, 11, Some(0)).unwrap_err();
        assert!(refused.message.contains("somebody else"), "{refused}");
        let (second, moved) = make(2, 12, Some(10)).unwrap();
        assert!(moved);
        assert_eq!(make(2, 13, Some(10)).unwrap(), (second.clone(), true));
        // What was sent before comes late.
        make(1, 14, Some(0)).unwrap_err();
        let refused = delete(Some(10)).unwrap_err();
        assert!(refused.message.contains("made or moved since"), "{refused}");
        assert_eq!(store.pins(None).unwrap(), std::slice::from_ref(&second));
        assert_eq!(delete(Some(12)).unwrap(), second);
        make(2, 15, Some(12)).unwrap_err();
        make(2, 15, None).unwrap();
        delete(None).unwrap();
        let full = |at| {
            let pin = pin(&stream, "chk-1", PinPolicy::Wait, at);
            put(&store, "clicks", &config(), pin, None, true, &maker(true))
        };
        assert_eq!(full(1).unwrap_err().code, ErrorCode::StorageFull);
        make(1, 16, None).unwrap();
        full(2).unwrap();
        // To move one that holds nothing back frees nothing, and takes of what deletions need.
        let warns = pin(&stream, "warns", PinPolicy::Warn, 1);
        let put_warns = |is_full| {
            let pin = warns.clone();
            put(
                &store,
                "clicks",
                &config(),
                pin,
                None,
                is_full,
                &maker(true),
            )
        };
        put_warns(false).unwrap();
        assert_eq!(put_warns(true).unwrap_err().code, ErrorCode::StorageFull);
    }

    #[test]
    fn a_pin_that_holds_more_back_writes_its_stream_so_that_trims_decided_before_are_refused() {
        let store = MemoryStore::new();
        let stream = made(&store);
        let revision = || store.stream(stream.id).unwrap().unwrap().revision;
        let writes = |policy, at| {
            let (before, pin) = (revision(), pin(&stream, "chk-1", policy, at));
            put(&store, "clicks", &config(), pin, None, false, &maker(true)).unwrap();
            revision() != before
        };
        assert!(!writes(PinPolicy::Warn, 5), "it keeps nothing back");
        assert!(writes(PinPolicy::Wait, 5));
        assert!(
            !writes(PinPolicy::Wait, 6),
            "what lies above was kept before"
        );
        assert!(writes(PinPolicy::Wait, 5));
        let there = store.pins(None).unwrap().remove(0);
        let loss = below_start(&there, 2, [(StreamletId(1), LaneId(1), 6)], 1).unwrap();
        lost_at_once(&store, "clicks", &there, &loss);
        assert!(
            writes(PinPolicy::Wait, 6),
            "nothing waited for the lost one"
        );
        let found = store.stream(stream.id).unwrap().unwrap();
        let as_it_was = StreamRecord {
            revision: found.revision,
            ..stream.clone()
        };
        assert_eq!(found, as_it_was);
    }

    #[test]
    fn a_broker_whose_clock_lies_before_its_stream_makes_no_pin() {
        let made_ms = 2 * CLOCKS_APART_MS;
        assert_eq!(
            stamp("clicks", made_ms, CLOCKS_APART_MS),
            Ok(CLOCKS_APART_MS)
        );
        let refused = stamp("clicks", made_ms, CLOCKS_APART_MS - 1).unwrap_err();
        assert!(refused.message.contains("clock"), "{refused}");
    }

    #[test]
    fn an_attempt_that_is_repeated_says_what_its_pin_has_lost_meanwhile() {
        let store = MemoryStore::new();
        let stream = made(&store);
        let make = || {
            let pin = pin(&stream, "chk-1", PinPolicy::Wait, 5);
            put(
                &store,
                "clicks",
                &config(),
                pin,
                Some(0),
                false,
                &maker(true),
            )
        };
        make().unwrap();
        trim(&store, &stream, 6);
        let (made, _) = make().unwrap();
        assert_eq!(made.lost.unwrap().ordinal, 5);
    }

    #[test]
    fn pins_of_a_stream_have_so_many_positions_and_those_lost_long_ago_make_room() {
        let store = MemoryStore::new();
        let stream = made(&store);
        let large = |name: &str, positions| PinRecord {
            positions: vec![0; positions],
            ..pin(&stream, name, PinPolicy::Warn, 0)
        };
        let there = [large("a", MAX_PIN_POSITIONS - 4), large("b", 3)];
        let of = |pin: PinRecord| outlived("clicks", &there, &pin).map(|found| found.is_some());
        assert_eq!(of(large("c", 1)), Ok(false));
        assert!(of(large("c", 2)).unwrap_err().message.contains("positions"));
        assert_eq!(
            of(large("a", MAX_PIN_POSITIONS - 3)),
            Ok(false),
            "it is moved"
        );

        let mut full: Vec<_> = (0..MAX_PINS).map(|at| large(&at.to_string(), 1)).collect();
        let at = |created_ms| PinRecord {
            created_ms,
            ..large("new", 1)
        };
        let room = |full: &[PinRecord], pin: &PinRecord| {
            let found = outlived("clicks", full, pin);
            found.map(|found| found.map(|pin| pin.name.clone()))
        };
        for (name, at_ms) in [(4, 20), (2, 10)] {
            full[name].lost = Some(kera_metadata::PinLoss {
                streamlet: StreamletId(0),
                lane: LaneId(0),
                ordinal: 0,
                cause: LossCause::Trim,
                at_ms,
            });
        }
        let old = DEFAULT_PIN_AGE_MS + 11;
        assert_eq!(room(&full, &at(old)), Ok(Some("2".to_owned())));
        assert!(room(&full, &at(old - 1)).is_err());
    }
}
