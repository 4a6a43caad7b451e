//! Readers against a broker that misbehaves when told to.

mod fake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Fake, values};
use futures::StreamExt;
use kera_consumer::{ConsumeError, Cursor, Fetch, Header, LaneRange, Reader, ReaderBuilder, Start};
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp};
use kera_protocol::error::ErrorCode;

const BOTH: [Fetch; 2] = [Fetch::Push, Fetch::Pull];

fn reader(fake: &Arc<Fake>) -> ReaderBuilder {
    Reader::builder()
        .bootstrap(&fake.bootstrap)
        .stream("s")
        .follow(false)
}

/// Ordinals by lane, in the order delivered.
async fn drain(reader: &mut Reader) -> BTreeMap<(u32, u32), Vec<u64>> {
    let mut seen: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
    while let Some(batch) = reader.next_batch().await.unwrap() {
        let lane = (batch.lane().streamlet.0, batch.lane().lane.0);
        seen.entry(lane).or_default().extend(values(&batch));
    }
    seen
}

#[tokio::test]
async fn reads_all_lanes_to_their_end() {
    for fetch in BOTH {
        let fake = Fake::start(2, 2).await;
        fake.fill((0, 0), 1_000, 7);
        fake.fill((0, 1), 10, 10);
        fake.fill((1, 0), 500, 100);
        let mut reader = reader(&fake)
            .fetch(fetch)
            .fetch_bytes(512)
            .open()
            .await
            .unwrap();
        let seen = drain(&mut reader).await;
        assert_eq!(seen[&(0, 0)], (0..1_000).collect::<Vec<_>>());
        assert_eq!(seen[&(0, 1)], (0..10).collect::<Vec<_>>());
        assert_eq!(seen[&(1, 0)], (0..500).collect::<Vec<_>>());
        assert_eq!(seen.get(&(1, 1)), None);
        let metrics = reader.metrics();
        assert_eq!((metrics.records, metrics.lag), (1_510, 0));
        assert_eq!(metrics.buffered_bytes, 0);
        assert!(
            reader.next_batch().await.unwrap().is_none(),
            "it stays at the end"
        );
    }
}

#[tokio::test]
async fn follows_what_is_appended_later_and_lanes_that_are_added() {
    for fetch in BOTH {
        let fake = Fake::start(1, 1).await;
        let mut reader = reader(&fake)
            .fetch(fetch)
            .follow(true)
            .open()
            .await
            .unwrap();
        for _ in 0..20 {
            fake.fill((0, 0), 3, 3);
            let batch = reader.next_batch().await.unwrap().unwrap();
            assert_eq!(batch.len(), 3);
        }
        fake.change(|state| {
            state.lanes.insert((0, 1), Default::default());
        });
        fake.fill((0, 1), 5, 5);
        let batch = reader.next_batch().await.unwrap().unwrap();
        assert_eq!(
            (batch.lane().lane.0, values(&batch)),
            (1, vec![0, 1, 2, 3, 4])
        );
    }
}

