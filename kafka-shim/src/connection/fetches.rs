//! Fetches of a connection: what they wait for, and their answers.

use std::time::Instant;

use kafka_protocol::messages::ApiKey;
use kera_broker::client_link::ClientLink;
use kera_broker::data::memory_budget::LEAST_DISK_READ;
use kera_broker::quotas::Metered;

use super::{Connection, Current};
use crate::dispatch;
use crate::fetch::serve::DiskRead;
use crate::fetch::{self, Progress};

impl Connection {
    pub(super) fn serve_fetch(&mut self, link: &mut ClientLink) {
        let Current::Fetching(fetch) = &mut self.current else {
            return;
        };
        let claimed = link.claim_room();
        let room = link.meter.most(Metered::Reads, claimed);
        if room == 0 {
            // From here on it waits for its client, or for others'.
            fetch.at_once_since = None;
            // What is there already is sent; where it is others' turn until the request is due, that there is nothing.
            let is_late = link.claims.waits_for_step() && fetch.due(true) <= Instant::now();
            if claimed > 0 || !(is_late || fetch.has_read()) {
                return;
            }
        }
        match fetch.step(&self.ctx.shared, &link.waker, Instant::now(), room) {
            Progress::Wait => link.meter.found_nothing(),
            Progress::Reply(parts) => self.reply_fetch(link, parts),
            Progress::Disk(reads) => {
                let Current::Fetching(mut fetch) =
                    std::mem::replace(&mut self.current, Current::Nothing)
                else {
                    return;
                };
                let bytes: usize = reads.iter().map(DiskRead::bytes).sum();
                self.reading = bytes.max(LEAST_DISK_READ);
                let shared = self.ctx.shared.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let read = reads.into_iter().map(|read| read.run(&shared));
                    fetch.take_from_disk(read.collect());
                    *fetch
                });
                self.current = Current::Reading(Box::pin(async { read.await.ok() }));
            }
        }
    }

    fn reply_fetch(&mut self, link: &mut ClientLink, parts: Vec<fetch::serve::Part>) {
        let Current::Fetching(mut fetch) = std::mem::replace(&mut self.current, Current::Nothing)
        else {
            return;
        };
        fetch.forget(&link.waker);
        fetch.count(&self.ctx.shared.data, &parts);
        let head = dispatch::begin(ApiKey::Fetch, fetch.version, fetch.correlation);
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let throttle = link.meter.charge_answered(Metered::Reads, bytes);
        let mut body = fetch::respond::reply(&fetch, parts, throttle, head);
        dispatch::finish(&mut body.meta, body.slices);
        let metrics = &self.ctx.shared.data.metrics;
        metrics.read_bytes.inc_by(body.slices as u64);
        metrics.read_at_once(fetch.at_once_since, body.slices);
        if let Some(since) = fetch.at_once_since {
            link.meter.answered(since.elapsed());
        }
        self.current = Current::Answered(body.into_parts());
        fetch.end(&mut self.sessions);
    }
}
