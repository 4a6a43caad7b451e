use std::fs;
use std::path::Path;

use kera_protocol::error::{ErrorCode, WireError};

use super::*;
use crate::config::{BrokerConfig, Listener};
use crate::principal::Principal;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn opened(path: &Path, max_per_second: u32) -> Arc<Audit> {
    let config = AuditConfig {
        to: AuditTarget::File(path.to_owned()),
        max_per_second,
        ..BrokerConfig::default().audit
    };
    Audit::open(&config).unwrap()
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

fn peer(host: IpAddr) -> Peer {
    Peer {
        via: Listener::Kafka.into(),
        host,
    }
}

fn who(principal: &Principal) -> Who<'_> {
    Who {
        principal,
        host: HERE,
        via: Listener::Native.into(),
    }
}

fn deletion() -> Change {
    Change::new("delete_stream", "stream", "s", "")
}

#[test]
fn a_line_says_who_did_what_and_what_came_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = opened(&path, 100);
    audit.name(7);
    let far = peer("::ffff:10.0.0.1".parse().unwrap());
    audit.login(far, "PLAIN", "ann\n", Ok(()));
    audit.login(far, "PLAIN", "ann\n", Err("wrong"));
    let ann = Principal::User("ann".into());
    let named = Who {
        via: Via::new(Listener::Native, Some("outer")),
        ..who(&ann)
    };
    audit.denied(named, Operation::Write, (Kind::Stream, "pay"));
    let long = "x".repeat(100_000);
    let change = Change::new("create_stream", "stream", &long, &long);
    let attempt = || audit.attempt(who(&ann), change.clone());
    attempt().made();
    let error = |code| WireError::new(code, "no room");
    attempt().end(Err::<&(), _>(&error(ErrorCode::StorageFull)));
    attempt().end(Err::<&(), _>(&error(ErrorCode::Timeout)));
    // The client went away meanwhile.
    drop(attempt());
    audit.end();
    let lines = lines(&path);
    let of = |key: &str| -> Vec<_> {
        let values = lines.iter().map(|line| line[key].as_str().unwrap_or("-"));
        values.collect()
    };
    let results = [
        "done",
        "refused",
        "refused",
        "done",
        "failed",
        "uncertain",
        "uncertain",
    ];
    assert_eq!(of("result"), results);
    assert_eq!(of("user")[1..3], ["User:ann\u{FFFD}", "User:ann"]);
    assert_eq!(of("host")[..3], ["10.0.0.1", "10.0.0.1", "127.0.0.1"]);
    assert_eq!(of("listener")[1..3], ["kafka", "native"]);
    assert_eq!(of("listener_name")[1..4], ["-", "outer", "-"]);
    assert_eq!(of("action")[2..4], ["write", "create_stream"]);
    assert_eq!(of("reason")[4..6], ["no room", "no room"]);
    assert!(lines[3].to_string().len() < 2048, "names are cut");
    let cut = |key: &str| lines[3][key].as_str().map(str::to_owned);
    assert_eq!(cut("name"), Some("x".repeat(NAME - 1) + "\u{2026}"));
    assert_eq!(cut("detail"), Some("x".repeat(TEXT - 1) + "\u{2026}"));
    let fits = Change::new("create_stream", "stream", "x".repeat(NAME), "");
    assert_eq!(fits.name, "x".repeat(NAME));
    let rule = Change::new("add_rule", "rule", &long[..900], "");
    assert_eq!(rule.name.len(), 900, "a rule is told whole");
    assert!(lines.iter().all(|line| line["broker"] == 7));
    // The log has ended: what comes now is counted as lost.
    attempt().made();
    let lost = audit.counts.missing();
    assert_eq!(lost.len(), 1);
}

#[test]
fn refusals_are_limited_and_summed_up_and_changes_and_logins_are_not_hidden_by_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = opened(&path, 4);
    for _ in 0..100_000 {
        audit.login(peer(HERE), "PLAIN", "ann", Err("wrong"));
    }
    audit.login(peer(HERE), "PLAIN", "ann", Ok(()));
    let secret = (Kind::Stream, "pay");
    audit.denied(who(&Principal::Anonymous), Operation::Read, secret);
    for _ in 0..1000 {
        audit.attempt(who(&Principal::Anonymous), deletion()).made();
    }
    audit.end();
    let lines = lines(&path);
    let found = |event: &str, result: &str| -> Vec<_> {
        let fits = |line: &&serde_json::Value| line["event"] == event && line["result"] == result;
        lines.iter().filter(fits).collect()
    };
    assert_eq!(found("change", "done").len(), 1000);
    assert_eq!(found("login", "done").len(), 1, "the guess that was right");
    assert_eq!(found("access", "refused").len(), 1, "what the rules deny");
    // One for each second that this takes, and how many more there were.
    let refused = found("login", "refused");
    let summed = refused.iter().filter_map(|line| line["count"].as_u64());
    let summed: u64 = summed.sum();
    let single = refused.iter().filter(|line| line["count"].is_null());
    assert_eq!(single.count() as u64 + summed, 100_000);
    assert!(summed > 50_000, "{summed}");
}

#[test]
fn a_full_disk_loses_lines_and_says_so_and_stops_nobody() {
    let counted = |audit: &Audit, result: &str| {
        let events = audit.events().unwrap();
        events
            .get_or_create_owned(&vec![("result", result.to_owned())])
            .get()
    };
    // It opens, and each write to it fails with ENOSPC.
    let full = opened(Path::new("/dev/full"), 100);
    for _ in 0..10_000 {
        full.attempt(who(&Principal::Anonymous), deletion()).made();
    }
    full.end();
    assert_eq!(counted(&full, "written"), 0);
    assert_eq!(counted(&full, "lost"), 10_000);
}

/// A disk that does not answer.
struct Hangs(Receiver<()>);

impl Sink for Hangs {
    fn write(&mut self, _lines: &[String]) -> u64 {
        let _ = self.0.recv();
        0
    }
}

#[test]
fn a_disk_that_does_not_answer_keeps_no_broker_from_ending() {
    let (answer, waits) = sync_channel(0);
    let audit = Audit::into_sink(Box::new(Hangs(waits)), 100).unwrap();
    for _ in 0..3 {
        audit.attempt(who(&Principal::Anonymous), deletion()).made();
    }
    audit.end_within(Duration::from_millis(10));
    // Nor does it wait again.
    audit.end();
    drop(answer);
}

#[test]
fn without_an_audit_log_nothing_is_counted() {
    let audit = Audit::open(&BrokerConfig::default().audit).unwrap();
    audit.login(peer(HERE), "PLAIN", "ann", Err("wrong"));
    audit.attempt(who(&Principal::Anonymous), deletion()).made();
    assert!(audit.events().is_none());
    assert!(audit.counts.missing().is_empty());
}

#[test]
fn control_characters_do_not_lengthen_a_line_and_a_rule_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = opened(&path, 100);
    let control = "\u{1}".repeat(NAME);
    audit.login(peer(HERE), "PLAIN", &control, Err(&control));
    let stream = "s".repeat(249);
    let rule = format!("allow User:{} write stream={stream}", "u".repeat(249));
    let change = Change::new("add_rule", "rule", &rule, "");
    audit.attempt(who(&Principal::Anonymous), change).made();
    let each = Change::new("remove_rules", "rule", "", "");
    let attempt = audit.attempt(who(&Principal::Anonymous), each);
    attempt.made_each([rule.clone()].into_iter());
    audit.end();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("\\u0001"), "{text}");
    let lines = lines(&path);
    assert_eq!(lines[1]["name"], rule);
    assert_eq!(lines[2]["name"], rule);
}
