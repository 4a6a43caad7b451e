//! What a broker tells a collector of OpenTelemetry, and what one costs it that takes nothing.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;
use kera_protocol::batch::{BatchBuilder, Compression, Header, NewRecord, ProducerStamp};
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use kera_testkit::certificates::Certificates;
use kera_testkit::kafka::exchange;
use kera_testkit::ports::Reserved;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::transport::Identity;

use crate::collector::{Collector, Manner, Told, body_of, number_of, text_of};
use crate::common::raw::{Raw, frame_of, stream_id};
use crate::common::{Broker, PATIENCE, finish, home, kera};
use crate::kafka;
use crate::stream_metrics::{metric, read};

/// `traceparent` of a trace and a span that are nothing but this digit; sampled or not.
fn parent(digit: char, is_sampled: bool) -> String {
    let id = |length| digit.to_string().repeat(length);
    format!("00-{}-{}-0{}", id(32), id(16), u8::from(is_sampled))
}

fn batch(parent: Option<&str>) -> Vec<u8> {
    let header = parent.map(|parent| Header {
        key: "traceparent",
        value: Some(parent.as_bytes()),
    });
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        timestamp: 1,
        key: None,
        value: Some(b"news"),
        headers: header.as_slice(),
    };
    builder.push(&record).expect("it has room");
    let batch = builder.finish(Compression::None, ProducerStamp::NONE);
    batch.expect("it has a record").to_vec()
}

/// Appends batches, and waits until all of them are acknowledged.
fn append(raw: &mut Raw, stream: &Bytes, batch: &[u8], times: u32) {
    let request = v1::AppendRequest {
        stream: stream.clone(),
        ..v1::AppendRequest::default()
    };
    for correlation in 0..times {
        raw.send(&frame_of(FrameKind::Append, correlation, &request, batch));
    }
    for _ in 0..times {
        let (_, answer) = raw.append_answer();
        assert_eq!(answer.error, 0, "{}", answer.message);
    }
}

fn flags(endpoint: &str, more: &[&str]) -> Vec<String> {
    let mut flags = vec![format!("--telemetry-endpoint={endpoint}")];
    flags.push("--telemetry-interval=1s".to_owned());
    flags.push("--telemetry-traces-per-second=100000".to_owned());
    flags.extend(["--http-listen", "127.0.0.1:0"].map(str::to_owned));
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    flags
}

fn broker(flags: &[String]) -> Broker {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Broker::with(&flags)
}

/// Waits until the log says so.
fn logs(broker: &Broker, what: &str) {
    let since = Instant::now();
    while !broker.log().contains(what) {
        assert!(since.elapsed() < PATIENCE, "{}", broker.log());
        std::thread::yield_now();
    }
}

/// Spans, each once: one whose call took too long is sent again.
fn kept(told: &Told) -> usize {
    let ids = told.spans.iter().map(|span| &span.span_id);
    ids.collect::<BTreeSet<_>>().len()
}

/// A counter as the collector heard it last.
fn counter(told: &Told, name: &str) -> Option<i64> {
    let metric = told.metrics.iter().find(|metric| metric.name == name)?;
    match metric.data.as_ref()? {
        Data::Sum(sum) => match sum.data_points.first()?.value? {
            Value::AsInt(number) => Some(number),
            Value::AsDouble(number) => Some(number as i64),
        },
        other => panic!("{name} is no counter: {other:?}"),
    }
}

/// Topic `orders`, partition 0, as Kafka's requests name it.
fn orders(of_partition: &[u8]) -> Vec<u8> {
    let topic = b"orders";
    let name = [&(topic.len() as u16).to_be_bytes()[..], topic].concat();
    let one = 1_u32.to_be_bytes();
    [&one[..], &name, &one, &0_u32.to_be_bytes(), of_partition].concat()
}

/// Produce, version 7: the error code.
fn produce(address: &str, batch: &[u8]) -> i16 {
    let head = [0, 0, 0, 7, 0, 0, 0, 1, 0xff, 0xff];
    // No transaction, acks = all, and how long it may take.
    let options = [0xff, 0xff, 0xff, 0xff, 0, 0, 0x75, 0x30];
    let records = [&(batch.len() as u32).to_be_bytes()[..], batch].concat();
    let reply = exchange(address, &[&head[..], &options, &orders(&records)].concat());
    // Correlation, one topic with its name, one partition with its number.
    i16::from_be_bytes(reply[24..26].try_into().expect("two bytes"))
}

