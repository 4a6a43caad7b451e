//! What must hold for any bytes that claim to be batches.

use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, HEADER_BYTES, Header, NewRecord, ProducerStamp, Record,
    Records, batches, check_produced, patch, validate_records, verify, write_stamp,
};
use kera_protocol::ids::Epoch;

/// Most bytes that records may decompress to here.
const LIMIT: usize = 1 << 20;

/// Walks `data` as a run of batches, then as one batch whose header is made to fit, so that the
/// bytes reach the parts behind length and checksum.
///
/// # Panics
/// If a rule is broken.
pub fn check(data: &[u8]) {
    let mut walk = batches(data);
    let mut at = 0;
    while let Some(Ok((header, batch))) = walk.next() {
        assert_eq!(batch.len(), header.total_bytes);
        assert_eq!(batch, &data[at..at + batch.len()]);
        at += batch.len();
        whole(batch);
    }
    assert_eq!(walk.consumed(), at);
    assert!(at <= data.len());

    if let Some(forged) = forge(data) {
        assert!(
            verify(&forged).is_ok(),
            "a batch with its own checksum does not verify"
        );
        whole(&forged);
    }
}

/// `data` with length, magic and checksum that fit it.
fn forge(data: &[u8]) -> Option<Vec<u8>> {
    let mut forged = data.get(..HEADER_BYTES)?.to_vec();
    forged.extend_from_slice(&data[HEADER_BYTES..]);
    let length = i32::try_from(forged.len() - 12).ok()?;
    forged[8..12].copy_from_slice(&length.to_be_bytes());
    forged[16] = 2;
    let header = BatchHeader::peek(&forged).ok()?;
    write_stamp(&mut forged, stamp(&header));
    Some(forged)
}

fn stamp(header: &BatchHeader) -> ProducerStamp {
    ProducerStamp {
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
    }
}

/// `batch` has the bytes that its header says; whether they are right is to be seen.
fn whole(batch: &[u8]) {
    let header = BatchHeader::peek(batch).expect("it was walked");
    let _ = check_produced(&header, batch);
    let _ = (header.next_ordinal(), header.last_sequence());
    stays_as_it_was_when_patched(batch);

    let mut scratch = Vec::new();
    let valid = validate_records(batch, LIMIT, &mut scratch).is_ok();
    let mut scratch = Vec::new();
    let Ok(records) = Records::open(batch, LIMIT, &mut scratch) else {
        assert!(!valid, "a valid batch does not open");
        return;
    };
    let (mut read, mut failed) = (Vec::new(), false);
    for record in records {
        assert!(!failed, "a record follows an error");
        match record {
            Ok(record) => {
                assert!(record.ordinal_delta <= header.last_ordinal_delta);
                assert_eq!(record.headers().len(), record.headers().count());
                read.push(record);
            }
            Err(_) => failed = true,
        }
    }
    assert!(failed || read.len() == header.record_count as usize);
    if valid {
        assert!(!failed, "a valid batch holds a record that does not read");
        match read.is_empty() {
            // What compaction leaves of a batch; a producer may not send one.
            true => assert!(check_produced(&header, batch).is_err()),
            false => survives_being_built_again(&header, &read),
        }
    }
}

/// The broker writes ordinal and epoch in place; neither touches what the checksum covers.
fn stays_as_it_was_when_patched(batch: &[u8]) {
    let mut patched = batch.to_vec();
    patch(&mut patched, 1 << 40, Epoch(7));
    assert_eq!(verify(&patched).is_ok(), verify(batch).is_ok());
    let header = BatchHeader::peek(&patched).expect("it had a header before");
    assert_eq!((header.base_ordinal, header.epoch), (1 << 40, Epoch(7)));
}

fn survives_being_built_again(header: &BatchHeader, records: &[Record<'_>]) {
    let mut builder = BatchBuilder::new();
    for record in records {
        let headers: Vec<Header<'_>> = record.headers().collect();
        let new = NewRecord {
            key: record.key,
            value: record.value,
            headers: &headers,
            timestamp: record.timestamp,
        };
        let before = builder.len();
        builder
            .push(&new)
            .expect("what one batch held, another holds");
        assert!(builder.len() - before <= BatchBuilder::record_bound(&new));
    }
    let built = builder
        .finish(Compression::None, stamp(header))
        .expect("it holds records");
    let mut scratch = Vec::new();
    validate_records(&built, LIMIT * 2, &mut scratch).expect("what was built is valid");
    let mut scratch = Vec::new();
    let again = Records::open(&built, LIMIT * 2, &mut scratch).expect("what was built opens");
    for (old, new) in records.iter().zip(again) {
        let new = new.expect("what was built reads");
        assert_eq!(
            (old.key, old.value, old.timestamp),
            (new.key, new.value, new.timestamp)
        );
        assert!(old.headers().eq(new.headers()));
    }
}
