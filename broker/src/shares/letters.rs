//! Dead letters as records: what is given up, with where it comes from in headers.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_coordinator::share::{GivenUp, GivenUpFor};
use kera_protocol::batch::{
    BatchBuilder, BatchError, BatchHeader, Compression, Header, MAX_BATCH_BYTES, NewRecord,
    ProducerStamp, Record, Records, batches,
};
use kera_protocol::error::WireError;
use kera_protocol::ids::{Epoch, Ordinal};
use kera_streamlet::{LaneReadError, LaneReadSpec, Located};

use super::table::SharePlace;
use crate::data::fetch::code_of;

/// Kafka's names of the headers.
const TOPIC: &str = "__dlq.errors.topic";
const PARTITION: &str = "__dlq.errors.partition";
const OFFSET: &str = "__dlq.errors.offset";
const GROUP: &str = "__dlq.errors.group";
const DELIVERIES: &str = "__dlq.errors.delivery.count";
const MESSAGE: &str = "__dlq.errors.message";

/// Bytes that are read of a lane at a time.
const READ_BYTES: usize = 1 << 20;
/// Bytes of a batch's header, and some more.
const BATCH_ALLOWANCE: usize = 128;

/// Most bytes of the two lengths of a record's header, as [`BatchBuilder::record_bound`] counts them.
const HEADER_BYTES: usize = 10;
/// What a record that is looked for takes in memory beside its bytes, about.
const RECORD_BYTES: usize = 128;

/// What a dead letter has of its record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// The record as it is stored. A producer's compressed headers of no bytes would take far more memory one by one.
    Record(Vec<u8>),
    /// A letter with the record would be larger than the topic takes.
    TooLarge,
    /// It is not there any more, or cannot be read.
    Gone,
}

impl Copied {
    fn record(&self) -> Option<Record<'_>> {
        let Self::Record(bytes) = self else {
            return None;
        };
        // It was read once: only its own fields count now.
        let alone = BatchHeader {
            base_ordinal: 0,
            total_bytes: 0,
            epoch: Epoch(0),
            crc: 0,
            attributes: 0,
            last_ordinal_delta: u32::MAX,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 1,
        };
        Records::new(&alone, bytes).next()?.ok()
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Record(bytes) => bytes.len() + RECORD_BYTES,
            Self::TooLarge | Self::Gone => RECORD_BYTES,
        }
    }
}

/// An upper bound of the bytes of a letter that has a record, and these headers. Nothing is allocated for the record's own.
fn bound_with(record: &Record<'_>, own: &[Header<'_>]) -> usize {
    let without_its_headers = NewRecord {
        key: record.key,
        value: record.value,
        headers: own,
        timestamp: 0,
    };
    let headers = record.headers();
    let headers = headers.map(|h| HEADER_BYTES + h.key.len() + h.value.map_or(0, <[u8]>::len));
    BatchBuilder::record_bound(&without_its_headers) + headers.sum::<usize>()
}

/// Records that were looked for in a lane.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Those that were found.
    pub(super) found: BTreeMap<Ordinal, Copied>,
    /// All below were looked for.
    pub(super) until: Ordinal,
    /// What those that were found take in memory, about.
    pub(super) bytes: usize,
}

/// How much of records is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of memory after which no further record is taken.
    pub(super) most: usize,
    /// Bytes of a batch of the topic that is to have them: a larger record is not taken.
    pub(super) limit: usize,
}

