//! A broker among others: the copies it keeps, and its peers as it sees them.

use std::time::Duration;

use kera_protocol::v1;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Out, Table, ago, count, plural, rounded_bytes, short_time, uuid};

/// What is shown of a broker that shares a store.
#[derive(Serialize)]
pub(super) struct ClusterView {
    pub(super) host: String,
    pub(super) replication: String,
    pub(super) allow_same_host: bool,
    pub(super) transports: Vec<TransportView>,
    pub(super) backup: BackupView,
    pub(super) peers: Vec<PeerView>,
    /// What it does in the background for the copies of what it owns.
    pub(super) background: Option<BackgroundView>,
}

/// Work in the background, counted from the broker's start.
#[derive(Serialize)]
pub(super) struct BackgroundView {
    /// How long ago the last round ended.
    round_ended_ms: Option<u64>,
    rounds: u64,
    wanting: u64,
    /// Closed groups of which brokers lack what they are recorded to have, and these brokers.
    missing: u64,
    missing_at: Vec<u32>,
    built: u64,
    built_bytes: u64,
    shifted: u64,
    surplus: u64,
    to_place: u64,
    to_place_bytes: u64,
    failed: u64,
    /// How long ago the groups of some streamlet had all been compared.
    scrub_ended_ms: Option<u64>,
    /// Streamlets owned, and those whose groups were compared since; how long ago the first of all was.
    scrub_streamlets: u64,
    scrub_done: u64,
    scrub_whole_ms: Option<u64>,
    scrubbed: u64,
    scrubbed_bytes: u64,
    harmed: u64,
    mended: u64,
    unsound: u64,
}

/// A way for copies between brokers.
#[derive(Serialize)]
pub(super) struct TransportView {
    name: String,
    used: bool,
    /// The network card that it uses, if any.
    by: String,
    /// Why it cannot be used, if so.
    unusable: Option<String>,
}

/// A store of other brokers' copies.
#[derive(Serialize)]
pub(super) struct BackupView {
    store_id: String,
    boot_id: String,
    shared_dir: String,
    disk_dir: String,
    memory_bytes: u64,
    memory_used_bytes: u64,
    copies_open: u64,
    copies_sealed: u64,
    copies_flushed: u64,
    received_bytes: u64,
    primaries: u32,
    refusals: u64,
}

/// A peer.
#[derive(Serialize)]
pub(super) struct PeerView {
    pub(super) id: u32,
    pub(super) address: String,
    pub(super) host: String,
    same_host: bool,
    pub(super) reachable: bool,
    /// Why it did not answer, if so.
    unreachable: Option<String>,
    /// For how long no copies have been placed there, if so.
    down_ms: Option<u64>,
    shipped_bytes: u64,
    in_flight_bytes: u64,
    lag_bytes: u64,
    open_groups: u64,
    lost_copies: u64,
    store_id: Option<String>,
    boot_id: Option<String>,
    free_bytes: Option<u64>,
}

