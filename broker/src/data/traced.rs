//! Batches whose producers have them traced: a record's header `traceparent` names the trace, and the broker tells a
//! collector how long the batch took here, from its arrival to its acknowledgement, and each time that it is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_protocol::batch::{self, BatchHeader, Records};
use kera_streamlet::{Appended, Streamlet};
use kera_telemetry::{Span, SpanKind, Spans, TraceContext, Value};

use super::DataPlane;

/// The most bytes that a compressed batch may have, or decompress to, that is looked into; and where a plain one costs as
/// much.
const MOST_DECOMPRESSED: usize = 64 * 1024;
/// Headers of a record among which its trace is looked for.
const MOST_HEADERS: usize = 64;
/// Batches of one answer to a reader that are looked into.
const MOST_LOOKED_AT: usize = 16;

/// A batch that has its place and is traced. Dropped before its end was told, it was not acknowledged.
pub struct TracedAppend {
    spans: Arc<Spans>,
    span: Option<Span>,
    since: Instant,
}

impl TracedAppend {
    /// The append of a batch, from `since` on, if it is traced. The batch has its place.
    pub fn begin(
        data: &DataPlane,
        streamlet: &Streamlet,
        batch: &[u8],
        appended: &Appended,
        since: Instant,
    ) -> Option<Box<Self>> {
        let spans = data.spans()?;
        let header = BatchHeader::peek(batch).ok()?;
        let context = context_of(spans, batch)?;
        let mut span = span_of("append", data, streamlet, context);
        let lane = appended.lane.0;
        span.attributes.extend([
            (
                "messaging.destination.partition.id",
                partition(streamlet, lane),
            ),
            (
                "messaging.batch.message_count",
                Value::Number(header.record_count.into()),
            ),
            ("kera.ordinal", Value::Number(appended.base_ordinal)),
            ("kera.batch.bytes", Value::Number(header.total_bytes as u64)),
        ]);
        // From here on it waits for its disk, or for its replicas.
        span.events.push(("placed", since.elapsed()));
        Some(Box::new(Self {
            spans: spans.clone(),
            span: Some(span),
            since,
        }))
    }

    /// It was answered: with an error, or acknowledged.
    pub fn end(mut self, error: Option<&str>) {
        self.tell(error);
    }

    fn tell(&mut self, error: Option<&str>) {
        if let Some(mut span) = self.span.take() {
            span.took = self.since.elapsed();
            span.error = error.map(str::to_owned);
            self.spans.end(span);
        }
    }
}

impl Drop for TracedAppend {
    fn drop(&mut self) {
        self.tell(Some(
            "it was not acknowledged in time; it may still take effect",
        ));
    }
}

/// Batches were sent to a reader, who asked for them then if it did not wait for any.
pub fn note_read(data: &DataPlane, streamlet: &Streamlet, since: Option<Instant>, parts: &[Bytes]) {
    let Some(spans) = data.spans() else {
        return;
    };
    let batches = parts.iter().flat_map(|part| batch::batches(part));
    for one in batches.take(MOST_LOOKED_AT) {
        let Ok((header, bytes)) = one else {
            return;
        };
        let Some(context) = context_of(spans, bytes) else {
            continue;
        };
        let mut span = span_of("read", data, streamlet, context);
        span.took = since.map_or(Duration::ZERO, |since| since.elapsed());
        span.attributes.extend([
            (
                "messaging.batch.message_count",
                Value::Number(header.record_count.into()),
            ),
            ("kera.ordinal", Value::Number(header.base_ordinal)),
        ]);
        spans.end(span);
    }
}

fn span_of(what: &str, data: &DataPlane, streamlet: &Streamlet, context: TraceContext) -> Span {
    let stream = streamlet.stream();
    let name = match data.catalog.get(stream) {
        Some(stream) => stream.name(),
        None => stream.to_string(),
    };
    Span {
        name: format!("{what} {name}"),
        kind: SpanKind::Server,
        context,
        took: Duration::ZERO,
        events: Vec::new(),
        attributes: vec![
            ("messaging.system", Value::Text("kera".to_owned())),
            ("messaging.operation.name", Value::Text(what.to_owned())),
            ("messaging.destination.name", Value::Text(name)),
        ],
        error: None,
    }
}

fn partition(streamlet: &Streamlet, lane: u32) -> Value {
    Value::Text(format!("{}/{lane}", streamlet.id().0))
}

/// The trace of a batch: that of its first record. Batches of transactions' markers have none.
fn context_of(spans: &Spans, batch: &[u8]) -> Option<TraceContext> {
    let header = BatchHeader::peek(batch).ok()?;
    if header.is_control() || header.record_count == 0 {
        return None;
    }
    let is_plain = header.compression().ok()? == batch::Compression::None;
    let is_large = batch.len() > MOST_DECOMPRESSED;
    // To look into these costs more than a span does, and most are not traced: as many are looked into as spans may begin.
    if (!is_plain && is_large) || ((!is_plain || is_large) && !spans.may_look()) {
        return None;
    }
    let most = if is_plain {
        batch.len()
    } else {
        MOST_DECOMPRESSED
    };
    let mut scratch = Vec::new();
    let mut records = Records::open(batch, most, &mut scratch).ok()?;
    let first = records.next()?.ok()?;
    let mut headers = first.headers().take(MOST_HEADERS);
    let found = headers.find(|header| header.key.eq_ignore_ascii_case(TraceContext::HEADER))?;
    let context = TraceContext::of(found.value?)?;
    spans.may_begin().then_some(context)
}

#[cfg(test)]
mod tests {
    use kera_protocol::batch::{BatchBuilder, Compression, Header, NewRecord, ProducerStamp};
    use kera_telemetry::{Options, Telemetry};

    use super::*;

    const SAMPLED: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn batch_of(compression: Compression, headers: &[Header<'_>], bytes: usize) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        let value = vec![b'v'; bytes];
        let record = NewRecord {
            timestamp: 1,
            key: None,
            value: Some(&value),
            headers,
        };
        builder.push(&record).expect("it has room");
        let batch = builder.finish(compression, ProducerStamp::NONE);
        batch.expect("it has a record").to_vec()
    }

    #[test]
    fn the_trace_is_that_of_the_first_record_compressed_or_not_if_it_is_sampled() {
        let telemetry = Telemetry::new(Options::default());
        let spans = telemetry.spans().expect("traces are told");
        let header = |value| Header {
            key: "traceparent",
            value: Some(value),
        };
        for compression in [
            Compression::None,
            Compression::Gzip,
            Compression::Lz4,
            Compression::Snappy,
        ] {
            let with = |headers: &[Header<'_>]| {
                let batch = batch_of(compression, headers, 100);
                context_of(&spans, &batch)
            };
            let other = Header {
                key: "a",
                value: None,
            };
            assert!(with(&[other, header(SAMPLED)]).is_some(), "{compression:?}");
            assert_eq!(with(&[other]), None);
            assert_eq!(with(&[header(&SAMPLED[..54])]), None);
            assert_eq!(with(&[header(b"")]), None);
        }
        let large = batch_of(Compression::Gzip, &[header(SAMPLED)], 2 * MOST_DECOMPRESSED);
        assert_eq!(context_of(&spans, &large), None);
        let dropped = telemetry.dropped();
        let traces = dropped.iter().find(|(signal, _)| *signal == "traces");
        assert_eq!(
            traces,
            Some(&("traces", 0)),
            "what is not traced is not dropped"
        );
        assert_eq!(context_of(&spans, b"short"), None);
    }
}
