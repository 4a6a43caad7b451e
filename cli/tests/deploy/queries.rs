//! The queries of the dashboard and of the alerts against what a broker exposes: whoever renames a
//! metric or a label mends both.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::metrics::{Exposed, exposed};
use crate::{read, yaml};

/// Series and labels that Prometheus adds itself.
const OF_PROMETHEUS: &str = "up";
const LABELS_OF_PROMETHEUS: [&str; 2] = ["instance", "job"];
/// Words of the query language that are neither functions nor names.
const WORDS: [&str; 10] = [
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
];
/// After these comes a list of labels.
const BEFORE_LABELS: [&str; 5] = ["by", "without", "on", "ignoring", "group_left"];

/// The names of series and of labels in a query.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    series: BTreeSet<String>,
    /// Labels that one series is asked for, with it.
    matched: BTreeSet<(String, String)>,
    /// Labels that results are grouped or matched by.
    grouped: BTreeSet<String>,
}

/// The next name in `text`, if it begins with one.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    &text[..end.unwrap_or(text.len())]
}

/// What stands in the brackets that `text` begins with, and what follows. Quoted text may hold any.
fn bracketed(text: &str, close: char) -> (&str, &str) {
    let mut quoted = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' => quoted = !quoted,
            c if c == close && !quoted => return (&text[1..at], &text[at + 1..]),
            _ => {}
        }
    }
    panic!("{text} lacks a {close}");
}

fn names(query: &str) -> Names {
    let mut names = Names::default();
    let mut rest = query;
    let mut last = "";
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_alphabetic() || first == '_' {
            let name = word(rest);
            rest = &rest[name.len()..];
            let next = rest.trim_start();
            // Of a function, or of an aggregation with its labels in front.
            let called = next.starts_with('(') || matches!(word(next), "by" | "without");
            if !WORDS.contains(&name) && !called {
                names.series.insert(name.to_owned());
            }
            last = name;
        } else if first.is_ascii_digit() {
            rest = &rest[word(rest).len()..];
        } else if first == '[' {
            (_, rest) = bracketed(rest, ']');
        } else if first == '{' {
            let inner;
            (inner, rest) = bracketed(rest, '}');
            // Outside of quotes, a name is a label's.
            for unquoted in inner.split('"').step_by(2) {
                let label = word(unquoted.trim_start_matches([',', ' ']));
                if !label.is_empty() {
                    names.matched.insert((last.to_owned(), label.to_owned()));
                }
            }
        } else if first == '(' && BEFORE_LABELS.contains(&last) {
            let inner;
            (inner, rest) = bracketed(rest, ')');
            names
                .grouped
                .extend(inner.split(',').map(|label| label.trim().to_owned()));
            last = "";
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    names
}

/// What a query asks for and a broker does not expose.
fn faults(query: &str, exposed: &Exposed) -> Vec<String> {
    let names = names(query);
    let mut faults = Vec::new();
    for series in &names.series {
        if series != OF_PROMETHEUS && !exposed.contains_key(series) {
            faults.push(format!("no series {series}: {query}"));
        }
    }
    let of_prometheus = |label: &str| LABELS_OF_PROMETHEUS.contains(&label);
    for (series, label) in &names.matched {
        let known = exposed
            .get(series)
            .is_some_and(|labels| labels.contains(label));
        if !known && !of_prometheus(label) {
            faults.push(format!("{series} has no label {label}: {query}"));
        }
    }
    for label in &names.grouped {
        let mut asked = names.series.iter().filter_map(|series| exposed.get(series));
        if !of_prometheus(label) && !asked.all(|labels| labels.contains(label)) {
            faults.push(format!("not every series has a label {label}: {query}"));
        }
    }
    faults
}

/// The queries of the dashboard: those of its panels, and those of its variables.
fn of_dashboard() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&read("deploy/monitoring/dashboard.json")).expect("JSON");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().expect("a query").to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("a list") {
        let Some(query) = variable["query"]["query"].as_str() else {
            continue;
        };
        // `label_values(series, label)` is Grafana's: the label is one of the series.
        let inner = query.strip_prefix("label_values(").expect("label values");
        let (series, label) = inner.rsplit_once(',').expect("a series and a label");
        let label = label.trim().trim_end_matches(')');
        queries.push(format!("sum by ({label}) ({series})"));
    }
    queries
}

