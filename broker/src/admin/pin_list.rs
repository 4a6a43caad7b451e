//! Listing pins: a page of them at a time, or all that the caller may see.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kera_metadata::{Key, PinKey, PinRecord, Record};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;

use super::pins::info;
use crate::clock::retention_ms;
use crate::data::catalog::{Stream, stream_id};
use crate::pins::remembered::{counted, told};
use crate::pins::{HeldBytes, asked, held};
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Pins that are read at once of the metadata store: each may have half a million bytes.
const READ: usize = 256;
/// Comes after the names of all pins.
const AFTER_ALL: &str = "\u{10ffff}";
/// Positions of a page, unless a single pin has more: some MiB.
const POSITIONS_OF_PAGE: usize = 200_000;
/// Positions of an answer that does not come in pages.
const POSITIONS_AT_ONCE: usize = 1_000_000;

/// Pins of one stream, each with what it holds back here.
type OfStream = (Arc<Stream>, Vec<(PinRecord, HeldBytes)>);

/// The pins of a stream, or of all that `may_see` names, each with the bytes that it holds back; and the brokers that did not
/// say what they hold back. With `local` only what this broker holds back.
///
/// # Errors
/// [`ErrorCode::UnknownStream`]; [`ErrorCode::InvalidArgument`] if all at once would be too much; or what the metadata store
/// answers.
pub(crate) async fn list_pins(
    shared: &Arc<Shared>,
    request: v1::ListPinsRequest,
    may_see: impl Fn(&str) -> bool,
) -> Result<v1::ListPinsResponse, WireError> {
    let page = Page::of(shared, &request)?;
    let turns = match page.is_local {
        true => &shared.pins.local_lists,
        false => &shared.pins.lists,
    };
    let _turn = turns.take().await;
    let mut listed = v1::ListPinsResponse {
        // The clock that pins are stamped by.
        now_ms: retention_ms(),
        ..Default::default()
    };
    let (pins, more) = page.read(shared, &may_see).await?;
    if let Some(last) = more {
        listed.more_after_stream = last.stream.as_bytes().to_vec().into();
        listed.more_after_name = last.name;
    }
    let mut infos = Vec::new();
    for (stream, pins) in pins {
        let record = stream.record.load_full();
        let owners = Arc::new(shared.owners_of(&stream));
        for (pin, bytes) in pins {
            if page.is_local && page.name.is_none() && bytes.is_empty() {
                continue;
            }
            let mut info = info(&record.name, &record.config, &pin, bytes.values().sum());
            if page.is_local {
                info.held = told(&bytes);
            }
            infos.push((owners.clone(), info));
        }
    }
    if !page.is_local {
        let me = shared.data.directory.me();
        let owners = infos.iter().flat_map(|(owners, _)| owners.iter().copied());
        let others: BTreeSet<u32> = owners.filter(|owner| *owner != me).collect();
        for (broker, answer) in asked::ask(shared, others, &request).await {
            match answer {
                Ok(answer) => add(&mut infos, broker, answer.pins),
                Err(error) => {
                    tracing::debug!(broker, %error, "a broker does not say what it holds back for pins");
                    listed.silent_brokers.push(broker);
                }
            }
        }
    }
    listed.pins = infos.into_iter().map(|(_, info)| info).collect();
    if page.most.is_none() {
        listed
            .pins
            .sort_unstable_by(|a, b| (&a.stream, &a.name).cmp(&(&b.stream, &b.name)));
    }
    Ok(listed)
}

/// Adds what another broker holds back.
fn add(infos: &mut [(Arc<Vec<u32>>, v1::PinInfo)], broker: u32, told: Vec<v1::PinInfo>) {
    let told = told.into_iter();
    let told: HashMap<_, _> = told
        .map(|pin| ((pin.stream, pin.name), (pin.created_ms, pin.held)))
        .collect();
    for (owners, info) in infos {
        if let Some((of, held)) = told.get(&(info.stream.clone(), info.name.clone())) {
            info.held_bytes += counted(owners, broker, (*of, held), info.created_ms);
        }
    }
}

/// What is asked for.
struct Page {
    stream: Option<StreamId>,
    name: Option<String>,
    after: Option<PinKey>,
    /// All at once if absent.
    most: Option<usize>,
    is_local: bool,
    with_positions: bool,
}

