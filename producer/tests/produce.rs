//! The producer against a broker that does its duty.

mod fake;

use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{AppendError, BuildError, Compression, Header, Producer, Record};
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{LaneId, StreamletId};
use kera_protocol::partition::{lane_of, murmur2, partition_of};
use kera_protocol::v1;
use kera_rpc::ConnectOptions;

const LONG: Duration = Duration::from_secs(29);

fn value(index: usize) -> String {
    format!("value {index}")
}

#[tokio::test]
async fn records_of_a_key_reach_their_lane_in_order_and_handles_tell_where() {
    let broker = Broker::start(3, 4).await;
    let producer = broker.producer().batch_size(1 << 10).build().await.unwrap();
    let mut deliveries = Vec::new();
    for index in 0..5_000 {
        let key = format!("key {}", index % 50);
        let value = value(index);
        let record = Record::keyed(key.as_bytes(), value.as_bytes()).at(index as i64);
        let delivery = producer.append(&record).unwrap();
        deliveries.push((key, index, delivery));
    }
    producer.flush().await.unwrap();
    let stored = broker.values();
    for (key, index, delivery) in deliveries {
        let place = delivery.result().expect("flushed").unwrap();
        let lane = lane_of(key.as_bytes(), 3, 4);
        assert_eq!((place.streamlet, place.lane), lane);
        assert_eq!(place.timestamp, index as i64);
        let values = &stored[&(lane.0.0, lane.1.0)];
        assert_eq!(values[place.ordinal as usize], value(index));
        assert_eq!(delivery.await.unwrap(), place);
    }
    assert_eq!(stored.values().map(Vec::len).sum::<usize>(), 5_000);
    let metrics = producer.metrics();
    assert_eq!(metrics.records_acknowledged, 5_000);
    assert_eq!(metrics.records_batched, 5_000);
    assert!(metrics.batches > 50 && metrics.batches_in_flight == 0);
    producer.close().await.unwrap();
}

/// Whatever the number of partitions: to the one that Kafka's clients choose, and no other.
#[tokio::test]
async fn keys_reach_kafkas_partition_for_any_number_of_partitions() {
    for (streamlets, partitions) in [(1, 1), (4, 6), (4, 7), (4, 13), (3, 12), (5, 9)] {
        let broker = Broker::start(streamlets, 1).await;
        {
            let config = &mut broker.state.lock().config;
            config.lanes = Some(u32::div_ceil(partitions, streamlets));
            config.partitions = Some(partitions);
        }
        let producer = broker.producer().build().await.unwrap();
        let mut deliveries = Vec::new();
        for index in 0..300 {
            let key = format!("key {index}");
            let record = Record::keyed(key.as_bytes(), b"v");
            let delivery = producer.append(&record).unwrap();
            deliveries.push((key, delivery));
        }
        for _ in 0..300 {
            producer.append(&Record::of_value(b"v")).unwrap();
            producer.flush().await.unwrap();
        }
        for (key, delivery) in deliveries {
            let place = delivery.await.unwrap();
            let kafka = (murmur2(key.as_bytes()) & 0x7fff_ffff) % partitions;
            let found = partition_of(place.streamlet, place.lane, streamlets);
            assert_eq!(found, u64::from(kafka), "{key} of {partitions}");
        }
        // Records without a key go to all of them in turn.
        let mut used: Vec<u32> = broker
            .values()
            .keys()
            .map(|(streamlet, lane)| lane * streamlets + streamlet)
            .collect();
        used.sort_unstable();
        assert_eq!(used, (0..partitions).collect::<Vec<_>>());
        producer.close().await.unwrap();
    }
}

#[tokio::test]
async fn records_without_key_spread_over_all_lanes_batch_by_batch() {
    let broker = Broker::start(2, 2).await;
    let producer = broker
        .producer()
        .batch_size(2 << 10)
        .linger(LONG)
        .build()
        .await
        .unwrap();
    for index in 0..4_000 {
        producer
            .append(&Record::of_value(value(index).as_bytes()))
            .unwrap();
    }
    producer.flush().await.unwrap();
    let stored = broker.values();
    assert_eq!(stored.len(), 4);
    let mut all: Vec<String> = stored.into_values().flatten().collect();
    all.sort();
    let mut expected: Vec<String> = (0..4_000).map(value).collect();
    expected.sort();
    assert_eq!(all, expected);
    let state = broker.state.lock();
    let batches: usize = state.lanes.values().map(Vec::len).sum();
    assert!(batches < 100, "{batches} batches: they are full ones");
}

