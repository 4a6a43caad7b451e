//! What is shown of a look: which list, in which order, which rows.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;

use super::look::{Look, byte_rate, number, rate, text};
use crate::output::{Table, count, lag, rounded_bytes, short_time};

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum View {
    /// Streams, with the lag of each group.
    Streams,
    /// Consumer groups, with the time until they have caught up.
    Groups,
    /// Brokers.
    Brokers,
}

/// Headings of a list; those of numbers begin with `>`.
fn headings(view: View) -> &'static [&'static str] {
    match view {
        View::Streams => &[
            "stream",
            ">lag",
            ">records in",
            ">in",
            ">out",
            ">stored",
            ">lanes",
            "groups that read it",
        ],
        View::Groups => &[
            "group",
            ">lag",
            "catches up",
            ">consumes",
            ">members",
            "reads",
            "why it lags",
        ],
        View::Brokers => &[
            "broker",
            "state",
            ">streamlets",
            ">records in",
            ">cpu",
            ">disk free",
            ">connections",
            "address",
        ],
    }
}

/// Columns that go where a terminal has no room for all, in this order.
fn dispensable(view: View) -> &'static [usize] {
    match view {
        View::Streams => &[6, 5, 3, 4, 2],
        View::Groups => &[5, 4, 3, 2],
        View::Brokers => &[6, 4, 3, 5],
    }
}

/// What a list can be sorted by: the column, and the field of the API.
fn sorts(view: View) -> &'static [(&'static str, &'static str)] {
    match view {
        View::Streams => &[
            ("records in", "records_in"),
            ("lag", "lag"),
            ("stored", "bytes"),
            ("name", "name"),
        ],
        View::Groups => &[
            ("lag", "lag"),
            ("consumes", "records_consumed"),
            ("members", "members"),
            ("name", "group"),
        ],
        View::Brokers => &[
            ("number", "broker_id"),
            ("records in", "records_in"),
            ("streamlets", "streamlets"),
            ("cpu", "cpu_share"),
        ],
    }
}

/// What somebody has chosen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) view: View,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) offset: usize,
    /// Of each list, the place of its order among [`sorts`].
    sorted: [usize; 3],
}

impl State {
    pub(super) fn new(view: View) -> Self {
        Self {
            view,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            offset: 0,
            sorted: [0; 3],
        }
    }

    /// Shows another list.
    pub(super) fn show(&mut self, view: View) {
        (self.view, self.offset) = (view, 0);
    }

    /// The list after this one.
    pub(super) fn next_view(&mut self) {
        self.show(match self.view {
            View::Streams => View::Groups,
            View::Groups => View::Brokers,
            View::Brokers => View::Streams,
        });
    }

    /// Sorts by the next column that a list can be sorted by.
    pub(super) fn sort_next(&mut self) {
        let place = &mut self.sorted[self.view as usize];
        *place = (*place + 1) % sorts(self.view).len();
        self.offset = 0;
    }

    /// What the list is sorted by.
    pub(super) fn sorted_by(&self) -> &'static str {
        sorts(self.view)[self.sorted[self.view as usize]].0
    }

    /// The rows of a list, as chosen.
    fn rows<'a>(&self, view: View, look: &'a Look) -> Vec<&'a Value> {
        let wanted = self.filter.to_lowercase();
        let name = |row: &Value| match view {
            View::Streams => text(&row["name"]),
            View::Groups => text(&row["group"]),
            View::Brokers => format!("{} {}", row["broker_id"], text(&row["address"])),
        };
        let items = list(view, look)["items"].as_array();
        let rows = items.into_iter().flatten();
        let mut rows: Vec<_> = rows
            .filter(|row| name(row).to_lowercase().contains(&wanted))
            .collect();
        let (_, field) = sorts(view)[self.sorted[view as usize]];
        rows.sort_by(|a, b| match (&a[field], &b[field]) {
            (Value::String(a), Value::String(b)) => a.cmp(b),
            // Brokers stand in the order of their numbers, all else with most first.
            (a, b) if field == "broker_id" => number(a).cmp(&number(b)),
            (a, b) => b
                .as_f64()
                .unwrap_or(-1.0)
                .total_cmp(&a.as_f64().unwrap_or(-1.0)),
        });
        rows
    }

    /// A list as a table.
    pub(super) fn table(&self, view: View, look: &Look) -> Table {
        let mut table = Table::new(headings(view));
        for row in self.rows(view, look) {
            table.row(cells(view, row));
        }
        table
    }

    /// The rows of the list that is shown, and whether each deserves a look.
    pub(super) fn cells(&self, look: &Look) -> Vec<(Vec<String>, bool)> {
        let rows = self.rows(self.view, look).into_iter();
        rows.map(|row| (cells(self.view, row), is_bad(self.view, row)))
            .collect()
    }

    pub(super) fn headings(&self) -> &'static [&'static str] {
        headings(self.view)
    }

    /// Columns that go where there is no room for all.
    pub(super) fn dispensable(&self) -> &'static [usize] {
        dispensable(self.view)
    }
}

