//! The batch codec: round trips, known bytes, and everything that can be wrong with a batch.

use kera_protocol::batch::{
    BatchBuilder, BatchError, BatchHeader, Compression, HEADER_BYTES, Header, MIN_RECORD_BYTES,
    NewRecord, ProducerStamp, Records, batches, check_produced, check_timestamps, compress, crc32c,
    decompress, mark_transactional, next_sequence, patch, patch_append_time, validate_records,
    verify, write_stamp,
};
use kera_protocol::ids::Epoch;
use proptest::collection::vec;
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;
const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

#[derive(Clone, Debug, PartialEq)]
struct Owned {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    timestamp: i64,
}

fn encode(records: &[Owned], compression: Compression, stamp: ProducerStamp) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for record in records {
        let headers: Vec<Header<'_>> = record
            .headers
            .iter()
            .map(|(key, value)| Header {
                key,
                value: value.as_deref(),
            })
            .collect();
        let new = NewRecord {
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
            timestamp: record.timestamp,
        };
        let before = builder.len();
        builder.push(&new).expect("a small record fits");
        assert!(builder.len() - before <= BatchBuilder::record_bound(&new));
    }
    builder
        .finish(compression, stamp)
        .expect("the batch has records")
        .to_vec()
}

fn decode(batch: &[u8]) -> Result<Vec<Owned>, BatchError> {
    let mut scratch = Vec::new();
    Records::open(batch, LIMIT, &mut scratch)?
        .enumerate()
        .map(|(index, record)| {
            let record = record?;
            assert_eq!(record.ordinal_delta as usize, index);
            Ok(Owned {
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record
                    .headers()
                    .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                    .collect(),
                timestamp: record.timestamp,
            })
        })
        .collect()
}

fn record() -> impl Strategy<Value = Owned> {
    (
        proptest::option::of(vec(any::<u8>(), 0..40)),
        proptest::option::of(vec(any::<u8>(), 0..300)),
        vec(
            (".{0,8}", proptest::option::of(vec(any::<u8>(), 0..9))),
            0..3,
        ),
        prop_oneof![
            1_600_000_000_000_i64..1_600_000_100_000,
            Just(0),
            Just(i64::MIN),
            Just(i64::MAX)
        ],
    )
        .prop_map(|(key, value, headers, timestamp)| Owned {
            key,
            value,
            headers,
            timestamp,
        })
}

fn repetitive(count: usize) -> Vec<Owned> {
    (0..count)
        .map(|index| Owned {
            key: Some(format!("key-{}", index % 7).into_bytes()),
            value: Some(format!("{index:0>90}").into_bytes()),
            headers: Vec::new(),
            timestamp: 1_700_000_000_000 + index as i64,
        })
        .collect()
}