/// Reads the records from `first` to `last`, or as many of the first of them as there is room for. Those that are damaged, or are
/// not there any more, are not found. Waits for the disk.
///
/// # Errors
/// They may be read later, or by another owner.
pub(super) fn read_copies(
    place: &SharePlace,
    first: Ordinal,
    last: Ordinal,
    room: Room,
) -> Result<Copies, WireError> {
    let mut copies = Copies {
        until: first,
        ..Copies::default()
    };
    while copies.until <= last {
        let spec = LaneReadSpec {
            lane: place.lane,
            from: Located {
                ordinal: copies.until,
                at: None,
            },
            end_ordinal: last + 1,
            max_bytes: READ_BYTES,
            cached_only: false,
        };
        let found = match place.streamlet.read(spec) {
            Ok(found) if found.bytes > 0 => found,
            // The first of them were trimmed; the others are still there.
            Err(LaneReadError::OutOfRange { log_start, .. }) if log_start > copies.until => {
                copies.until = log_start;
                continue;
            }
            Ok(_) => break,
            Err(error) => {
                let code = code_of(&error, place.streamlet.has_copies());
                match code.is_retryable() {
                    // Those before it have their letters first.
                    true if copies.until > first => return Ok(copies),
                    true => return Err(WireError::new(code, error.to_string())),
                    false => break,
                }
            }
        };
        let (whole, before) = (found.bufs.concat(), copies.until);
        for batch in batches(&whole) {
            let Ok((header, bytes)) = batch else {
                copies.until = last + 1;
                return Ok(copies);
            };
            if !header.is_control() {
                let taken = copies.take(bytes, header.base_ordinal, (first, last), room);
                // What of the batch was not taken has its turn in the next round.
                if taken.is_ok_and(|is_whole| !is_whole) {
                    return Ok(copies);
                }
            }
            copies.until = copies.until.max(header.next_ordinal());
        }
        if copies.until == before {
            break;
        }
    }
    copies.until = last + 1;
    Ok(copies)
}

impl Copies {
    /// Nothing below `until` was found.
    pub(super) fn none(until: Ordinal) -> Self {
        Self {
            until,
            ..Self::default()
        }
    }

    /// Takes those records of a batch that are wanted and were not looked for yet; false if there is room for no more.
    fn take(
        &mut self,
        batch: &[u8],
        base: Ordinal,
        (first, last): (Ordinal, Ordinal),
        room: Room,
    ) -> Result<bool, BatchError> {
        let mut scratch = Vec::new();
        let mut records = Records::open(batch, MAX_BATCH_BYTES, &mut scratch)?;
        while let Some(record) = records.next_raw() {
            let (record, raw) = record?;
            let ordinal = base + u64::from(record.ordinal_delta);
            if !(first..=last).contains(&ordinal) || ordinal < self.until {
                continue;
            }
            let copied = match bound_with(&record, &[]) > room.limit {
                true => Copied::TooLarge,
                false => Copied::Record(raw.to_vec()),
            };
            self.bytes += copied.bytes();
            self.found.insert(ordinal, copied);
            self.until = ordinal + 1;
            if self.bytes >= room.most {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A record that is to be a dead letter.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) ordinal: Ordinal,
    pub(super) deliveries: u16,
    pub(super) why: GivenUpFor,
    /// The record itself, or why it is not there, if it is to be copied.
    pub(super) copied: Option<Copied>,
}

impl Letter {
    pub(super) fn of(run: &GivenUp, ordinal: Ordinal, copied: Option<Copied>) -> Self {
        Self {
            ordinal,
            deliveries: run.deliveries,
            why: run.why,
            copied,
        }
    }

    fn message(&self) -> &'static str {
        match self.why {
            GivenUpFor::Rejection => "a member of the group rejected the record",
            GivenUpFor::Deliveries => {
                "the record was delivered as often as the group allows, and nobody accepted it"
            }
        }
    }
}

/// Where dead letters come from.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) topic: String,
    pub(super) partition: String,
    pub(super) group: String,
}