fn list(view: View, look: &Look) -> &Value {
    match view {
        View::Streams => &look.streams,
        View::Groups => &look.groups,
        View::Brokers => &look.brokers,
    }
}

/// A list's name, and how many rows there are.
pub(super) fn title(view: View, look: &Look) -> String {
    let total = number(&list(view, look)["total"]);
    let shown = list(view, look)["items"].as_array().map_or(0, Vec::len) as u64;
    let name = match view {
        View::Streams => "Streams",
        View::Groups => "Consumer groups",
        View::Brokers => "Brokers",
    };
    match shown < total {
        true => format!("{name}: {} of {}", count(shown), count(total)),
        false => format!("{name}: {}", count(total)),
    }
}

fn is_bad(view: View, row: &Value) -> bool {
    match view {
        View::Streams => number(&row["unserved_streamlets"]) > 0,
        View::Groups => row["falls_behind"] == true,
        View::Brokers => {
            row["state"] == "SILENT"
                || row["state"] == "REFUSED"
                || row["state"] == "GONE"
                || row["not_ready"].is_string()
        }
    }
}

fn cells(view: View, row: &Value) -> Vec<String> {
    match view {
        View::Streams => vec![
            text(&row["name"]),
            lag_of_stream(row),
            rate(&row["records_in"], ""),
            byte_rate(&row["bytes_in"]),
            byte_rate(&row["bytes_out"]),
            rounded_bytes(number(&row["bytes"])),
            count(number(&row["partitions"])),
            readers(row),
        ],
        View::Groups => vec![
            text(&row["group"]),
            lag_of(row),
            catches_up(row),
            rate(&row["records_consumed"], ""),
            count(number(&row["members"])),
            reads(row),
            text(&row["why"]),
        ],
        View::Brokers => vec![
            format!(
                "{}{}",
                row["broker_id"],
                if row["controller"] == true {
                    " controller"
                } else {
                    ""
                }
            ),
            match text(&row["not_ready"]) {
                ready if ready.is_empty() => text(&row["state"]),
                reason => format!("NOT READY: {reason}"),
            },
            count(number(&row["streamlets"])),
            rate(&row["records_in"], ""),
            row["cpu_share"]
                .as_f64()
                .map_or_else(|| "-".into(), |share| format!("{:.0} %", share * 100.0)),
            row["disk_free_bytes"]
                .as_u64()
                .map_or_else(|| "-".into(), rounded_bytes),
            row["connections"]
                .as_u64()
                .map_or_else(|| "-".into(), count),
            text(&row["address"]),
        ],
    }
}

/// Of a group, or of one in a stream's row.
fn lag_of(row: &Value) -> String {
    lag(number(&row["lag"]), number(&row["unknown_lanes"]))
}

/// Of the group that lags most, as far as that is known.
fn lag_of_stream(row: &Value) -> String {
    let groups = row["groups"].as_array().into_iter().flatten();
    let unknown = groups.map(|of| number(&of["unknown_lanes"])).sum();
    lag(number(&row["lag"]), unknown)
}

fn readers(row: &Value) -> String {
    let groups = row["groups"].as_array().into_iter().flatten();
    let mut told: Vec<_> = groups
        .take(3)
        .map(|of| format!("{} {}", text(&of["group"]), lag_of(of)))
        .collect();
    let total = number(&row["groups_total"]);
    match total {
        0 => return "none".into(),
        total if total > 3 => told.push(format!("{} more", total - 3)),
        _ => {}
    }
    told.join(", ")
}

fn reads(row: &Value) -> String {
    let streams = row["streams"].as_array().into_iter().flatten();
    let mut told: Vec<_> = streams.take(3).map(|of| text(&of["stream"])).collect();
    // Earlier brokers do not tell how many there are.
    let total = number(&row["streams_total"]);
    if total > 3 {
        told.push(format!("{} more", total - 3));
    }
    told.join(", ")
}