/// Fetch, version 4, of one batch at most: the reply.
fn fetch(address: &str, offset: u64) -> Vec<u8> {
    let head = [0, 1, 0, 4, 0, 0, 0, 2, 0xff, 0xff];
    let replica = (-1_i32).to_be_bytes();
    let [wait, least, most] = [30_000_u32, 1, 1].map(u32::to_be_bytes);
    let options = [&replica[..], &wait, &least, &most, &[0]].concat();
    let from = [&offset.to_be_bytes()[..], &most].concat();
    exchange(address, &[&head[..], &options, &orders(&from)].concat())
}

#[test]
fn a_collector_hears_metrics_log_lines_and_the_way_of_a_traced_record() {
    let collector = Collector::start();
    let home = home();
    let headers = home.path().join("headers");
    std::fs::write(&headers, "# of the team\napi-key: pssst\n").expect("a file");
    let headers = format!("--telemetry-headers-file={}", headers.display());
    let endpoint = format!("http://{}", collector.address);
    let flags = flags(&endpoint, &["--kafka-listen", "127.0.0.1:0", &headers]);
    let mut broker = broker(&flags);
    broker.run(&["stream", "create", "orders", "--streamlets", "1"]);
    let (stream, mut raw) = (stream_id(&broker, "orders"), Raw::open(&broker));
    let address = kafka::addresses(&broker.log()).remove(0);

    append(&mut raw, &stream, &batch(Some(&parent('a', true))), 1);
    read(&mut raw, &stream, 0, 0);
    let frame = raw.next().expect("the broker goes on");
    assert_eq!(frame.kind, FrameKind::ReadReply);
    assert_eq!(produce(&address, &batch(Some(&parent('b', true)))), 0);
    let fetched = fetch(&address, 1);
    let bytes = parent('b', true).into_bytes();
    assert!(fetched.windows(bytes.len()).any(|part| part == bytes));
    // Of these nobody tells.
    append(&mut raw, &stream, &batch(Some(&parent('c', false))), 1);
    append(&mut raw, &stream, &batch(None), 1);
    read(&mut raw, &stream, 1, 2);
    raw.next().expect("the broker goes on");

    collector.until("of all records", |told| {
        counter(told, "kera_appended_records") == Some(4)
    });
    collector.until("that Kafka's clients are served", |told| {
        let says = |line| body_of(line).contains("serving Kafka clients");
        told.lines.iter().any(says)
    });
    collector.until("of the way of both", |told| told.spans.len() >= 4);
    assert!(broker.stop().success());
    let told = collector.told();
    let histogram = told
        .metrics
        .iter()
        .find(|metric| metric.name == "kera_append_duration_seconds");
    match histogram.and_then(|metric| metric.data.as_ref()) {
        Some(Data::Histogram(histogram)) => {
            let point = &histogram.data_points[0];
            assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
        }
        other => panic!("{other:?}"),
    }

    assert_eq!(kept(&told), 4, "{:?}", told.spans);
    let of = |name: &str, digit: u8| -> &Span {
        let trace = vec![digit; 16];
        let fits = |span: &&Span| span.name == name && span.trace_id == trace;
        told.spans.iter().find(fits).expect("a span")
    };
    for (digit, ordinal) in [(0xaa, 0), (0xbb, 1)] {
        let (append, read) = (of("append orders", digit), of("read orders", digit));
        for span in [append, read] {
            assert_eq!(span.parent_span_id, vec![digit; 8]);
            assert_eq!(span.span_id.len(), 8);
            assert_eq!(number_of(&span.attributes, "kera.ordinal"), Some(ordinal));
            let destination = text_of(&span.attributes, "messaging.destination.name");
            assert_eq!(destination, Some("orders"));
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
            assert_eq!(span.status, None);
        }
        assert_ne!(append.span_id, read.span_id);
        let placed = &append.events[0];
        assert_eq!(placed.name, "placed");
        let lasts = append.start_time_unix_nano..=append.end_time_unix_nano;
        assert!(lasts.contains(&placed.time_unix_nano));
    }

    for resource in &told.resources {
        let of = |name| text_of(&resource.attributes, name).expect("an attribute");
        assert_eq!(of("service.name"), "kera");
        let (cluster, id) = (of("service.namespace"), of("kera.broker.id"));
        assert_eq!(cluster.len(), 22, "{cluster}");
        let instance = format!("{cluster}-broker-{id}");
        assert_eq!(of("service.instance.id"), instance);
    }
    assert!(told.keys.iter().all(|key| key.as_deref() == Some("pssst")));
    assert!(!broker.log().contains("pssst"));
    assert!(
        told.lines
            .iter()
            .all(|line| !body_of(line).contains("pssst"))
    );
}