#[tokio::test]
async fn records_without_key_leave_no_batch_behind_that_is_nearly_empty() {
    let broker = Broker::start(4, 8).await;
    let producer = broker
        .producer()
        .batch_size(2 << 10)
        .linger(LONG)
        .build()
        .await
        .unwrap();
    for index in 0..1_000 {
        producer
            .append(&Record::of_value(value(index).as_bytes()))
            .unwrap();
    }
    let full = producer.metrics().batches;
    assert!(full > 3, "{full} batches were full");
    producer.flush().await.unwrap();
    let all = producer.metrics().batches;
    assert!(all <= full + 1, "{all} batches, {full} of them full");
}

#[tokio::test]
async fn everything_about_a_record_arrives_under_every_compression() {
    for compression in [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let broker = Broker::start(1, 1).await;
        let producer = broker
            .producer()
            .compression(compression)
            .batch_size(4 << 10)
            .build()
            .await
            .unwrap();
        let headers = [
            Header {
                key: "kind",
                value: Some(b"test"),
            },
            Header {
                key: "empty",
                value: None,
            },
        ];
        for index in 0..500_i64 {
            let text = value(7);
            let record = Record::keyed(b"k", text.as_bytes())
                .with_headers(&headers)
                .at(index);
            producer.append(&record).unwrap();
        }
        let null = Record::default();
        let last = producer.append(&null).unwrap();
        producer.close().await.unwrap();
        assert_eq!(last.await.unwrap().ordinal, 500);
        let stored = broker.records(|record| {
            (
                record.key.map(<[u8]>::to_vec),
                record.value.map(<[u8]>::to_vec),
                record.headers().count(),
                record.timestamp,
            )
        });
        let stored = &stored[&(0, 0)];
        assert_eq!(stored.len(), 501);
        for (index, (key, text, headers, timestamp)) in stored[..500].iter().enumerate() {
            assert_eq!(key.as_deref(), Some(&b"k"[..]));
            assert_eq!(text.as_deref(), Some(value(7).as_bytes()));
            assert_eq!((*headers, *timestamp), (2, index as i64));
        }
        let (key, text, headers, timestamp) = &stored[500];
        assert!(key.is_none() && text.is_none() && *headers == 0);
        assert!(*timestamp > 1_600_000_000_000, "now");
        let state = broker.state.lock();
        for batch in &state.lanes[&(0, 0)][..1] {
            let header = BatchHeader::peek(batch).unwrap();
            assert_eq!(header.compression(), Ok(compression));
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_not_full_goes_out_after_its_linger() {
    let broker = Broker::start(1, 1).await;
    for linger in [Duration::ZERO, Duration::from_millis(5)] {
        let producer = broker.producer().linger(linger).build().await.unwrap();
        for _ in 0..10 {
            let delivery = producer.append(&Record::of_value(b"alone")).unwrap();
            delivery.await.unwrap();
        }
    }
    assert_eq!(broker.values()[&(0, 0)].len(), 20);
}

#[tokio::test]
async fn without_linger_batches_grow_while_the_broker_is_busy() {
    let broker = Broker::start(1, 1).await;
    let producer = broker
        .producer()
        .linger(Duration::ZERO)
        .build()
        .await
        .unwrap();
    broker.hold(true);
    let first = producer.append(&Record::of_value(b"first")).unwrap();
    broker.appends_arrived(1).await;
    let rest: Vec<_> = (0..100)
        .map(|_| producer.append(&Record::of_value(b"rest")).unwrap())
        .collect();
    assert!(!first.same_batch(&rest[0]) && rest[0].same_batch(&rest[99]));
    broker.hold(false);
    for delivery in rest {
        delivery.await.unwrap();
    }
    assert_eq!(first.result().unwrap().unwrap().ordinal, 0);
    assert_eq!(broker.state.lock().lanes[&(0, 0)].len(), 2);
}

#[tokio::test]
async fn memory_is_bounded_and_appends_wait_for_it() {
    let broker = Broker::start(1, 1).await;
    let limit = 64 << 10;
    let producer = broker
        .producer()
        .batch_size(8 << 10)
        .memory_limit(limit)
        .build()
        .await
        .unwrap();
    broker.hold(true);
    let payload = [7; 1_000];
    let mut taken = 0;
    let refused = loop {
        match producer.append(&Record::of_value(&payload)) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 1_000, "nothing bounds the memory");
    };
    assert!(matches!(refused, AppendError::Full), "{refused}");
    assert!(taken >= 48 && producer.metrics().memory_used_bytes <= limit as u64);
    let waiting = {
        let producer = producer.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                producer
                    .append_wait(&Record::of_value(&[8; 1_000]))
                    .await
                    .unwrap();
                assert!(producer.metrics().memory_used_bytes <= limit as u64);
            }
        })
    };
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    broker.hold(false);
    waiting.await.unwrap();
    producer.close().await.unwrap();
    assert_eq!(broker.values()[&(0, 0)].len(), taken + 200);
}