/// Writes a new record count and a CRC that fits it.
fn lie_about_count(batch: &mut [u8], count: i32) {
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

proptest! {
    #[test]
    fn what_is_written_is_read(records in vec(record(), 1..40), codec in 0..CODECS.len()) {
        let stamp = ProducerStamp { producer_id: 7, producer_epoch: 2, base_sequence: 99 };
        let batch = encode(&records, CODECS[codec], stamp);
        let header = validate_records(&batch, LIMIT, &mut Vec::new()).unwrap();
        prop_assert_eq!(check_produced(&header, &batch), Ok(()));
        prop_assert_eq!(header.total_bytes, batch.len());
        prop_assert_eq!(header.record_count as usize, records.len());
        prop_assert_eq!(header.producer_id, 7);
        prop_assert_eq!(header.base_sequence, 99);
        prop_assert_eq!(header.base_timestamp, records[0].timestamp);
        prop_assert_eq!(
            header.max_timestamp,
            records.iter().map(|record| record.timestamp).max().unwrap()
        );
        prop_assert_eq!(decode(&batch).unwrap(), records);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = verify(&bytes);
        let _ = decode(&bytes);
        let _ = validate_records(&bytes, LIMIT, &mut Vec::new());
        for batch in batches(&bytes) {
            let _ = batch;
        }
        for codec in CODECS {
            let _ = decompress(codec, &bytes, 1 << 16, &mut Vec::new());
        }
    }

    #[test]
    fn a_batch_with_random_records_never_panics(
        body in vec(any::<u8>(), 0..200),
        codec in 0_u8..8,
        count in 1_i32..400,
    ) {
        let mut batch = encode(&repetitive(1), Compression::None, ProducerStamp::NONE);
        batch.truncate(HEADER_BYTES);
        batch.extend_from_slice(&body);
        let length = (batch.len() - 12) as i32;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[22] = codec;
        lie_about_count(&mut batch, count);
        let _ = validate_records(&batch, 1 << 16, &mut Vec::new());
        if let Ok(records) = decode(&batch) {
            prop_assert_eq!(records.len() as i32, count);
        }
    }

    #[test]
    fn a_flipped_bit_is_found(at in 0_usize..2_000, bit in 0..8) {
        let mut batch = encode(&repetitive(20), Compression::None, ProducerStamp::NONE);
        let at = 16 + at % (batch.len() - 16);
        batch[at] ^= 1_u8 << bit;
        prop_assert!(verify(&batch).is_err());
    }
}

#[test]
fn a_batch_cut_at_any_byte_is_an_error() {
    for codec in CODECS {
        let batch = encode(&repetitive(30), codec, ProducerStamp::NONE);
        for cut in 0..batch.len() {
            let part = &batch[..cut];
            assert!(verify(part).is_err(), "{codec:?} cut to {cut}");
            assert!(decode(part).is_err(), "{codec:?} cut to {cut}");
            let mut walk = batches(part);
            if cut > 0 {
                assert!(walk.next().is_some_and(|found| found.is_err()));
            }
            assert!(walk.next().is_none());
            assert_eq!(walk.consumed(), 0);
        }
    }
}

#[test]
fn records_cut_at_any_byte_are_an_error() {
    let batch = encode(&repetitive(5), Compression::None, ProducerStamp::NONE);
    let header = BatchHeader::peek(&batch).unwrap();
    for cut in HEADER_BYTES..batch.len() {
        let read: Result<Vec<_>, _> = Records::new(&header, &batch[HEADER_BYTES..cut]).collect();
        assert!(matches!(read, Err(BatchError::BadRecord { .. })), "{cut}");
    }
}

#[test]
fn compression_makes_repetitive_records_smaller_and_is_left_out_when_it_does_not() {
    let plain = encode(&repetitive(500), Compression::None, ProducerStamp::NONE);
    for codec in &CODECS[1..] {
        let batch = encode(&repetitive(500), *codec, ProducerStamp::NONE);
        assert!(batch.len() * 2 < plain.len(), "{codec:?}: {}", batch.len());
        let header = verify(&batch).unwrap();
        assert_eq!(header.compression(), Ok(*codec));
        let tiny = encode(&repetitive(1)[..1], *codec, ProducerStamp::NONE);
        assert!(tiny.len() <= encode(&repetitive(1), Compression::None, ProducerStamp::NONE).len());
    }
}

#[test]
fn decompression_stops_at_the_limit() {
    let zeros = vec![Owned {
        key: None,
        value: Some(vec![0; 4 << 20]),
        headers: Vec::new(),
        timestamp: 0,
    }];
    for codec in &CODECS[1..] {
        let batch = encode(&zeros, *codec, ProducerStamp::NONE);
        assert!(batch.len() < 1 << 20, "{codec:?} compresses zeros");
        let mut scratch = Vec::new();
        let error = Records::open(&batch, 1 << 16, &mut scratch).unwrap_err();
        assert!(matches!(error, BatchError::TooLarge(_)), "{codec:?}");
        assert!(scratch.len() <= (1 << 16) + 1, "{codec:?}");
        assert!(validate_records(&batch, 8 << 20, &mut Vec::new()).is_ok());
    }
}

#[test]
fn a_record_count_that_lies_is_found() {
    for codec in CODECS {
        let honest = encode(&repetitive(50), codec, ProducerStamp::NONE);
        for count in [1, 49, 51, 5_000, i32::MAX] {
            let mut batch = honest.clone();
            lie_about_count(&mut batch, count);
            assert!(verify(&batch).is_ok(), "the CRC fits the lie");
            assert!(
                validate_records(&batch, LIMIT, &mut Vec::new()).is_err(),
                "{codec:?} claims {count}"
            );
        }
    }
    for codec in CODECS {
        let mut batch = encode(&repetitive(50), codec, ProducerStamp::NONE);
        lie_about_count(&mut batch, i32::MAX);
        let header = BatchHeader::peek(&batch).unwrap();
        assert!(check_produced(&header, &batch).is_err(), "{codec:?}");
    }
}

#[test]
fn a_batch_of_a_transaction_has_a_producer() {
    let stamp = ProducerStamp {
        producer_id: 7,
        producer_epoch: 0,
        base_sequence: 0,
    };
    for (stamp, expected) in [(stamp, true), (ProducerStamp::NONE, false)] {
        let mut batch = encode(&repetitive(2), Compression::None, stamp);
        mark_transactional(&mut batch);
        let header = BatchHeader::peek(&batch).unwrap();
        assert_eq!(check_produced(&header, &batch).is_ok(), expected);
    }
}

#[test]
fn records_that_begin_as_no_compressed_ones_do_are_found_by_their_first_bytes() {
    for codec in &CODECS[1..] {
        let honest = encode(&repetitive(50), *codec, ProducerStamp::NONE);
        let header = BatchHeader::peek(&honest).unwrap();
        assert_eq!(check_produced(&header, &honest), Ok(()));
        // Snappy is told from others by its length alone.
        for garbage in [&b"\xff\xff\xff\xff\xffgarbage"[..], b""] {
            let mut batch = [&honest[..HEADER_BYTES], garbage].concat();
            let length = (batch.len() - 12) as i32;
            batch[8..12].copy_from_slice(&length.to_be_bytes());
            let header = BatchHeader::peek(&batch).unwrap();
            assert!(check_produced(&header, &batch).is_err(), "{codec:?}");
        }
    }
}

#[test]
fn no_codec_gives_more_than_its_bound() {
    // What compresses best: one byte again and again.
    let zeros = vec![0; 4 << 20];
    for codec in &CODECS[1..] {
        let stored = compress(*codec, &zeros);
        let mut batch = encode(&repetitive(50), *codec, ProducerStamp::NONE);
        batch.truncate(HEADER_BYTES);
        batch.extend_from_slice(&stored);
        let length = (batch.len() - 12) as i32;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        // As many records as could be in there.
        lie_about_count(&mut batch, (zeros.len() / MIN_RECORD_BYTES) as i32);
        let header = BatchHeader::peek(&batch).unwrap();
        assert_eq!(check_produced(&header, &batch), Ok(()), "{codec:?}");
    }
}

#[test]
fn times_far_from_the_brokers_clock_are_found() {
    let now = 1_700_000_000_000;
    let batch = encode(&repetitive(2), Compression::None, ProducerStamp::NONE);
    let header = |base_timestamp, max_timestamp| BatchHeader {
        base_timestamp,
        max_timestamp,
        ..BatchHeader::peek(&batch).unwrap()
    };
    let check = |base, max, before, after| check_timestamps(&header(base, max), now, before, after);
    for (base, max) in [(now - 10, now + 10), (-1, -1), (now, -1)] {
        assert_eq!(check(base, max, 10, 10), Ok(()));
    }
    for (base, max) in [(0, i64::MAX), (i64::MIN, now * 1000)] {
        assert_eq!(check(base, max, 0, 0), Ok(()), "nothing is asked for");
    }
    let early = check(now - 11, now, 10, 0).unwrap_err().to_string();
    assert!(early.contains("11 ms behind") && early.contains("timestamp_before_max_ms"));
    let late = check(now, now * 1000, 0, 10).unwrap_err().to_string();
    assert!(late.contains("ahead of") && late.contains("timestamp_after_max_ms"));
    assert!(check(i64::MIN, i64::MIN, 10, 0).is_err());
    assert!(check(i64::MAX, i64::MAX, 0, 10).is_err());
}

#[test]
fn what_no_producer_may_send_is_refused() {
    let stamp = ProducerStamp {
        producer_id: 1,
        producer_epoch: 0,
        base_sequence: 0,
    };
    let batch = encode(&repetitive(2), Compression::None, stamp);
    let header = BatchHeader::peek(&batch).unwrap();
    assert_eq!(check_produced(&header, &batch), Ok(()));
    for broken in [
        BatchHeader {
            last_ordinal_delta: 2,
            ..header
        },
        BatchHeader {
            attributes: 0x20,
            ..header
        },
        BatchHeader {
            attributes: 5,
            ..header
        },
        BatchHeader {
            base_sequence: -1,
            ..header
        },
        BatchHeader {
            producer_epoch: -1,
            ..header
        },
        BatchHeader {
            producer_id: -2,
            ..header
        },
    ] {
        assert!(check_produced(&broken, &batch).is_err(), "{broken:?}");
    }
}

#[test]
fn patching_keeps_the_checksum_and_stamping_renews_it() {
    let mut batch = encode(&repetitive(3), Compression::None, ProducerStamp::NONE);
    patch(&mut batch, 1 << 40, Epoch(9));
    let header = verify(&batch).unwrap();
    assert_eq!((header.base_ordinal, header.epoch), (1 << 40, Epoch(9)));
    assert_eq!(header.next_ordinal(), (1 << 40) + 3);

    let stamp = ProducerStamp {
        producer_id: 5,
        producer_epoch: 1,
        base_sequence: i32::MAX - 1,
    };
    write_stamp(&mut batch, stamp);
    let header = verify(&batch).unwrap();
    assert_eq!(header.producer_id, 5);
    assert_eq!(header.last_sequence(), 0, "sequences wrap to zero");
    assert_eq!(next_sequence(i32::MAX - 1, 3), 1);

    patch_append_time(&mut batch, 42);
    assert!(verify(&batch).unwrap().is_append_time());
    assert!(
        decode(&batch)
            .unwrap()
            .iter()
            .all(|record| record.timestamp == 42)
    );
}

#[test]
fn batches_are_found_one_after_the_other() {
    let mut run = Vec::new();
    for count in [1, 5, 2] {
        run.extend(encode(
            &repetitive(count),
            Compression::None,
            ProducerStamp::NONE,
        ));
    }
    let counts: Vec<u32> = batches(&run)
        .map(|found| found.unwrap().0.record_count)
        .collect();
    assert_eq!(counts, [1, 5, 2]);
    let mut walk = batches(&run);
    assert_eq!(walk.by_ref().count(), 3);
    assert_eq!(walk.consumed(), run.len());
}

#[test]
fn an_empty_builder_finishes_nothing_and_one_is_reusable() {
    let mut builder = BatchBuilder::with_capacity(1 << 10);
    assert!(
        builder
            .finish(Compression::None, ProducerStamp::NONE)
            .is_err()
    );
    for round in 0..3 {
        let new = NewRecord {
            value: Some(b"v"),
            timestamp: round,
            ..NewRecord::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
        assert_eq!(builder.push(&new), Ok(1));
        let batch = builder
            .finish(Compression::None, ProducerStamp::NONE)
            .unwrap();
        assert_eq!(verify(&batch).unwrap().base_timestamp, round);
        assert!(builder.is_empty());
        let buffer = batch.try_into_mut().expect("nobody else holds it");
        builder = BatchBuilder::from_buffer(buffer);
    }
}

#[test]
fn a_batch_no_larger_than_allowed() {
    let mut builder = BatchBuilder::new();
    let half = vec![0; 33 << 20];
    let new = NewRecord {
        value: Some(&half),
        ..NewRecord::default()
    };
    assert!(builder.push(&new).is_ok());
    assert!(matches!(builder.push(&new), Err(BatchError::BadLength(_))));
    assert_eq!(builder.record_count(), 1);
}

/// One record with the fields below gives this CRC in other implementations of the format.
#[test]
fn a_batch_known_from_kafkas_clients() {
    let mut bytes = vec![0_u8; 8]; // base ordinal
    bytes.extend([0, 0, 0, 70, 0, 0, 0, 0, 2]); // length, epoch, magic
    bytes.extend([84, 121, 97, 253]); // CRC-32C
    bytes.extend([0; 6]); // attributes, last ordinal delta
    bytes.extend(1_479_847_795_000_i64.to_be_bytes()); // base timestamp
    bytes.extend([0; 22]); // max timestamp, producer id, epoch, sequence
    bytes.extend([0, 0, 0, 1]); // record count
    bytes.extend([
        40, 0, 10, 0, 8, 1, 2, 3, 4, 6, 5, 6, 7, 2, 6, 8, 9, 10, 4, 11, 12,
    ]);

    let header = validate_records(&bytes, LIMIT, &mut Vec::new()).unwrap();
    assert_eq!(header.total_bytes, bytes.len());
    let expected = Owned {
        key: Some(vec![1, 2, 3, 4]),
        value: Some(vec![5, 6, 7]),
        headers: vec![("\x08\x09\x0a".to_owned(), Some(vec![11, 12]))],
        timestamp: 1_479_847_795_005,
    };
    assert_eq!(decode(&bytes).unwrap(), [expected]);
}

/// The smallest streams that each format's specification allows, put together by hand.
#[test]
fn compressed_bytes_of_other_encoders_are_read() {
    let text = b"twenty-one plain byte";
    assert_eq!(text.len(), 21);

    let mut raw_snappy = vec![21, 20 << 2];
    raw_snappy.extend(text);

    let mut lz4 = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82, 21, 0, 0, 0x80];
    lz4.extend(text);
    lz4.extend([0; 4]);

    let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, 21, (21 << 3) | 1, 0, 0];
    zstd.extend(text);

    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1, 21, 0, 0xea, 0xff];
    gzip.extend(text);
    gzip.extend(crc32(text).to_le_bytes());
    gzip.extend(21_u32.to_le_bytes());

    for (codec, stored) in [
        (Compression::Snappy, raw_snappy),
        (Compression::Lz4, lz4),
        (Compression::Zstd, zstd.clone()),
        (Compression::Gzip, gzip),
    ] {
        let mut out = Vec::new();
        decompress(codec, &stored, 100, &mut out).unwrap();
        assert_eq!(out, text, "{codec:?}");
        assert!(
            decompress(codec, &stored, 20, &mut out).is_err(),
            "{codec:?}"
        );
        assert!(
            decompress(codec, &stored, 21, &mut out).is_ok(),
            "{codec:?}"
        );
    }

    let mut two_frames = zstd.clone();
    two_frames.extend(&zstd);
    let mut out = Vec::new();
    decompress(Compression::Zstd, &two_frames, 100, &mut out).unwrap();
    assert_eq!(out.len(), 42);
}

/// The CRC of gzip, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