impl Origin {
    /// A batch of the first letters, as many as fit into `limit` bytes, and how many these are. A letter that is larger with
    /// its record goes without it.
    ///
    /// # Errors
    /// The first one is larger without it too, or there is none.
    pub(super) fn batch(
        &self,
        letters: &[Letter],
        limit: usize,
        now_ms: i64,
    ) -> Result<(Bytes, usize), BatchError> {
        let limit = limit.saturating_sub(BATCH_ALLOWANCE);
        let mut builder = BatchBuilder::new();
        let mut count = 0;
        for letter in letters {
            let text;
            let (offset, deliveries) = (letter.ordinal.to_string(), letter.deliveries.to_string());
            let mut own = [
                (TOPIC, self.topic.as_str()),
                (PARTITION, &self.partition),
                (OFFSET, &offset),
                (GROUP, &self.group),
                (DELIVERIES, &deliveries),
                (MESSAGE, letter.message()),
            ]
            .map(header);
            let record = letter.copied.as_ref().and_then(Copied::record);
            let record = record.filter(|record| bound_with(record, &own) <= limit);
            let without = match &letter.copied {
                Some(Copied::Gone) => Some("it could not be read to be copied"),
                Some(_) if record.is_none() => Some("it is too large to be copied"),
                _ => None,
            };
            if let Some(why) = without {
                text = format!("{}; {why}", letter.message());
                own[own.len() - 1] = header((MESSAGE, &text));
            }
            // Those of an earlier dead letter come first: whoever looks for the last of a name finds these.
            let mut headers: Vec<Header<'_>> = Vec::new();
            headers.extend(record.iter().flat_map(Record::headers));
            headers.extend_from_slice(&own);
            let written = NewRecord {
                key: record.and_then(|record| record.key),
                value: record.and_then(|record| record.value),
                headers: &headers,
                timestamp: now_ms,
            };
            let bound = BatchBuilder::record_bound(&written);
            if !builder.is_empty() && builder.len() + bound > limit {
                break;
            }
            builder.push(&written)?;
            count += 1;
        }
        let batch = builder.finish(Compression::None, ProducerStamp::NONE)?;
        Ok((batch, count))
    }
}