#[tokio::test]
async fn a_range_in_the_middle_of_batches_is_clipped() {
    for fetch in BOTH {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 30, 10);
        let mut reader = reader(&fake)
            .fetch(fetch)
            .start(Start::Ordinal(14))
            .open()
            .await
            .unwrap();
        fake.fill((0, 0), 10, 10);
        let batch = reader.next_batch().await.unwrap().unwrap();
        assert_eq!(
            (batch.first_ordinal(), batch.next_ordinal(), batch.len()),
            (14, 20, 6)
        );
        assert_eq!(values(&batch), (14..20).collect::<Vec<_>>());
        assert_eq!(
            drain(&mut reader).await[&(0, 0)],
            (20..30).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn lost_connections_lose_and_repeat_nothing() {
    for fetch in BOTH {
        let fake = Fake::start(1, 2).await;
        fake.fill((0, 0), 2_000, 10);
        fake.fill((0, 1), 2_000, 10);
        let mut reader = reader(&fake)
            .fetch(fetch)
            .fetch_bytes(2_000)
            .memory_limit(64 << 10)
            .open()
            .await
            .unwrap();
        let mut seen: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut batches = 0;
        while let Some(batch) = reader.next_batch().await.unwrap() {
            batches += 1;
            if batches % 40 == 0 {
                fake.kill_connections();
            }
            seen.entry(batch.lane().lane.0)
                .or_default()
                .extend(values(&batch));
        }
        let all: Vec<u64> = (0..2_000).collect();
        assert_eq!((&seen[&0], &seen[&1]), (&all, &all));
        assert!(reader.metrics().connects > 1);
    }
}

#[tokio::test]
async fn seeks_by_ordinal_time_and_cursor() {
    for fetch in BOTH {
        let fake = Fake::start(1, 2).await;
        fake.fill((0, 0), 100, 10);
        fake.fill((0, 1), 100, 10);
        let mut reader = reader(&fake)
            .lanes([(0, 0)])
            .fetch(fetch)
            .open()
            .await
            .unwrap();
        let first = reader.next_batch().await.unwrap().unwrap();
        let second = reader.next_batch().await.unwrap().unwrap();
        assert_eq!(second.first_ordinal(), 10);
        reader.seek(0, 0, Start::Ordinal(55)).await.unwrap();
        assert_eq!(
            reader.next_batch().await.unwrap().unwrap().first_ordinal(),
            55
        );
        reader.seek(0, 0, Start::Timestamp(32)).await.unwrap();
        assert_eq!(
            reader.next_batch().await.unwrap().unwrap().first_ordinal(),
            32
        );
        reader.seek(0, 0, first.position().next).await.unwrap();
        assert_eq!(
            reader.next_batch().await.unwrap().unwrap().first_ordinal(),
            10
        );
        reader.seek_all(Start::Latest).await.unwrap();
        assert!(reader.next_batch().await.unwrap().is_none());
        reader.seek_all(Start::Earliest).await.unwrap();
        assert_eq!(drain(&mut reader).await[&(0, 0)].len(), 100);
        assert_eq!(reader.positions()[0].next.ordinal, 100);
        let error = reader.seek(0, 1, Start::Earliest).await.unwrap_err();
        assert!(matches!(
            error,
            ConsumeError::UnknownLane {
                streamlet: 0,
                lane: 1
            }
        ));
        let error = self::reader(&fake)
            .lanes([(3, 0)])
            .open()
            .await
            .unwrap_err();
        assert!(matches!(
            error,
            ConsumeError::UnknownLane { streamlet: 3, .. }
        ));
    }
}

#[tokio::test]
async fn what_was_trimmed_is_skipped_and_counted() {
    for fetch in BOTH {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 100, 10);
        fake.trim((0, 0), 40);
        let mut reader = reader(&fake).fetch(fetch).open().await.unwrap();
        reader
            .seek(
                0,
                0,
                Cursor {
                    ordinal: 5,
                    ..Cursor::default()
                },
            )
            .await
            .unwrap();
        assert_eq!(
            drain(&mut reader).await[&(0, 0)],
            (40..100).collect::<Vec<_>>()
        );
        assert_eq!(reader.metrics().skipped_records, 35);
    }
}

#[tokio::test]
async fn a_batch_damaged_on_its_way_is_an_error_and_comes_again() {
    for fetch in BOTH {
        let fake = Fake::start(1, 1).await;
        fake.fill((0, 0), 100, 10);
        fake.change(|state| state.corrupt = [20].into());
        let mut reader = reader(&fake).fetch(fetch).open().await.unwrap();
        let mut seen = Vec::new();
        let mut errors = Vec::new();
        loop {
            match reader.next_batch().await {
                Ok(Some(batch)) => seen.extend(values(&batch)),
                Ok(None) => break,
                Err(ConsumeError::Corrupt { ordinal, .. }) => {
                    if errors.is_empty() {
                        fake.change(|state| state.corrupt = [50].into());
                    }
                    errors.push(ordinal);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(errors, [20, 50]);
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(reader.metrics().corrupt_batches, 2);
    }
}

#[tokio::test]
async fn a_slow_application_is_not_overrun() {
    const LIMIT: usize = 64 << 10;
    for fetch in BOTH {
        let fake = Fake::start(1, 4).await;
        for lane in 0..4 {
            fake.fill((0, lane), 20_000, 50);
        }
        let mut reader = reader(&fake)
            .fetch(fetch)
            .memory_limit(LIMIT)
            .fetch_bytes(4_000)
            .open()
            .await
            .unwrap();
        let mut records = 0;
        while let Some(batch) = reader.next_batch().await.unwrap() {
            records += batch.len();
            let buffered = reader.metrics().buffered_bytes;
            assert!(
                buffered <= LIMIT + 4 * 4_000,
                "{buffered} bytes are buffered"
            );
        }
        assert_eq!(records, 80_000);
        if fetch == Fetch::Push {
            let overdraft = fake.state.lock().overdraft;
            assert!(overdraft <= 4_000, "{overdraft} bytes beyond the credit");
        }
    }
}

#[tokio::test]
async fn what_waits_for_a_slow_application_counts_against_credit() {
    const LIMIT: usize = 64 << 10;
    const BATCH: usize = 4 << 10;
    let fake = Fake::start(1, 4).await;
    for lane in 0..4 {
        fake.fill_even((0, lane), 200, BATCH);
    }
    let mut reader = reader(&fake)
        .memory_limit(LIMIT)
        .fetch_bytes(BATCH)
        .open()
        .await
        .unwrap();
    let mut taken = 0;
    while let Some(batch) = reader.next_batch().await.unwrap() {
        taken += batch.wire_bytes();
        // Meanwhile the broker may push what it has credit for.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let granted = fake.state.lock().granted;
        assert!(
            granted <= taken + LIMIT,
            "{granted} granted, {taken} of them taken"
        );
    }
    assert_eq!(taken, 4 * 200 * BATCH);
    assert_eq!(fake.state.lock().overdraft, 0);
}

#[tokio::test]
async fn batches_larger_than_a_lanes_share_come_one_at_a_time() {
    const LIMIT: usize = 64 << 10;
    const BATCH: usize = 96 << 10;
    for fetch in BOTH {
        let fake = Fake::start(1, 4).await;
        for lane in 0..4 {
            fake.fill_even((0, lane), 20, BATCH);
        }
        let mut reader = reader(&fake)
            .fetch(fetch)
            .memory_limit(LIMIT)
            .open()
            .await
            .unwrap();
        let mut taken = 0;
        while let Some(batch) = reader.next_batch().await.unwrap() {
            taken += batch.wire_bytes();
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            let buffered = reader.metrics().buffered_bytes;
            assert!(buffered <= 4 * BATCH, "{buffered} bytes are buffered");
        }
        assert_eq!(taken, 4 * 20 * BATCH, "{fetch:?}");
    }
}

#[tokio::test]
async fn compressed_batches_headers_and_nulls_are_read() {
    let fake = Fake::start(1, 1).await;
    let value = "x".repeat(10_000);
    for compression in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        fake.append_compressed((0, 0), &[&value], compression);
    }
    let mut builder = BatchBuilder::new();
    let headers = [
        Header {
            key: "a",
            value: Some(b"1"),
        },
        Header {
            key: "b",
            value: None,
        },
    ];
    builder
        .push(&NewRecord {
            key: None,
            value: None,
            headers: &headers,
            timestamp: 77,
        })
        .unwrap();
    let batch = builder
        .finish(Compression::None, ProducerStamp::NONE)
        .unwrap();
    fake.append_batch((0, 0), batch);
    let mut reader = reader(&fake).open().await.unwrap();
    for _ in 0..4 {
        let batch = reader.next_batch().await.unwrap().unwrap();
        assert!(batch.wire_bytes() < 10_000);
        let record = batch.records().next().unwrap().unwrap();
        assert_eq!(record.value, Some(value.as_bytes()));
    }
    let batch = reader.next_batch().await.unwrap().unwrap();
    let record = batch.records().next().unwrap().unwrap();
    assert_eq!(
        (record.key, record.value, record.timestamp),
        (None, None, 77)
    );
    assert_eq!(record.headers().collect::<Vec<_>>(), headers);
    let owned = batch.owned_records().unwrap();
    assert_eq!(owned[0].headers[0], ("a".to_owned(), Some("1".into())));
    assert_eq!(owned[0].headers[1], ("b".to_owned(), None));
}

fn part(lane: u32, from: u64, end: Option<u64>) -> LaneRange {
    LaneRange {
        streamlet: 0,
        lane,
        from: Cursor {
            ordinal: from,
            ..Cursor::default()
        },
        end,
    }
}

#[tokio::test]
async fn parts_of_lanes_are_read_without_a_look_up_and_to_their_ends() {
    for fetch in BOTH {
        let fake = Fake::start(1, 4).await;
        for lane in 0..3 {
            fake.fill((0, lane), 100, 7);
        }
        // Who looks places up waits for ever.
        fake.change(|state| state.silent_finds = [0].into());
        let open = |parts: Vec<LaneRange>| reader(&fake).fetch(fetch).ranges(parts).open();
        let parts = [
            (0, 10, Some(20)),
            (1, 95, Some(100)),
            (2, 40, Some(40)),
            (3, 0, Some(0)),
        ];
        let parts = parts.map(|(lane, from, end)| part(lane, from, end));
        let mut bounded = open(parts.to_vec()).await.unwrap();
        let wanted = [((0, 0), (10..20).collect()), ((0, 1), (95..100).collect())];
        assert_eq!(drain(&mut bounded).await, BTreeMap::from(wanted));
        assert_eq!((bounded.metrics().records, bounded.metrics().lag), (15, 0));
        let asked = fake.state.lock().asked.clone();
        assert!(
            asked
                .iter()
                .all(|one| [10, 14, 95, 98].contains(&one.ordinal)),
            "nothing is asked for behind the ends: {asked:?}"
        );

        // Without an end it follows its lane.
        let mut following = open(vec![part(0, 98, None)]).await.unwrap();
        let first = following.next_batch().await.unwrap().unwrap();
        assert_eq!(values(&first), [98, 99]);
        fake.fill((0, 0), 3, 3);
        let next = following.next_batch().await.unwrap().unwrap();
        assert_eq!(values(&next), [100, 101, 102]);
    }
}

#[tokio::test]
async fn a_part_whose_records_are_deleted_counts_them() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 100, 10);
    fake.change(|state| state.lanes.get_mut(&(0, 0)).unwrap().log_start = 30);
    let open = |from, end| reader(&fake).ranges([part(0, from, end)]).open();
    let mut partly = open(10, Some(50)).await.unwrap();
    assert_eq!(
        drain(&mut partly).await[&(0, 0)],
        (30..50).collect::<Vec<_>>()
    );
    assert_eq!(partly.metrics().skipped_records, 20);
    let mut wholly = open(10, Some(20)).await.unwrap();
    assert!(wholly.next_batch().await.unwrap().is_none());
    assert_eq!(wholly.metrics().skipped_records, 10);
}

#[tokio::test]
async fn parts_that_make_no_sense_are_refused() {
    let fake = Fake::start(1, 1).await;
    let refused = async |parts: Vec<LaneRange>| {
        let opened = reader(&fake).ranges(parts).open().await;
        opened.unwrap_err().to_string()
    };
    assert!(refused(vec![]).await.contains("name at least one"));
    let twice = vec![part(0, 0, Some(5)), part(0, 7, None)];
    assert!(refused(twice).await.contains("a lane is named twice"));
    let other = LaneRange {
        streamlet: 7,
        ..part(0, 0, None)
    };
    assert!(refused(vec![other]).await.contains("7/0"));
}

#[tokio::test]
async fn single_records_come_as_a_stream() {
    let fake = Fake::start(1, 2).await;
    fake.fill((0, 0), 50, 7);
    fake.fill((0, 1), 50, 7);
    let mut reader = reader(&fake).open().await.unwrap();
    let records: Vec<_> = reader.records().collect().await;
    assert_eq!(records.len(), 100);
    for record in records {
        let record = record.unwrap();
        assert_eq!(record.value.unwrap(), record.ordinal.to_string());
        assert_eq!(record.key.unwrap(), "k");
    }
}

#[tokio::test]
async fn records_that_a_stream_did_not_hand_out_stay_with_the_reader() {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 50, 7);
    let mut reader = reader(&fake).open().await.unwrap();
    let first: Vec<_> = reader.records().take(3).collect().await;
    assert_eq!(first.len(), 3);
    assert_eq!(reader.positions()[0].next.ordinal, 3);
    let rest = reader.next_batch().await.unwrap().unwrap();
    assert_eq!(values(&rest), [3, 4, 5, 6]);
    let taken: Vec<_> = reader.records().take(2).collect().await;
    assert_eq!(taken[0].as_ref().unwrap().ordinal, 7);
    // What waits is of a place that the reader has left.
    reader.seek(0, 0, Start::Ordinal(40)).await.unwrap();
    let last: Vec<u64> = reader
        .records()
        .map(|record| record.unwrap().ordinal)
        .collect()
        .await;
    assert_eq!(last, (40..50).collect::<Vec<_>>());
}

