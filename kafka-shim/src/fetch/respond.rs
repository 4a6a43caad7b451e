//! The reply to a fetch: a frame made by hand around slices of segments.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;

use super::serve::{Fetch, Part};
use crate::reply_room::throttle_ms;
use crate::topic::TopicRef;
use crate::wire::request::is_flexible;
use crate::wire::writer::Writer;
use crate::{brokers, errors};

/// A reply's body in the order in which it is sent: `meta` cut at each place, with slices between.
pub(crate) struct Body {
    pub(crate) meta: BytesMut,
    /// Where in `meta` slices belong.
    pub(crate) inserts: Vec<(usize, Vec<Bytes>)>,
    /// Bytes of all slices.
    pub(crate) slices: usize,
}

impl Body {
    /// The pieces, in order.
    pub(crate) fn into_parts(self) -> Vec<Bytes> {
        let mut meta = self.meta.freeze();
        let mut cut = 0;
        let mut parts = Vec::with_capacity(self.inserts.len() * 2 + 1);
        for (at, slices) in self.inserts {
            parts.push(meta.split_to(at - cut));
            cut = at;
            parts.extend(slices);
        }
        parts.push(meta);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

/// A reply without partitions.
pub(crate) fn refusal(version: i16, code: i16, out: &mut BytesMut) {
    let mut writer = Writer::new(out, is_flexible(ApiKey::Fetch, version));
    writer.i32(0);
    if version >= 7 {
        writer.i16(code);
        writer.i32(0);
    }
    writer.length(0);
    writer.no_tags();
}

/// The reply to `fetch`, behind what `meta` holds; the client is told to wait before it fetches more.
pub(crate) fn reply(
    fetch: &Fetch,
    mut parts: Vec<Part>,
    throttle: Duration,
    mut meta: BytesMut,
) -> Body {
    let version = fetch.version;
    let entries = &fetch.session.entries;
    let topic = |part: &Part| -> &TopicRef { &entries[part.entry].wanted.topic };
    let mut inserts = Vec::new();
    let mut slices = 0;
    let mut writer = Writer::new(&mut meta, is_flexible(ApiKey::Fetch, version));
    let w = &mut writer;
    w.i32(throttle_ms(throttle));
    if version >= 7 {
        w.i16(errors::NONE);
        w.i32(fetch.session.id);
    }
    // Neighbours of one topic stand together; a topic may come twice where the round wraps.
    let runs = parts.chunk_by(|a, b| topic(a) == topic(b)).count();
    w.length(runs);
    let mut at = 0;
    while at < parts.len() {
        let run = parts[at..]
            .iter()
            .take_while(|part| topic(part) == topic(&parts[at]))
            .count();
        topic(&parts[at]).write(w);
        w.length(run);
        for part in &mut parts[at..at + run] {
            w.i32(entries[part.entry].wanted.partition);
            w.i16(part.code);
            w.i64(part.high_watermark);
            w.i64(part.stable);
            if version >= 5 {
                w.i64(part.log_start);
            }
            w.length(part.aborted.len());
            for aborted in &part.aborted {
                w.i64(aborted.producer);
                w.i64(i64::try_from(aborted.first).unwrap_or(i64::MAX));
                w.no_tags();
            }
            if version >= 11 {
                let elsewhere = part.elsewhere.map(|nearby| nearby.broker);
                w.i32(elsewhere.map_or(-1, |id| brokers::node(id).0));
            }
            w.length(part.bytes);
            if part.bytes > 0 {
                slices += part.bytes;
                inserts.push((w.at(), std::mem::take(&mut part.bufs)));
            }
            w.no_tags();
        }
        w.no_tags();
        at += run;
    }
    w.no_tags();
    Body {
        meta,
        inserts,
        slices,
    }
}