fn header<'a>((key, value): (&'a str, &'a str)) -> Header<'a> {
    Header {
        key,
        value: Some(value.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use kera_log_segments::read::ReadError;

    use super::*;

    const ROOM: Room = Room {
        most: 1 << 20,
        limit: 1 << 20,
    };

    fn origin() -> Origin {
        Origin {
            topic: "orders".into(),
            partition: "3".into(),
            group: "g".into(),
        }
    }

    /// A batch of one record with so many bytes of value and headers of these names.
    fn stored(value: usize, headers: &[&str], compression: Compression) -> Bytes {
        let headers = headers.iter().map(|key| Header { key, value: None });
        let headers: Vec<_> = headers.collect();
        let mut builder = BatchBuilder::new();
        let record = NewRecord {
            key: Some(b"k"),
            value: Some(&vec![7; value]),
            headers: &headers,
            timestamp: 1,
        };
        builder.push(&record).unwrap();
        builder.finish(compression, ProducerStamp::NONE).unwrap()
    }

    fn letter(ordinal: Ordinal, value: Option<usize>) -> Letter {
        let copied = value.map(|bytes| {
            let mut copies = Copies::default();
            let batch = stored(bytes, &["h"], Compression::None);
            copies.take(&batch, 0, (0, 0), ROOM).unwrap();
            copies.found.remove(&0).expect("it is found")
        });
        Letter {
            ordinal,
            deliveries: 2,
            why: GivenUpFor::Rejection,
            copied,
        }
    }

    fn batches_of(letters: &[Letter], limit: usize) -> Vec<(Bytes, u64)> {
        let (mut left, mut batches) = (letters, Vec::new());
        while !left.is_empty() {
            let (batch, count) = origin().batch(left, limit, 5).unwrap();
            batches.push((batch, count as u64));
            left = &left[count..];
        }
        batches
    }

    /// Offsets, lengths of values, and messages of the records of batches.
    fn read(batches: &[(Bytes, u64)]) -> Vec<(String, Option<usize>, String)> {
        let mut read = Vec::new();
        for (batch, letters) in batches {
            let mut scratch = Vec::new();
            let records = Records::open(batch, MAX_BATCH_BYTES, &mut scratch).unwrap();
            let records: Vec<_> = records.map(Result::unwrap).collect();
            assert_eq!(records.len() as u64, *letters);
            for record in records {
                let headers: Vec<_> = record.headers().collect();
                let text = |name: &str| {
                    let found = headers.iter().rfind(|header| header.key == name);
                    let value = found.and_then(|header| header.value).expect("it is there");
                    String::from_utf8(value.to_vec()).unwrap()
                };
                assert_eq!(
                    (text(TOPIC), text(PARTITION)),
                    ("orders".into(), "3".into())
                );
                assert_eq!((text(GROUP), text(DELIVERIES)), ("g".into(), "2".into()));
                read.push((text(OFFSET), record.value.map(<[u8]>::len), text(MESSAGE)));
            }
        }
        read
    }

    #[test]
    fn batches_are_no_larger_than_the_topic_takes_and_what_is_larger_goes_without_its_record() {
        let limit = 2_000;
        let letters = [
            letter(1, Some(10)),
            letter(2, None),
            letter(3, Some(1_200)),
            letter(4, Some(1_200)),
            letter(5, Some(3_000)),
        ];
        let batches = batches_of(&letters, limit);
        assert!(batches.len() > 2, "{}", batches.len());
        assert!(batches.iter().all(|(batch, _)| batch.len() <= limit));
        let rejected = letters[0].message().to_owned();
        let found = read(&batches);
        let expected: Vec<_> = [(1, Some(10)), (2, None), (3, Some(1_200)), (4, Some(1_200))]
            .map(|(at, bytes): (u64, _)| (at.to_string(), bytes, rejected.clone()))
            .into();
        assert_eq!(found[..4], expected);
        assert_eq!((found[4].0.as_str(), found[4].1), ("5", None));
        assert!(found[4].2.contains("too large"), "{:?}", found[4]);
    }

    /// A producer sends millions of headers of no bytes as a few thousand bytes. What a copy of them takes is counted, and no
    /// more than the topic takes is copied at all.
    #[test]
    fn headers_of_no_bytes_are_counted_and_take_no_more_than_the_topic_does() {
        let few = stored(1, &vec![""; 1_000], Compression::Gzip);
        let many = stored(1, &vec![""; 500_000], Compression::Gzip);
        assert!(many.len() < 2_000, "{} bytes are sent", many.len());
        let room = Room {
            most: 10_000,
            ..ROOM
        };
        let mut copies = Copies::default();
        let taken = (0..100).take_while(|at| copies.take(&few, *at, (0, 99), room).unwrap());
        let taken = taken.count();
        let bytes = |copied: &Copied| match copied {
            Copied::Record(bytes) => bytes.len(),
            Copied::TooLarge | Copied::Gone => 0,
        };
        let held: usize = copies.found.values().map(bytes).sum();
        assert!(
            held < 2 * room.most,
            "{held} bytes of {taken} records and one"
        );
        let mut copies = Copies::default();
        assert!(copies.take(&many, 0, (0, 0), room).unwrap());
        assert_eq!(copies.found[&0], Copied::TooLarge);
        // As it is if the topic takes less by now.
        let letter = Letter {
            copied: copies.found.remove(&0),
            ..letter(0, None)
        };
        let found = read(&batches_of(&[letter], 2_000));
        assert_eq!(found[0].1, None);
        assert!(found[0].2.contains("too large"), "{:?}", found[0]);
    }

    #[test]
    fn a_letter_without_its_record_says_why() {
        let letter = Letter {
            copied: Some(Copied::Gone),
            ..letter(0, None)
        };
        let found = read(&batches_of(&[letter], 2_000));
        assert_eq!(found[0].1, None);
        assert!(found[0].2.contains("could not be read"), "{:?}", found[0]);
    }

    #[test]
    fn what_another_owner_has_or_a_disk_refuses_for_now_is_no_record_that_is_gone() {
        let later = [
            LaneReadError::NotOwner,
            LaneReadError::NotRecovered,
            LaneReadError::Awaited {
                error: ReadError::Damaged {
                    file: "1.0.log".into(),
                    offset: 0,
                    ordinal: 0,
                    reason: "the data ends here".into(),
                },
            },
            LaneReadError::Unreadable {
                cause: "a file".into(),
            },
        ];
        for error in later {
            assert!(code_of(&error, false).is_retryable(), "{error}");
        }
        let of_range = LaneReadError::OutOfRange {
            ordinal: 5,
            log_start: 0,
            head: 3,
        };
        for error in [LaneReadError::Deleted, of_range] {
            assert!(!code_of(&error, false).is_retryable(), "{error}");
        }
    }
}