#[tokio::test]
async fn an_append_that_waits_gets_the_little_that_comes_back() {
    // Batches that wait for a long linger are looked at all the time, so that both ways are gone.
    for linger in [Duration::from_millis(1), LONG] {
        let broker = Broker::start(1, 1).await;
        let producer = broker
            .producer()
            .batch_size(1 << 10)
            .memory_limit(64 << 10)
            .linger(linger)
            .build()
            .await
            .unwrap();
        broker.hold(true);
        while producer.append(&Record::of_value(&[7; 900])).is_ok() {}
        let mut answered = 0;
        broker.script(move |_, _| {
            answered += 1;
            match answered {
                1 => Action::Accept,
                _ => Action::Swallow { store: true },
            }
        });
        broker.hold(false);
        let record = Record::of_value(&[8; 900]);
        let waited = tokio::time::timeout(LONG, producer.append_wait(&record)).await;
        assert!(waited.is_ok(), "the first batch's memory is left unused");
        let metrics = producer.metrics();
        assert_eq!(metrics.records_acknowledged, 1);
        assert!(metrics.memory_used_bytes <= 64 << 10);
    }
}

#[tokio::test]
async fn what_waits_behind_a_full_window_follows_the_answers() {
    let broker = Broker::start(1, 1).await;
    let producer = broker
        .producer()
        .batch_size(1 << 10)
        // A ping would take along what is not sent.
        .connect(ConnectOptions {
            keepalive: Duration::from_secs(3_600),
            ..ConnectOptions::default()
        })
        .build()
        .await
        .unwrap();
    broker.hold(true);
    let append = |_| producer.append(&Record::of_value(&[7; 900])).unwrap();
    let deliveries: Vec<_> = (0..200).map(append).collect();
    broker.appends_arrived(1).await;
    broker.hold(false);
    for (index, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().ordinal, index as u64);
    }
}

#[tokio::test]
async fn large_records_have_a_batch_of_their_own_and_too_large_ones_are_refused() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.producer().batch_size(4 << 10).build().await.unwrap();
    let large = vec![1; 500_000];
    producer.append(&Record::of_value(b"before")).unwrap();
    let place = producer.append(&Record::of_value(&large)).unwrap();
    producer.append(&Record::of_value(b"after")).unwrap();
    let error = producer
        .append(&Record::of_value(&vec![1; 2 << 20]))
        .unwrap_err();
    assert!(matches!(error, AppendError::TooLarge { limit, .. } if limit == 1 << 20));
    producer.flush().await.unwrap();
    assert_eq!(place.await.unwrap().ordinal, 1);
    assert_eq!(broker.values()[&(0, 0)].len(), 3);
}

#[tokio::test]
async fn closing_sends_what_is_open_and_takes_no_more() {
    let broker = Broker::start(2, 1).await;
    let producer = broker.producer().linger(LONG).build().await.unwrap();
    for index in 0..10 {
        let key = index.to_string();
        producer
            .append(&Record::keyed(key.as_bytes(), b"v"))
            .unwrap();
    }
    let other = producer.clone();
    producer.close().await.unwrap();
    assert_eq!(broker.values().values().map(Vec::len).sum::<usize>(), 10);
    for handle in [&producer, &other] {
        let error = handle.append(&Record::of_value(b"late")).unwrap_err();
        assert!(matches!(error, AppendError::Closed));
        let error = handle.append_wait(&Record::of_value(b"late")).await;
        assert!(matches!(error, Err(AppendError::Closed)));
        handle.flush().await.unwrap();
    }
}