impl Page {
    fn of(shared: &Shared, request: &v1::ListPinsRequest) -> Result<Self, WireError> {
        let stream = match request.stream.as_str() {
            "" => None,
            name => Some(super::named(shared, name)?.id()),
        };
        if stream.is_none() && !request.name.is_empty() {
            return Err(invalid(
                "a pin is asked for by its name, and no stream; name the stream",
            ));
        }
        let after = match request.after_stream.is_empty() {
            true => None,
            false => Some(PinKey {
                stream: stream_id(&request.after_stream)?,
                name: request.after_name.clone(),
            }),
        };
        Ok(Self {
            stream,
            name: (!request.name.is_empty()).then(|| request.name.clone()),
            after,
            most: (request.max_pins > 0).then_some(request.max_pins as usize),
            is_local: request.local,
            with_positions: !request.local && !request.without_positions,
        })
    }

    /// The pins, by stream; and the last of them if there are more. What may not be seen is held some at a time at most.
    async fn read(
        &self,
        shared: &Arc<Shared>,
        may_see: impl Fn(&str) -> bool,
    ) -> Result<(Vec<OfStream>, Option<PinKey>), WireError> {
        let mut found: Vec<OfStream> = Vec::new();
        let (mut count, mut positions) = (0, 0);
        let mut after = self.after.clone();
        let hidden = |id: StreamId| {
            let stream = shared.data.catalog.get(id);
            stream.is_some_and(|stream| !may_see(&stream.name()))
        };
        if self.stream.is_some_and(hidden) {
            return Ok((found, None));
        }
        loop {
            let (pins, is_last) = self.part(shared, after.clone()).await?;
            after = pins.last().map(PinRecord::key).or(after);
            if let Some(last) = after.as_mut().filter(|last| hidden(last.stream)) {
                // Its other pins need not be read.
                last.name = AFTER_ALL.to_owned();
            }
            let mut more = None;
            for (stream, mut pins) in by_stream(shared, pins) {
                if !may_see(&stream.name()) {
                    continue;
                }
                let room = self.room(&pins, count, positions)?;
                let is_full = room < pins.len();
                pins.truncate(room);
                count += room;
                if self.with_positions {
                    positions += pins.iter().map(|pin| pin.positions.len()).sum::<usize>();
                }
                let of_last = found.last().and_then(|(_, pins)| pins.last());
                let last = pins.last().or(of_last.map(|(pin, _)| pin));
                more = last.filter(|_| is_full).map(PinRecord::key);
                if !pins.is_empty() {
                    found.push(self.with_held(shared, stream, pins).await?);
                }
                if more.is_some() {
                    break;
                }
            }
            if is_last || more.is_some() {
                return Ok((found, more));
            }
        }
    }

    /// How many of these pins, each with so many positions, the page has room for: one at least if it has none yet.
    fn room(
        &self,
        pins: &[PinRecord],
        count: usize,
        mut positions: usize,
    ) -> Result<usize, WireError> {
        let mut room = 0;
        for pin in pins {
            if self.with_positions {
                positions += pin.positions.len();
            }
            match self.most {
                Some(most) => {
                    let is_first = count + room == 0;
                    let is_full = count + room >= most || positions > POSITIONS_OF_PAGE;
                    if is_full && !is_first {
                        break;
                    }
                }
                None if positions > POSITIONS_AT_ONCE => {
                    return Err(invalid(
                        "the pins have too many positions for one answer; ask for those of a stream, without positions, or in pages",
                    ));
                }
                None => {}
            }
            room += 1;
        }
        Ok(room)
    }

    /// Some pins after this one, and whether there are no others.
    async fn part(
        &self,
        shared: &Shared,
        after: Option<PinKey>,
    ) -> Result<(Vec<PinRecord>, bool), WireError> {
        let store = shared.metadata.clone();
        let (stream, name) = (self.stream, self.name.clone());
        let read = move || match (stream, name) {
            (Some(stream), Some(name)) => {
                let pin = store.read(&Key::Pin(PinKey { stream, name }))?;
                let pin = pin.into_iter().filter_map(|record| match record {
                    Record::Pin(pin) => Some(pin),
                    _ => None,
                });
                Ok((pin.collect(), true))
            }
            (Some(stream), None) => {
                let mut pins = store.pins(Some(stream))?;
                pins.retain(|pin| after.as_ref().is_none_or(|after| pin.key() > *after));
                Ok((pins, true))
            }
            (None, _) => {
                let pins = store.pins_after(after.as_ref(), READ)?;
                let is_last = pins.len() < READ;
                Ok((pins, is_last))
            }
        };
        blocking(move || read().map_err(|error| metadata_error(&error))).await
    }

