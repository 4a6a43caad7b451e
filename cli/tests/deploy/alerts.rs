//! The alerts, by Prometheus's own tool: their form, and moments at which each fires and does not.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::home;
use crate::tools::{run, wanted};
use crate::{read, repository, yaml};

#[test]
fn promtool_reads_the_alerts_and_they_fire_when_they_should() {
    const NAME: &str = "promtool_reads_the_alerts_and_they_fire_when_they_should";
    let Some(promtool) = wanted(NAME, "promtool") else {
        return;
    };
    let said = |words: &[&str], file: &str| {
        let mut command = Command::new(&promtool);
        command.args(words).arg(repository(file));
        run(command)
    };
    let checked = said(
        &["check", "rules", "--lint-fatal"],
        "deploy/monitoring/alerts.yaml",
    );
    assert!(checked.good, "{}", checked.said);
    let played = said(&["test", "rules"], "deploy/monitoring/alerts_test.yaml");
    assert!(played.good, "{}", played.said);
    for file in [
        "compose/prometheus.yaml",
        "compose/prometheus-cluster.yaml",
        "monitoring/prometheus-secured.yaml",
    ] {
        let file = format!("deploy/{file}");
        let scrape = said(&["check", "config", "--syntax-only"], &file);
        assert!(scrape.good, "{}", scrape.said);
    }

    // An alert that never fires is seen.
    let home = home();
    let alerts = read("deploy/monitoring/alerts.yaml");
    let broken = alerts.replace("kera_disk_full == 1", "kera_disk_full == 2");
    assert_ne!(alerts, broken);
    let write = |name: &str, text: &str| {
        std::fs::write(home.path().join(name), text).expect("a file can be written");
    };
    write("alerts.yaml", &broken);
    write(
        "alerts_test.yaml",
        &read("deploy/monitoring/alerts_test.yaml"),
    );
    let mut command = Command::new(&promtool);
    command
        .args(["test", "rules"])
        .arg(home.path().join("alerts_test.yaml"));
    let verdict = run(command);
    assert!(
        !verdict.good && verdict.said.contains("KeraDiskFull"),
        "{}",
        verdict.said
    );
}

#[test]
fn the_dashboards_queries_are_queries() {
    const NAME: &str = "the_dashboards_queries_are_queries";
    let Some(promtool) = wanted(NAME, "promtool") else {
        return;
    };
    // As recording rules, which promtool reads; Grafana's variables as what they stand for.
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/monitoring/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut rules = Vec::new();
    for (number, target) in targets.enumerate() {
        let query = target["expr"].as_str().expect("a query");
        let query = query.replace("$__rate_interval", "5m");
        rules.push(serde_json::json!({ "record": format!("query:{number}"), "expr": query }));
    }
    assert!(rules.len() > 20, "only {} queries", rules.len());
    let file = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let home = home();
    let path = home.path().join("rules.yaml");
    // JSON is YAML.
    std::fs::write(&path, file.to_string()).expect("a file can be written");
    let mut command = Command::new(&promtool);
    command.args(["check", "rules"]).arg(&path);
    let verdict = run(command);
    assert!(verdict.good, "{}", verdict.said);
}

#[test]
fn every_alert_is_played() {
    let alerts = yaml(&read("deploy/monitoring/alerts.yaml"));
    let tests = yaml(&read("deploy/monitoring/alerts_test.yaml"));
    let mut unplayed = BTreeSet::new();
    for group in alerts["groups"].as_array().expect("groups") {
        for rule in group["rules"].as_array().expect("rules") {
            let name = rule["alert"].as_str().expect("an alert");
            assert!(unplayed.insert(name), "{name} is there twice");
            for field in [
                "/labels/severity",
                "/annotations/summary",
                "/annotations/description",
            ] {
                assert!(rule.pointer(field).is_some(), "{name} lacks {field}");
            }
        }
    }
    for test in tests["tests"].as_array().expect("tests") {
        for moment in test["alert_rule_test"].as_array().expect("moments") {
            let fires = moment["exp_alerts"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
            if fires {
                unplayed.remove(moment["alertname"].as_str().expect("an alert"));
            }
        }
    }
    assert!(unplayed.is_empty(), "never seen to fire: {unplayed:?}");
}