/// A lane with a batch in its middle that does not decode, or that is larger than some limits when it is.
async fn with_a_batch(plant: impl Fn(&Fake)) -> Arc<Fake> {
    let fake = Fake::start(1, 1).await;
    fake.fill((0, 0), 10, 10);
    plant(&fake);
    fake.fill((0, 0), 10, 10);
    fake
}

#[tokio::test]
async fn a_batch_that_does_not_decode_is_an_error_that_says_where_and_what_to_do() {
    let poisoned = with_a_batch(|fake| fake.poison((0, 0), 5)).await;
    let short = with_a_batch(|fake| fake.short((0, 0), 5)).await;
    let large = with_a_batch(|fake| fake.large((0, 0), 5, 1 << 20)).await;
    let cases = [
        (poisoned, "--skip-damaged"),
        (short, "--skip-damaged"),
        (large, "memory_limit"),
    ];
    for (fake, remedy) in cases {
        let open = || reader(&fake).memory_limit(256 << 10);
        let mut reader = open().open().await.unwrap();
        let mut records = reader.records();
        for ordinal in 0..10 {
            assert_eq!(records.next().await.unwrap().unwrap().ordinal, ordinal);
        }
        let error = records.next().await.unwrap().unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("/0/0 at ordinals 10 to 14 cannot be read"),
            "{text}"
        );
        assert!(text.contains(remedy), "{text}");
        assert!(!error.is_retryable());
        drop(records);
        // It is not passed by unless somebody wants that.
        let again = reader.records().next().await.unwrap().unwrap_err();
        assert_eq!(again.to_string(), text);
        reader.seek(0, 0, Start::Ordinal(15)).await.unwrap();
        assert_eq!(values(&reader.next_batch().await.unwrap().unwrap())[0], 15);

        let skipped = Arc::new(AtomicUsize::new(0));
        let count = skipped.clone();
        let mut skipping = open()
            .skip_damaged(move |error| {
                assert_eq!(error.to_string(), text);
                count.fetch_add(1, Ordering::SeqCst);
            })
            .open()
            .await
            .unwrap();
        let mut seen = Vec::new();
        while let Some(batch) = skipping.next_batch().await.unwrap() {
            seen.extend(values(&batch));
        }
        assert_eq!(seen, (0..10).chain(15..25).collect::<Vec<_>>());
        assert_eq!(skipped.load(Ordering::SeqCst), 1);
        assert_eq!(skipping.metrics().skipped_batches, 1);
    }
}