    async fn with_held(
        &self,
        shared: &Arc<Shared>,
        stream: Arc<Stream>,
        pins: Vec<PinRecord>,
    ) -> Result<OfStream, WireError> {
        let (here, with_positions) = (shared.clone(), self.with_positions);
        blocking(move || {
            let held = held(&here, &stream, &pins, retention_ms());
            let pins = pins.into_iter().zip(held);
            let pins = pins.map(|(mut pin, held)| {
                if !with_positions {
                    pin.positions = Vec::new();
                }
                (pin, held)
            });
            let pins = pins.collect();
            Ok((stream, pins))
        })
        .await
    }
}

/// Pins by their stream, without those of streams that this broker has not heard of.
fn by_stream(shared: &Shared, pins: Vec<PinRecord>) -> Vec<(Arc<Stream>, Vec<PinRecord>)> {
    let mut found: Vec<(Arc<Stream>, Vec<PinRecord>)> = Vec::new();
    for pin in pins {
        match found.last_mut() {
            Some((stream, pins)) if stream.id() == pin.stream => pins.push(pin),
            _ => {
                if let Some(stream) = shared.data.catalog.get(pin.stream) {
                    found.push((stream, vec![pin]));
                }
            }
        }
    }
    found
}

fn invalid(text: &str) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

#[cfg(test)]
mod tests {
    use kera_metadata::PinPolicy;

    use super::*;

    fn pin(positions: usize) -> PinRecord {
        PinRecord {
            stream: StreamId(uuid::Uuid::from_u128(1)),
            name: "chk-1".to_owned(),
            job: String::new(),
            owner: "User:ann".to_owned(),
            created_ms: 7,
            positions: vec![0; positions],
            max_age_ms: 1,
            max_bytes: 1,
            policy: PinPolicy::Warn,
            lost: None,
            revision: 1,
        }
    }

    fn page(most: Option<usize>, with_positions: bool) -> Page {
        Page {
            stream: None,
            name: None,
            after: None,
            most,
            is_local: false,
            with_positions,
        }
    }

    #[test]
    fn a_page_has_so_many_pins_and_positions_and_one_pin_at_least() {
        let half = [
            pin(POSITIONS_OF_PAGE / 2),
            pin(POSITIONS_OF_PAGE / 2),
            pin(1),
        ];
        let room = |most, with_positions, count, positions| {
            let page = page(Some(most), with_positions);
            page.room(&half, count, positions).unwrap()
        };
        assert_eq!(room(10, true, 0, 0), 2);
        assert_eq!(room(10, true, 1, 1), 1);
        assert_eq!(room(10, false, 1, 0), 3);
        assert_eq!(room(2, false, 1, 0), 1);
        assert_eq!(room(1, false, 1, 0), 0);
        let large = [pin(POSITIONS_OF_PAGE + 1), pin(1)];
        assert_eq!(page(Some(10), true).room(&large, 0, 0).unwrap(), 1);
        let whole = [pin(POSITIONS_AT_ONCE), pin(1)];
        assert_eq!(page(None, true).room(&whole[..1], 0, 0).unwrap(), 1);
        let refused = page(None, true).room(&whole, 0, 0).unwrap_err();
        assert!(refused.message.contains("in pages"), "{refused}");
        assert_eq!(page(None, false).room(&whole, 0, 0).unwrap(), 2);
    }

    #[test]
    fn what_others_hold_back_is_added_for_the_pin_that_they_know() {
        let info = |held: &[(u32, u64)]| v1::PinInfo {
            stream: "clicks".to_owned(),
            name: "chk-1".to_owned(),
            created_ms: 7,
            held_bytes: 3,
            held: held
                .iter()
                .map(|(streamlet, bytes)| v1::StreamletBytes {
                    streamlet: *streamlet,
                    bytes: *bytes,
                })
                .collect(),
            ..Default::default()
        };
        let mut infos = [(Arc::new(vec![1, 2]), info(&[]))];
        // Streamlet 0 is broker 1's, and counted there.
        add(&mut infos, 2, vec![info(&[(0, 50), (1, 4)])]);
        assert_eq!(infos[0].1.held_bytes, 7);
        let moved = v1::PinInfo {
            created_ms: 8,
            ..info(&[(1, 4)])
        };
        add(&mut infos, 2, vec![moved]);
        assert_eq!(infos[0].1.held_bytes, 7);
    }
}