/// When a group will have caught up, at the pace of the last seconds.
fn catches_up(row: &Value) -> String {
    if number(&row["unknown_lanes"]) > 0 {
        return "-".into();
    }
    if number(&row["lag"]) == 0 {
        return "caught up".into();
    }
    match row["catches_up_s"].as_f64() {
        _ if row["why"] == "it keeps up" => "keeps up".into(),
        Some(seconds) => format!(
            "in {}",
            short_time(Duration::from_secs_f64(seconds.min(1e9)))
        ),
        None if row["records_consumed"].is_null() => "-".into(),
        None => "never".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look() -> Look {
        let stream = |name: &str, rate: f64, lag: u64| {
            json!({"name": name, "partitions": 4, "records_in": rate, "bytes_in": 2048.0, "bytes_out": null, "bytes": 1 << 20,
                "lag": lag, "groups_total": 1, "groups": [{"group": "g", "lag": lag}]})
        };
        let group = |name: &str, lag: u64, seconds: Option<f64>| {
            json!({"group": name, "lag": lag, "members": 2, "records_consumed": 5.0, "catches_up_s": seconds,
                "streams": [{"stream": "orders"}], "why": "slow", "falls_behind": seconds.is_none()})
        };
        Look {
            overview: json!({"health": {"state": "ok", "sentence": "All is well.", "advice": ""}, "streams": 2}),
            streams: json!({"total": 2, "items": [stream("orders", 10.0, 900), stream("clicks", 500.0, 3)]}),
            groups: json!({"total": 2, "items": [group("a\u{1b}[2J", 10, Some(90.0)), group("b", 4000, None)]}),
            brokers: json!({"total": 1, "items": [{"broker_id": 1, "state": "NORMAL", "address": "localhost:7600"}]}),
        }
    }

    fn first_cells(state: &State) -> Vec<String> {
        let cells = state.cells(&look()).into_iter();
        cells.map(|(mut cells, _)| cells.swap_remove(0)).collect()
    }

    #[test]
    fn lists_are_sorted_and_filtered() {
        let mut state = State::new(View::Streams);
        assert_eq!(
            (state.sorted_by(), first_cells(&state)),
            ("records in", vec!["clicks".into(), "orders".into()])
        );
        state.sort_next();
        assert_eq!(
            (state.sorted_by(), first_cells(&state)),
            ("lag", vec!["orders".into(), "clicks".into()])
        );
        state.filter = "CLI".into();
        assert_eq!(first_cells(&state), ["clicks"]);
        for _ in 0..3 {
            state.sort_next();
        }
        assert_eq!(state.sorted_by(), "records in");
    }

    #[test]
    fn a_group_of_many_streams_tells_of_how_many() {
        let streams: Vec<_> = (0..8).map(|n| json!({"stream": format!("t{n}")})).collect();
        let row = |total: u64| json!({"streams": streams, "streams_total": total});
        assert_eq!(reads(&row(12)), "t0, t1, t2, 9 more");
        assert_eq!(reads(&json!({"streams": [{"stream": "t0"}]})), "t0");
    }

    #[test]
    fn a_lag_that_is_not_known_is_none() {
        let group =
            |lag: u64| json!({"group": "g", "lag": lag, "unknown_lanes": 2, "catches_up_s": null});
        assert_eq!(cells(View::Groups, &group(0))[1..3], ["-", "-"]);
        assert_eq!(cells(View::Groups, &group(7))[1..3], ["7+", "-"]);
        let stream = json!({"name": "s", "lag": 7, "groups_total": 1, "groups": [group(7)]});
        let cells = cells(View::Streams, &stream);
        assert_eq!([&cells[1], &cells[7]], ["7+", "g 7+"]);
    }

    #[test]
    fn groups_tell_when_they_have_caught_up_and_brokers_what_is_not_known() {
        let mut state = State::new(View::Streams);
        state.next_view();
        let groups = state.cells(&look());
        assert_eq!(groups[0].0[..3], ["b", "4,000", "never"]);
        assert!(groups[0].1 && !groups[1].1);
        // Names do not command the terminal.
        assert_eq!(groups[1].0[..3], ["a\\u{1b}[2J", "10", "in 90.00 s"]);
        state.next_view();
        assert_eq!(state.cells(&look())[0].0[3..6], ["-", "-", "-"]);
        state.next_view();
        assert_eq!(state.view, View::Streams);
        assert_eq!(title(View::Streams, &look()), "Streams: 2");
    }
}
