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
mod tests;
