//! Consumer groups: how far they are behind, and why.

use kera_protocol::v1;

use super::rates::Meter;
use super::views::{GroupRow, StreamLag};

/// A group that is behind by less than comes in within this many seconds keeps up.
const KEEPS_UP_S: f64 = 3.0;

/// A group's row. `records_in` is what comes in a second in the streams that it reads, `above_stable` what open transactions
/// keep from it.
pub(super) fn row(
    summary: &v1::GroupSummary,
    coordinator: u32,
    meter: &Meter,
    records_in: Option<f64>,
    above_stable: u64,
) -> GroupRow {
    let is_kafka = summary.kind() == v1::GroupKind::Kafka;
    let streams: Vec<StreamLag> = lags(summary).collect();
    let lag = lag_of(summary);
    let unknown_lanes = streams.iter().map(|of| of.unknown_lanes).sum();
    let growth = meter.lag_growth(&summary.group);
    let consumed = match (records_in, growth) {
        (Some(comes), Some(growth)) => Some(((comes - growth).max(0.0) * 10.0).round() / 10.0),
        _ => None,
    };
    let catches_up_s = match (lag, growth) {
        _ if unknown_lanes > 0 => None,
        (0, _) => Some(0.0),
        (lag, Some(growth)) if growth < 0.0 && summary.members > 0 => {
            Some((lag as f64 / -growth).ceil())
        }
        _ => None,
    };
    let mut row = GroupRow {
        group: summary.group.clone(),
        kind: if is_kafka { "kafka" } else { "native" },
        order: (!is_kafka).then_some(match summary.order() {
            v1::Order::Lane => "lane",
            v1::Order::None => "none",
            v1::Order::Key => "key",
        }),
        state: is_kafka.then(|| summary.state.clone()),
        streams,
        streams_total: 0,
        members: summary.members,
        leases: summary.leases,
        lag,
        unknown_lanes,
        above_stable: Some(above_stable),
        records_in,
        records_consumed: consumed,
        catches_up_s,
        falls_behind: false,
        why: String::new(),
        coordinator,
    };
    (row.falls_behind, row.why) = why(&row, growth);
    row
}

/// The streams that a group reads, and how many of their records it has not consumed.
pub(super) fn lags(summary: &v1::GroupSummary) -> impl Iterator<Item = StreamLag> {
    let is_native = summary.kind() == v1::GroupKind::Native;
    let native = is_native.then(|| StreamLag {
        stream: summary.stream.clone(),
        lag: summary.lag,
        unknown_lanes: summary.unknown_lanes,
    });
    let kafka = summary.streams.iter().filter(move |_| !is_native);
    let kafka = kafka.map(|of| StreamLag {
        stream: of.stream.clone(),
        lag: of.lag,
        unknown_lanes: of.unknown_lanes,
    });
    native.into_iter().chain(kafka)
}

/// Records that a group has not consumed, of all its streams.
fn lag_of(summary: &v1::GroupSummary) -> u64 {
    lags(summary).map(|of| of.lag).sum()
}

/// The same; `None` while that of some lanes is not known.
pub(super) fn known_lag(summary: &v1::GroupSummary) -> Option<u64> {
    let is_known = lags(summary).all(|of| of.unknown_lanes == 0);
    is_known.then(|| lag_of(summary))
}

/// That owners have not told where lanes end.
fn not_known(unknown_lanes: u32) -> String {
    match unknown_lanes {
        1 => "the owner of 1 lane has not told where it ends, so the lag is not known".to_owned(),
        many => format!(
            "the owners of {many} lanes have not told where they end, so the lag is not known"
        ),
    }
}

/// Whether a group falls behind, and why it lags as it does.
fn why(row: &GroupRow, growth: Option<f64>) -> (bool, String) {
    let comes = row.records_in.unwrap_or_default();
    let consumed = row.records_consumed.unwrap_or_default();
    if row.lag == 0 && row.unknown_lanes > 0 {
        return (false, not_known(row.unknown_lanes));
    }
    if row.lag == 0 {
        let waiting = row.above_stable.unwrap_or_default();
        let text = match waiting {
            0 => "it has consumed everything".to_owned(),
            _ => format!(
                "it has consumed all before an open transaction; {}",
                waits(waiting)
            ),
        };
        return (false, text);
    }
    if row.members == 0 {
        let text = "it has no member, so nobody reads for it";
        return (true, text.into());
    }
    if let Some(state) = row.state.as_deref()
        && (state.ends_with("Rebalance") || state == "Reconciling")
    {
        return (true, "its members divide the work anew".into());
    }
    if row.kind == "native" && row.leases == 0 {
        let text = "its members hold no lease: they ask for none, or wait at a growth barrier";
        return (true, text.into());
    }
    let Some(growth) = growth else {
        return (false, "not known yet: two looks are needed".into());
    };
    if row.lag as f64 <= comes * KEEPS_UP_S {
        return (false, "it keeps up".into());
    }
    let members = match row.members {
        1 => "its member commits".to_owned(),
        many => format!("its {many} members commit"),
    };
    if growth < 0.0 {
        return (
            false,
            format!(
                "it catches up: {members} {consumed:.0} records/s, {comes:.0} records/s come in"
            ),
        );
    }
    if consumed < 0.5 {
        return (
            true,
            format!(
                "{members} nothing; look at their logs, and whether they wait for something else"
            ),
        );
    }
    (
        true,
        format!("it is slow: {members} {consumed:.0} records/s, {comes:.0} records/s come in"),
    )
}