#[tokio::test]
async fn a_batch_within_a_higher_limit_is_read() {
    let fake = with_a_batch(|fake| fake.large((0, 0), 5, 1 << 20)).await;
    let mut reader = reader(&fake).memory_limit(8 << 20).open().await.unwrap();
    let records: Vec<_> = reader.records().collect().await;
    assert_eq!(records.len(), 25);
    assert!(records.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_lane_that_does_not_exist_is_an_error_about_that_lane() {
    let fake = Fake::start(1, 2).await;
    fake.fill((0, 0), 10, 10);
    fake.fill((0, 1), 10, 10);
    let mut reader = reader(&fake).follow(true).open().await.unwrap();
    fake.change(|state| {
        state.lanes.remove(&(0, 1));
    });
    fake.kill_connections();
    fake.fill((0, 0), 10, 10);
    let mut ordinals = Vec::new();
    let mut failed = None;
    while ordinals.len() < 20 || failed.is_none() {
        match reader.next_batch().await {
            Ok(batch) => {
                let batch = batch.unwrap();
                if batch.lane().lane.0 == 0 {
                    ordinals.extend(values(&batch));
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    assert_eq!(ordinals, (0..20).collect::<Vec<_>>());
    assert_eq!(failed.unwrap().code(), Some(ErrorCode::UnknownLane));
}

#[tokio::test]
async fn waiting_can_be_cancelled_at_any_time() {
    let fake = Fake::start(1, 1).await;
    let mut reader = reader(&fake).follow(true).open().await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 200 {
        if seen.len() < 200 && fake.state.lock().lanes[&(0, 0)].head < 200 {
            fake.fill((0, 0), 1, 1);
        }
        let wait = tokio::time::timeout(Duration::from_micros(300), reader.next_batch());
        if let Ok(batch) = wait.await {
            seen.extend(values(&batch.unwrap().unwrap()));
        }
    }
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    assert!(fake.subscribes.load(Ordering::SeqCst) >= 1);
}

#[tokio::test]
async fn settings_that_make_no_sense_are_named() {
    let fake = Fake::start(1, 1).await;
    let cases = [
        (reader(&fake).stream(""), "stream"),
        (reader(&fake).memory_limit(1), "memory_limit"),
        (reader(&fake).fetch_bytes(0), "fetch_bytes"),
        (reader(&fake).lanes([]), "lanes"),
    ];
    for (builder, name) in cases {
        match builder.open().await {
            Err(ConsumeError::Setting { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}
