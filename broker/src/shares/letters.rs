//! Dead letters as records: what is given up, with where it comes from in headers.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_coordinator::share::{GivenUp, GivenUpFor};
use kera_protocol::batch::{
    BatchBuilder, BatchError, Compression, Header, MAX_BATCH_BYTES, NewRecord, ProducerStamp,
    Records, batches,
};
use kera_protocol::ids::Ordinal;
use kera_streamlet::{LaneReadSpec, Located};

use super::table::SharePlace;

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

/// What a dead letter has of its record.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Copied {
    fn bytes(&self) -> usize {
        let some = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.len() + some(value));
        some(&self.key) + some(&self.value) + headers.sum::<usize>()
    }
}

/// Records that were looked for in a lane.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Those that were found.
    pub(super) found: BTreeMap<Ordinal, Copied>,
    /// All below were looked for.
    pub(super) until: Ordinal,
    /// Bytes that were found.
    pub(super) bytes: usize,
}

/// Reads the records from `first` to `last`, or the first of them if they have more than `most` bytes. Those that cannot be
/// read, or are not there any more, are not found. Waits for the disk.
pub(super) fn read_copies(
    place: &SharePlace,
    first: Ordinal,
    last: Ordinal,
    most: usize,
) -> Copies {
    let mut copies = Copies {
        until: first,
        ..Copies::default()
    };
    let mut scratch = Vec::new();
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
            Ok(_) | Err(_) => break,
        };
        let (whole, before) = (found.bufs.concat(), copies.until);
        for batch in batches(&whole) {
            let Ok((header, bytes)) = batch else {
                copies.until = last + 1;
                return copies;
            };
            if !header.is_control() {
                let base = header.base_ordinal;
                let taken = copies.take(bytes, base, (first, last), most, &mut scratch);
                // What of the batch was not taken has its turn in the next round.
                if taken.is_ok_and(|is_whole| !is_whole) {
                    return copies;
                }
            }
            copies.until = copies.until.max(header.next_ordinal());
        }
        if copies.until == before {
            break;
        }
    }
    copies.until = last + 1;
    copies
}

impl Copies {
    /// Takes those records of a batch that are wanted and were not looked for yet; false if there is room for no more.
    fn take(
        &mut self,
        batch: &[u8],
        base: Ordinal,
        (first, last): (Ordinal, Ordinal),
        most: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<bool, BatchError> {
        let mut scratch = std::mem::take(scratch);
        for record in Records::open(batch, MAX_BATCH_BYTES, &mut scratch)? {
            let record = record?;
            let ordinal = base + u64::from(record.ordinal_delta);
            if !(first..=last).contains(&ordinal) || ordinal < self.until {
                continue;
            }
            let headers = record.headers();
            let headers = headers.map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec)));
            let copied = Copied {
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: headers.collect(),
            };
            self.bytes += copied.bytes();
            self.found.insert(ordinal, copied);
            self.until = ordinal + 1;
            if self.bytes >= most {
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
    /// The record itself, if it is to be copied and was found.
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
    /// Batches of at most `limit` bytes, each with the number of its letters. A letter that is larger with its record goes
    /// without it.
    ///
    /// # Errors
    /// One that is larger without it too.
    pub(super) fn batches(
        &self,
        letters: &[Letter],
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<(Bytes, u64)>, BatchError> {
        let limit = limit.saturating_sub(BATCH_ALLOWANCE);
        let mut builder = BatchBuilder::new();
        let mut done = Vec::new();
        let mut finish = |builder: &mut BatchBuilder| {
            let letters = u64::from(builder.record_count());
            let batch = builder.finish(Compression::None, ProducerStamp::NONE)?;
            done.push((batch, letters));
            Ok::<(), BatchError>(())
        };
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
            let copied = letter.copied.as_ref();
            let copied_headers = copied.map_or(&[][..], |copied| &copied.headers);
            // Those of an earlier dead letter come first: whoever looks for the last of a name finds these.
            let mut headers: Vec<Header<'_>> = copied_headers
                .iter()
                .map(|(key, value)| Header {
                    key,
                    value: value.as_deref(),
                })
                .collect();
            headers.extend_from_slice(&own);
            let mut record = NewRecord {
                key: copied.and_then(|copied| copied.key.as_deref()),
                value: copied.and_then(|copied| copied.value.as_deref()),
                headers: &headers,
                timestamp: now_ms,
            };
            if BatchBuilder::record_bound(&record) > limit && copied.is_some() {
                text = format!("{}; it is too large to be copied", letter.message());
                own[own.len() - 1] = header((MESSAGE, &text));
                record = NewRecord {
                    headers: &own,
                    timestamp: now_ms,
                    ..NewRecord::default()
                };
            }
            let bound = BatchBuilder::record_bound(&record);
            if !builder.is_empty() && builder.len() + bound > limit {
                finish(&mut builder)?;
            }
            builder.push(&record)?;
        }
        if !builder.is_empty() {
            finish(&mut builder)?;
        }
        Ok(done)
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
    use super::*;

    fn origin() -> Origin {
        Origin {
            topic: "orders".into(),
            partition: "3".into(),
            group: "g".into(),
        }
    }

    fn letter(ordinal: Ordinal, value: Option<usize>) -> Letter {
        Letter {
            ordinal,
            deliveries: 2,
            why: GivenUpFor::Rejection,
            copied: value.map(|bytes| Copied {
                key: Some(b"k".to_vec()),
                value: Some(vec![7; bytes]),
                headers: vec![("h".into(), None)],
            }),
        }
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
        let batches = origin().batches(&letters, limit, 5).unwrap();
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
}