#[test]
fn a_collector_that_takes_nothing_costs_a_bounded_queue_and_the_rest_is_counted() {
    const TRACED: u32 = 6000;
    /// Spans that may wait, and those of one call.
    const MOST: u32 = 4096 + 512;
    let reserved = Reserved::new();
    let mut broker = broker(&flags(&format!("http://{}", reserved.address()), &[]));
    broker.run(&["stream", "create", "orders", "--streamlets", "1"]);
    let (stream, mut raw) = (stream_id(&broker, "orders"), Raw::open(&broker));
    let batch = batch(Some(&parent('a', true)));
    let dropped = |broker: &Broker| {
        let name = "kera_telemetry_dropped_total{signal=\"traces\"}";
        metric(broker, name).expect("it is told") as u32
    };

    // Nobody listens.
    for _ in 0..TRACED / 100 {
        append(&mut raw, &stream, &batch, 100);
    }
    let lost = dropped(&broker);
    assert!((TRACED - MOST..=TRACED - 4096).contains(&lost), "{lost}");

    logs(&broker, "does not take traces");

    // Somebody does.
    let collector = Collector::at(reserved.address(), None);
    collector.until("of all spans that were kept", |told| {
        kept(told) as u32 == TRACED - lost
    });
    let says = |what: &'static str| {
        move |told: &Told| told.lines.iter().any(|line| body_of(line).contains(what))
    };
    collector.until("that spans are taken", says("takes traces again"));
    assert_eq!(dropped(&broker), lost);
    let log = broker.log();
    assert_eq!(log.matches("does not take traces").count(), 1, "{log}");

    // It says no: what it was told then is gone.
    collector.behave(Manner::Forbids);
    append(&mut raw, &stream, &batch, 3);
    let since = Instant::now();
    while dropped(&broker) < lost + 3 {
        assert!(since.elapsed() < PATIENCE, "spans are not counted as lost");
        std::thread::yield_now();
    }
    assert_eq!(dropped(&broker), lost + 3);

    // It does not answer, and nobody waits for it: neither those who append nor a broker that stops.
    collector.behave(Manner::Holds);
    append(&mut raw, &stream, &batch, 1);
    collector.until("anything", |told| told.held > 0);
    append(&mut raw, &stream, &batch, 100);
    assert!(broker.stop().success());
}

#[test]
fn a_collector_with_tls_is_told_if_a_known_authority_signed_its_certificate() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let file = |name| std::fs::read(certificates.path(name)).expect("a file");
    let identity = Identity::from_pem(file("server.pem"), file("server.key"));
    let collector = Collector::at("127.0.0.1:0", Some(identity));
    let endpoint = format!("https://{}", collector.address);
    let with = |ca| {
        let ca = format!("--telemetry-ca={}", certificates.text(ca));
        broker(&flags(&endpoint, &[&ca]))
    };
    let stranger = with("other.pem");
    logs(&stranger, "does not take metrics");
    logs(&stranger, "certificate");
    assert_eq!(collector.told().keys.len(), 0);
    let _broker = with("ca.pem");
    collector.until("of its broker", |told| !told.metrics.is_empty());
}

#[test]
fn a_file_of_headers_that_has_none_stops_the_start_and_its_text_is_not_shown() {
    let home = home();
    let headers = home.path().join("headers");
    std::fs::write(&headers, "api-key: a\npssst\n").expect("a file");
    let mut command = kera();
    command.arg("serve").arg("--data-dir");
    command.arg(home.path().join("data"));
    command.args([
        "--listen=127.0.0.1:0",
        "--telemetry-endpoint=http://127.0.0.1:1",
    ]);
    command.arg(format!("--telemetry-headers-file={}", headers.display()));
    let refused = finish(command, b"");
    assert!(!refused.status.success());
    let text = refused.stderr;
    assert!(text.contains("line 2 is no header"), "{text}");
    assert!(!text.contains("pssst"), "{text}");
}