/// The queries of the alerts, each with its alert.
fn of_alerts() -> Vec<(String, String)> {
    let alerts = yaml(&read("deploy/monitoring/alerts.yaml"));
    let mut queries = Vec::new();
    for group in alerts["groups"].as_array().expect("groups") {
        for rule in group["rules"].as_array().expect("rules") {
            let text = |key: &str| rule[key].as_str().expect("text").to_owned();
            queries.push((text("alert"), text("expr")));
        }
    }
    queries
}

#[test]
fn every_query_asks_for_what_a_broker_exposes_and_all_of_it_is_shown() {
    let Some(exposed) = exposed() else {
        return;
    };
    let panels = of_dashboard();
    let alerts = of_alerts().into_iter().map(|(_, query)| query);
    let queries: Vec<String> = panels.into_iter().chain(alerts).collect();
    let broken: Vec<String> = queries
        .iter()
        .flat_map(|query| faults(query, &exposed))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));

    let mut unseen: BTreeSet<&str> = exposed.keys().map(String::as_str).collect();
    for query in &queries {
        for series in names(query).series {
            unseen.remove(series.as_str());
        }
    }
    // Of a histogram its buckets are asked for.
    unseen.retain(|series| !series.ends_with("_count") && !series.ends_with("_sum"));
    assert!(unseen.is_empty(), "neither shown nor watched: {unseen:?}");
    assert!(
        queries.len() > 30,
        "only {} queries were found",
        queries.len()
    );
}

#[test]
fn every_alert_is_explained_to_operators() {
    let document = read("docs/operations.md");
    for (alert, _) in of_alerts() {
        assert!(
            document.contains(&format!("`{alert}`")),
            "docs/operations.md does not speak of {alert}"
        );
    }
    // And no other.
    for code in document.split('`').skip(1).step_by(2) {
        let is_alert = code.len() > 4
            && code.starts_with("Kera")
            && code.chars().all(|c| c.is_ascii_alphabetic());
        if is_alert {
            assert!(
                of_alerts().iter().any(|(alert, _)| alert == code),
                "{code} is no alert"
            );
        }
    }
}

#[test]
fn the_charts_copies_are_the_files() {
    for name in ["alerts.yaml", "dashboard.json"] {
        let (file, copy) = (
            format!("deploy/monitoring/{name}"),
            format!("deploy/helm/kera/files/{name}"),
        );
        assert!(read(&file) == read(&copy), "cp {file} {copy}");
    }
}

#[test]
fn panels_have_what_grafana_needs() {
    let dashboard: Value =
        serde_json::from_str(&read("deploy/monitoring/dashboard.json")).expect("JSON");
    assert_eq!(dashboard["uid"], "kera");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: its id is taken");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{title} reaches beyond the grid");
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} lies on another panel");
            }
        }
        if panel["type"] != "row" {
            let described = panel["description"]
                .as_str()
                .is_some_and(|text| !text.is_empty());
            assert!(described, "{title} does not say what it shows");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            assert!(
                panel["fieldConfig"]["defaults"]["unit"].is_string(),
                "{title}"
            );
        }
    }
}

#[test]
fn names_are_found_in_queries() {
    let found = names(
        "histogram_quantile(0.99, sum by (le, host) (rate(a_bucket{x=~\"b,}\",y=\"c\"}[5m]))) > 1e3\
         \nand on(z) topk (3, kera:d) or e offset 5m",
    );
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found.series, set(&["a_bucket", "kera:d", "e"]));
    assert_eq!(found.grouped, set(&["le", "host", "z"]));

    let matched = ["x", "y"].map(|label| ("a_bucket".to_owned(), label.to_owned()));
    assert_eq!(found.matched, BTreeSet::from(matched));

    let exposed = Exposed::from([
        ("a".to_owned(), set(&["x"])),
        ("b".to_owned(), BTreeSet::new()),
    ]);
    let good = faults(
        "sum by (x, instance) (a{x=\"1\", job=\"y\"}) or b",
        &exposed,
    );
    assert_eq!(good.len(), 1, "b has no x: {good:?}");
    assert_eq!(
        faults("sum by (x) (a{x=\"1\"})", &exposed),
        Vec::<String>::new()
    );
    for query in ["c", "a{y=\"1\"}", "sum by (y) (a)"] {
        assert_eq!(faults(query, &exposed).len(), 1, "{query}");
    }
}