/// That records are to be read once a transaction has ended.
pub(super) fn waits(records: u64) -> String {
    match records {
        1 => "1 record waits for that transaction to end".to_owned(),
        many => format!("{many} records wait for that transaction to end"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::answer::json;
    use super::super::bounds::fit;
    use super::super::views::short;

    use super::*;

    fn told(members: u32, leases: u32, before: u64, lag: u64, comes: f64) -> GroupRow {
        let (mut meter, now) = (Meter::default(), Instant::now());
        for (second, lag) in [(0, before), (1, lag)] {
            let lags = std::iter::once(("g".to_owned(), lag));
            meter.take(now + Duration::from_secs(second), [].iter(), lags);
        }
        let summary = v1::GroupSummary {
            group: "g".into(),
            stream: "s".into(),
            members,
            leases,
            lag,
            ..Default::default()
        };
        row(&summary, 1, &meter, Some(comes), 0)
    }

    #[test]
    fn a_group_tells_why_it_lags() {
        let cases = [
            (told(2, 2, 0, 0, 100.0), false, "consumed everything"),
            (told(0, 0, 50, 50, 0.0), true, "no member"),
            (told(2, 0, 50, 50, 0.0), true, "growth barrier"),
            (told(2, 2, 90, 90, 100.0), false, "keeps up"),
            (told(2, 2, 9000, 9100, 100.0), true, "commit nothing"),
            (told(1, 2, 9000, 9040, 100.0), true, "commits 60 records/s"),
            (told(2, 2, 9000, 8900, 100.0), false, "catches up"),
        ];
        for (row, behind, why) in cases {
            assert_eq!(row.falls_behind, behind, "{why}: {row:?}");
            assert!(row.why.contains(why), "{why}: {row:?}");
        }
        let summary = v1::GroupSummary {
            members: 1,
            ..Default::default()
        };
        let row = row(&summary, 1, &Meter::default(), None, 7);
        assert!(!row.falls_behind);
        assert_eq!(
            row.why,
            "it has consumed all before an open transaction; 7 records wait for that transaction to end"
        );
        let summary = v1::GroupSummary {
            unknown_lanes: 3,
            ..summary
        };
        let unknown = super::row(&summary, 1, &Meter::default(), None, 0);
        assert_eq!(
            (
                unknown.falls_behind,
                unknown.catches_up_s,
                unknown.why.as_str()
            ),
            (
                false,
                None,
                "the owners of 3 lanes have not told where they end, so the lag is not known"
            )
        );
        assert_eq!(known_lag(&summary), None);
        assert_eq!(told(2, 2, 9000, 8900, 100.0).catches_up_s, Some(89.0));
        assert_eq!(told(2, 2, 9000, 9100, 100.0).catches_up_s, None);
        assert_eq!(told(2, 2, 9000, 9040, 100.0).records_consumed, Some(60.0));
    }

    /// Mirrors read thousands of topics, and a page has a hundred groups: the answer still has at most its 1 MiB.
    #[test]
    fn a_row_has_the_streams_that_lag_most_and_their_number() {
        let of = |number: u64| v1::StreamLag {
            stream: format!("{number:064}"),
            lag: number % 10_000,
            unknown_lanes: 0,
        };
        let summary = v1::GroupSummary {
            group: "\u{1}".repeat(1_024),
            streams: (0..20_000).map(of).collect(),
            kind: v1::GroupKind::Kafka.into(),
            members: 1,
            ..Default::default()
        };
        let row = row(&summary, 1, &Meter::default(), None, 0);
        let asked = format!("{:064}", 5);
        let cut = row.clone().cut(Some(&asked));
        assert_eq!((cut.streams.len(), cut.streams_total), (8, 20_000));
        let lags: Vec<_> = cut.streams.iter().map(|of| of.lag).collect();
        assert_eq!(lags, [5, 9_999, 9_999, 9_998, 9_998, 9_997, 9_997, 9_996]);
        assert_eq!(cut.streams[0].stream, asked);
        assert_eq!(cut.lag, row.lag, "that of all");
        let mut most = vec![row.cut(None); 200];
        fit(&mut most, 900 << 10);
        assert!(most.len() > 50, "{}", most.len());
        assert!(json(&most).is_ok());
        assert_eq!(short(&summary.group).chars().count(), 101);
    }
}