#[tokio::test]
async fn dropping_the_producer_fails_what_is_not_acknowledged() {
    let broker = Broker::start(1, 1).await;
    broker.hold(true);
    let producer = broker.producer().build().await.unwrap();
    let delivery = producer.append(&Record::of_value(b"v")).unwrap();
    drop(producer);
    let error = delivery.await.unwrap_err();
    assert!(error.to_string().contains("close it first"), "{error}");
}

#[tokio::test]
async fn with_lanes_by_producer_the_owner_picks_the_lane() {
    let broker = Broker::start_with(v1::StreamConfig {
        streamlets: Some(2),
        lanes: Some(7),
        lane_by: Some(v1::LaneBy::Producer as i32),
        max_batch_bytes: Some(1 << 20),
        timestamp_type: Some(v1::TimestampType::Append as i32),
        ..v1::StreamConfig::default()
    })
    .await;
    let producer = broker.producer().build().await.unwrap();
    for index in 0..20 {
        let key = index.to_string();
        let delivery = producer
            .append(&Record::keyed(key.as_bytes(), b"v").at(5))
            .unwrap();
        let place = delivery.await.unwrap();
        assert_eq!(place.streamlet, lane_of(key.as_bytes(), 2, 1).0);
        assert_eq!(place.lane, LaneId(101 % 7));
        assert_eq!(place.timestamp, 77, "the broker's");
        assert!(place.streamlet < StreamletId(2));
    }
    assert_eq!(broker.values().len(), 2);
}

#[tokio::test]
async fn wrong_settings_and_unknown_streams_are_refused_at_once() {
    let broker = Broker::start(1, 1).await;
    for (name, builder) in [
        ("stream", Producer::builder().bootstrap(&broker.bootstrap)),
        ("batch_size", broker.producer().batch_size(10)),
        ("memory_limit", broker.producer().memory_limit(10)),
        (
            "max_in_flight_batches",
            broker.producer().max_in_flight_batches(17),
        ),
        ("deadline", broker.producer().deadline(Duration::ZERO)),
        ("deadline", broker.producer().deadline(Duration::MAX)),
        ("linger", broker.producer().linger(Duration::from_secs(30))),
    ] {
        match builder.build().await.unwrap_err() {
            BuildError::Setting { name: wrong, .. } => assert_eq!(wrong, name),
            other => panic!("unexpected {other}"),
        }
    }
    broker.state.lock().gone = true;
    let error = broker.producer().build().await.unwrap_err();
    assert!(error.to_string().contains("UNKNOWN_STREAM"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_append_at_once() {
    let broker = Broker::start(2, 2).await;
    let producer = broker.producer().batch_size(4 << 10).build().await.unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let producer = producer.clone();
            tokio::task::spawn_blocking(move || {
                for index in 0..3_000 {
                    let key = format!("{thread}");
                    let value = format!("{index:06}");
                    producer
                        .append(&Record::keyed(key.as_bytes(), value.as_bytes()))
                        .unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.await.unwrap();
    }
    producer.close().await.unwrap();
    let stored = broker.records(|record| {
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
        (text(record.key), text(record.value))
    });
    for thread in 0..4 {
        let own: Vec<_> = stored
            .values()
            .flatten()
            .filter(|(key, _)| *key == thread.to_string())
            .map(|(_, value)| value)
            .collect();
        assert_eq!(own.len(), 3_000);
        assert!(own.is_sorted(), "records of one key are in order");
    }
}

#[tokio::test]
async fn a_bootstrap_broker_that_is_down_is_passed_over() {
    let broker = Broker::start(1, 1).await;
    // Bound and never listening: nobody else is given the port, and who connects is refused.
    let down = tokio::net::TcpSocket::new_v4().unwrap();
    down.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = down.local_addr().unwrap();
    let producer = Producer::builder()
        .bootstrap(format!("{address},{}", broker.bootstrap))
        .stream("s")
        .build()
        .await
        .unwrap();
    producer
        .append(&Record::of_value(b"v"))
        .unwrap()
        .await
        .unwrap();
}