fn told(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl ClusterView {
    pub(super) fn new(answer: v1::ClusterDescription) -> Self {
        let backup = answer.backup.unwrap_or_default();
        Self {
            host: answer.host,
            replication: answer.listen,
            allow_same_host: answer.allow_same_host,
            transports: answer
                .transports
                .into_iter()
                .map(|transport| TransportView {
                    name: transport.name,
                    used: transport.used,
                    by: transport.by,
                    unusable: told(transport.unusable),
                })
                .collect(),
            backup: BackupView {
                store_id: uuid(&backup.store_id),
                boot_id: uuid(&backup.boot_id),
                shared_dir: backup.shared_dir,
                disk_dir: backup.disk_dir,
                memory_bytes: backup.memory_bytes,
                memory_used_bytes: backup.memory_used_bytes,
                copies_open: backup.copies_open,
                copies_sealed: backup.copies_sealed,
                copies_flushed: backup.copies_flushed,
                received_bytes: backup.received_bytes,
                primaries: backup.primaries,
                refusals: backup.refusals,
            },
            peers: answer.peers.into_iter().map(PeerView::new).collect(),
            background: answer.background.map(BackgroundView::new),
        }
    }

    /// Names and values, as `describe` lists them.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let backup = &self.backup;
        let mut lines = vec![
            ("host", self.host.clone()),
            ("replication", self.replication.clone()),
            ("transport", self.transport_text()),
            ("replicas", backup.copies_text()),
            (
                "replica memory",
                format!(
                    "{} of {} in use",
                    rounded_bytes(backup.memory_used_bytes),
                    rounded_bytes(backup.memory_bytes)
                ),
            ),
            (
                "replica store",
                format!(
                    "{} (boot {}) in {} and {}",
                    backup.store_id, backup.boot_id, backup.shared_dir, backup.disk_dir
                ),
            ),
        ];
        if let Some(background) = &self.background {
            lines.push(("background", background.text()));
            lines.push(("compared", background.compared_text()));
        }
        lines
    }

    fn transport_text(&self) -> String {
        let texts = self.transports.iter().map(|transport| {
            let name = match transport.by.as_str() {
                "" => transport.name.clone(),
                by => format!("{} ({by})", transport.name),
            };
            match (&transport.unusable, transport.used) {
                (None, true) => name,
                (Some(reason), true) => format!("{name}, {reason}"),
                (Some(reason), _) => format!("{name} not usable: {reason}"),
                (None, _) => format!("{name} not used"),
            }
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// The peers, as a table below the description.
    pub(super) fn print_peers(&self, out: &mut Out) -> Result<(), Failure> {
        if self.peers.is_empty() {
            return out.line("  no other broker is alive");
        }
        let mut table = Table::new(&[
            "peer",
            "host",
            "address",
            ">groups",
            ">shipped",
            ">in flight",
            ">behind",
            ">lost",
            "state",
        ]);
        for peer in &self.peers {
            table.row([
                peer.id.to_string(),
                peer.host_text(self.allow_same_host),
                peer.address.clone(),
                count(peer.open_groups),
                rounded_bytes(peer.shipped_bytes),
                rounded_bytes(peer.in_flight_bytes),
                rounded_bytes(peer.lag_bytes),
                count(peer.lost_copies),
                peer.state_text(),
            ]);
        }
        out.bytes(b"\n")?;
        out.bytes(table.render().as_bytes())
    }
}

impl BackgroundView {
    fn new(answer: v1::BackgroundDescription) -> Self {
        Self {
            round_ended_ms: answer.round_ended_ms,
            rounds: answer.rounds,
            wanting: answer.wanting,
            missing: answer.missing,
            missing_at: answer.missing_at,
            built: answer.built,
            built_bytes: answer.built_bytes,
            shifted: answer.shifted,
            surplus: answer.surplus,
            to_place: answer.to_place,
            to_place_bytes: answer.to_place_bytes,
            failed: answer.failed,
            scrub_ended_ms: answer.scrub_ended_ms,
            scrub_streamlets: answer.scrub_streamlets,
            scrub_done: answer.scrub_done,
            scrub_whole_ms: answer.scrub_whole_ms,
            scrubbed: answer.scrubbed,
            scrubbed_bytes: answer.scrubbed_bytes,
            harmed: answer.harmed,
            mended: answer.mended,
            unsound: answer.unsound,
        }
    }

    /// Copies that are made and moved.
    fn text(&self) -> String {
        let mut text = format!(
            "last round {}; {} replicas built, {}, {} of them to even out the brokers' bytes",
            ago(self.round_ended_ms, "not yet"),
            count(self.built),
            rounded_bytes(self.built_bytes),
            count(self.shifted)
        );
        if self.wanting > 0 {
            text.push_str(&format!("; {} groups lack replicas", count(self.wanting)));
        }
        if self.missing > 0 {
            let at: Vec<_> = self.missing_at.iter().map(u32::to_string).collect();
            let (groups, at) = (count(self.missing), at.join(", "));
            text.push_str(&format!(
                "; {groups} groups are missing on brokers that should have them: {at}"
            ));
        }
        if self.to_place > 0 {
            let bytes = rounded_bytes(self.to_place_bytes);
            let copies = count(self.to_place);
            text.push_str(&format!("; {copies} replicas have still to move, {bytes}"));
        }
        text
    }

    /// Copies that are compared.
    fn compared_text(&self) -> String {
        let mut text = format!(
            "last round {}; {} of {} streamlets; {} groups, {} read, {} bad replicas, {} replaced",
            ago(self.scrub_ended_ms, "not yet"),
            count(self.scrub_done),
            count(self.scrub_streamlets),
            count(self.scrubbed),
            rounded_bytes(self.scrubbed_bytes),
            count(self.harmed),
            count(self.mended)
        );
        if self.unsound > 0 {
            let groups = count(self.unsound);
            text.push_str(&format!("; {groups} groups wait for that, see the log"));
        }
        text
    }
}

impl BackupView {
    fn copies_text(&self) -> String {
        let refusals = match self.refusals {
            0 => String::new(),
            refusals => format!(", {} requests refused", count(refusals)),
        };
        format!(
            "{} open, {} sealed, {} on disk; {} received from {}{refusals}",
            count(self.copies_open),
            count(self.copies_sealed),
            count(self.copies_flushed),
            rounded_bytes(self.received_bytes),
            plural(u64::from(self.primaries), "broker"),
        )
    }
}

impl PeerView {
    fn new(peer: v1::PeerDescription) -> Self {
        let reachable = peer.unreachable.is_empty();
        Self {
            id: peer.id,
            address: peer.address,
            host: peer.host,
            same_host: peer.same_host,
            reachable,
            unreachable: told(peer.unreachable),
            down_ms: peer.down_ms,
            shipped_bytes: peer.shipped_bytes,
            in_flight_bytes: peer.in_flight_bytes,
            lag_bytes: peer.lag_bytes,
            open_groups: peer.open_groups,
            lost_copies: peer.lost_copies,
            store_id: told(uuid(&peer.store_id)),
            boot_id: told(uuid(&peer.boot_id)),
            free_bytes: reachable.then_some(peer.free_bytes),
        }
    }

    fn host_text(&self, allow_same_host: bool) -> String {
        match (self.same_host, allow_same_host) {
            (false, _) => self.host.clone(),
            (true, true) => format!("{} (this one)", self.host),
            (true, false) => format!("{} (this one: no replicas)", self.host),
        }
    }

    /// Whether it answers, and whether copies are placed there.
    pub(super) fn state_text(&self) -> String {
        let mut text = match (&self.unreachable, self.free_bytes) {
            (Some(reason), _) => format!("unreachable: {reason}"),
            (None, Some(free)) => format!("reachable, {} free", rounded_bytes(free)),
            (None, None) => "reachable".into(),
        };
        if let Some(down) = self.down_ms {
            let time = short_time(Duration::from_millis(down));
            text.push_str(&format!("; no replicas placed there for {time}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_the_background_says_what_it_did_and_what_is_left() {
        let nothing = BackgroundView::new(v1::BackgroundDescription::default());
        assert!(nothing.text().starts_with("last round not yet; 0 replicas"));
        assert!(!nothing.text().contains("to move"));
        let busy = BackgroundView::new(v1::BackgroundDescription {
            round_ended_ms: Some(5000),
            built: 7,
            shifted: 4,
            to_place: 3,
            to_place_bytes: 2048,
            scrubbed: 12,
            harmed: 2,
            mended: 1,
            unsound: 1,
            ..Default::default()
        });
        let text = busy.text();
        assert!(text.contains("7 replicas built") && text.contains("4 of them to even"));
        assert!(text.contains("3 replicas have still to move, 2"), "{text}");
        let text = busy.compared_text();
        assert!(text.contains("12 groups") && text.contains("1 replaced"));
        assert!(text.contains("1 groups wait for that"), "{text}");
    }

    #[test]
    fn a_peer_says_what_is_wrong_with_it() {
        let peer = |unreachable: &str, down_ms| {
            PeerView::new(v1::PeerDescription {
                unreachable: unreachable.into(),
                down_ms,
                free_bytes: 1 << 30,
                ..Default::default()
            })
        };
        assert_eq!(peer("", None).state_text(), "reachable, 1.00 GiB free");
        assert_eq!(
            peer("no answer within 1 s", Some(130_000)).state_text(),
            "unreachable: no answer within 1 s; no replicas placed there for 2m 10s"
        );
        assert_eq!(peer("x", None).free_bytes, None);
    }
}
