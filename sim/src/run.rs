//! One run from beginning to end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_history::{Event, Expectations, check};
use serde_json::{Value, json};

use crate::brokers::Brokers;
use crate::cut::Cut;
use crate::dice::Dice;
use crate::faults::Faults;
use crate::load::{Load, PATIENCE, on_own};
use crate::newer::Power;
use crate::plan::Plan;
use crate::store::Store;
use crate::{
    compaction, consuming, finale, inside, keys, os, pinning, producing, shares, transactions,
    watching,
};

/// The machine of the first producer, of the first member, and of who reads everything in the end.
const PRODUCERS: u32 = 101;
const MEMBERS: u32 = 111;
const LAST: u32 = 120;
/// The machines of the first producer with transactions, and of the first reader of them.
const TRANSACTIONS: u32 = 105;
const COMMITTED: u32 = 118;
/// The machines of the first producer of the compacted stream, and of its first reader.
const TABLE: u32 = 121;
const TABLE_READERS: u32 = 123;
/// The machines of the producer by key, and of the first member of the group that keeps the order of keys.
const KEYS: u32 = 126;
const KEY_MEMBERS: u32 = 127;
/// The machines of the producer for the share group, and of its first member.
const SHARES: u32 = 131;
const SHARE_MEMBERS: u32 = 132;
/// The machine of who pins positions.
const PINS: u32 = 115;
/// The machine of the first reader without a group.
const WATCHERS: u32 = 116;
/// Numbers of the history that each place of a member has.
const NUMBERS_EACH: u32 = 1_000;
/// The number of the first reader without a group.
const FIRST_WATCHER: u32 = 100_000;

/// Plays the run of `seed` in `root`, without what `cut` leaves out of it; its findings, and what it was like.
///
/// With `losses` one machine loses its power or its disk, where no stream has `ack = memory`: there the owner's process
/// counts as a replica, and a group with two, one of them on that machine, is gone with a killed owner. The policy
/// permits that, and the stream waits for an operator.
pub fn play(seed: u64, root: &Path, cut: &Cut, losses: bool) -> (Vec<String>, Value) {
    let plan = Plan::of(seed).cut(cut);
    os::log(&format!("seed {seed}: {plan:?}"));
    os::set_network(plan.network);
    os::set_disk(plan.disk);
    let drifts = &mut Dice::new(seed, "clocks");
    for broker in (1..=plan.brokers).filter(|_| plan.newer.drift > 0) {
        let millionths = drifts.between(0, 2 * plan.newer.drift) as i64;
        os::wall_drift(broker, millionths - plan.newer.drift as i64);
    }
    if plan.newer.power != Power::Kept {
        let saved = root.join("saved");
        if let Err(error) = std::fs::create_dir_all(&saved) {
            return (vec![format!("{}: {error}", saved.display())], json!({}));
        }
        os::remember_unflushed(saved);
    }
    let store = Store::new(seed, plan.store);
    let brokers = Brokers::new(&plan, root, store.clone());
    let over = Arc::new(AtomicBool::new(false));
    keep_leases(&brokers, &store, &over);
    brokers
        .all()
        .into_iter()
        .for_each(|broker| brokers.start(broker));

    let load = Load::new(&plan, brokers.bootstrap());
    load.record(Event::BrokerStarted);
    let creating = load.clone();
    let created = on_own(LAST, "create", move || async move {
        creating.create_streams().await
    });
    match created.join() {
        Ok(Ok(())) => os::log("the streams are made"),
        Ok(Err(error)) => return (vec![error], json!({})),
        Err(_) => return (vec!["making streams panicked".to_owned()], json!({})),
    }

    let producers: Vec<JoinHandle<u64>> = (0..plan.producers.len() as u32)
        .map(|number| {
            let (load, dice) = (load.clone(), Dice::new(seed, &format!("producer {number}")));
            on_own(PRODUCERS + number, "producer", move || {
                producing::run(load, number, dice)
            })
        })
        .collect();
    let drained = Arc::new(AtomicBool::new(false));
    let members: Vec<JoinHandle<()>> = (0..plan.members)
        .map(|number| {
            let (load, dice) = (load.clone(), Dice::new(seed, &format!("member {number}")));
            let drained = drained.clone();
            let first = (number + 1) * NUMBERS_EACH;
            on_own(MEMBERS + number, "member", move || {
                consuming::run(load, first, dice, drained)
            })
        })
        .collect();

    let watchers: Vec<JoinHandle<()>> = (0..plan.watchers)
        .map(|number| {
            let (load, dice) = (load.clone(), Dice::new(seed, &format!("watcher {number}")));
            let first = FIRST_WATCHER + number * NUMBERS_EACH;
            on_own(WATCHERS + number, "watcher", move || {
                watching::run(load, first, dice)
            })
        })
        .collect();

    let transactional = transactions::Shared::of(&load);
    let (beginning, committed) = transactional_clients(seed, &load, transactional.as_ref());

    let table = compaction::Shared::of(&load);
    let (writing, reading_table) = table_clients(seed, table.as_ref());

    let by_key = keys::Shared::of(&load);
    let (writing_keys, key_members) = key_clients(seed, by_key.as_ref(), &drained);

    let shared = shares::Shared::of(&load, &store);
    let (writing_shares, share_members) = share_clients(seed, shared.as_ref(), &drained);

    let pinning = plan.newer.retention.then(|| {
        let (load, dice) = (load.clone(), Dice::new(seed, "pins"));
        on_own(PINS, "pins", move || pinning::run(load, dice))
    });

    let mut faults = Faults::new(
        seed,
        brokers.clone(),
        store.clone(),
        load.clone(),
        losses && !plan.remembers(),
        &cut.without,
    );
    faults.play(os::now() + plan.trouble, plan.between);
    faults.heal();
    let healed = os::now();
    load.stop();
    let sent = join_all(&mut faults, &load, producers, "producers")
        .into_iter()
        .sum::<u64>();
    os::log(&format!("all {sent} records have their outcome"));
    let pinned = pinning.into_iter().collect();
    let pinned = join_all(&mut faults, &load, pinned, "who pins").pop();
    join_all(&mut faults, &load, watchers, "readers");
    join_all(&mut faults, &load, beginning, "producers of transactions");
    join_all(&mut faults, &load, committed, "readers of transactions");
    join_all(&mut faults, &load, writing, "producers of the table");
    join_all(&mut faults, &load, reading_table, "readers of the table");
    join_all(&mut faults, &load, writing_keys, "the producer by key");
    if let Some(shared) = by_key.clone() {
        let drain = on_own(LAST, "drain", move || keys::drain(shared));
        join_all(&mut faults, &load, vec![drain], "the group by key");
    }
    join_all(
        &mut faults,
        &load,
        writing_shares,
        "the producer for the share group",
    );
    if let Some(shared) = shared.clone() {
        let draining = shared.clone();
        let drain = on_own(LAST, "drain", move || shares::drain(draining));
        // Its members may take few records at a time, and long for each; who stands still is told of sooner.
        let drain = vec![drain];
        join_within(4 * PATIENCE, &mut faults, &load, drain, "the share group");
        if shared.plan().dead_letters {
            let reading = shared.clone();
            let read = on_own(LAST, "letters", move || shares::read_letters(reading));
            join_all(&mut faults, &load, vec![read], "reading dead letters");
        }
    }
    if plan.members > 0 {
        let draining = load.clone();
        let drain = on_own(LAST, "drain", move || finale::drain(draining));
        join_all(&mut faults, &load, vec![drain], "the group");
    }
    drained.store(true, Ordering::SeqCst);
    join_all(&mut faults, &load, members, "members");
    join_all(&mut faults, &load, key_members, "members by key");
    join_all(
        &mut faults,
        &load,
        share_members,
        "members of the share group",
    );
    let got_shared = shared.map(|shared| {
        let findings = shared.judge.findings().into_iter();
        findings.for_each(|finding| load.complain(format!("shares: {finding}")));
        let (written, got) = shared.judge.counts();
        json!({"written": written, "got": got})
    });
    let got_by_key = by_key.map(|shared| {
        let findings = shared.keys.findings().into_iter();
        findings.for_each(|finding| load.complain(format!("keys: {finding}")));
        let (written, got) = shared.keys.counts();
        json!({"written": written, "got": got})
    });
    let reading = load.clone();
    let read = on_own(LAST, "read", move || finale::read_everything(reading, 0));
    join_all(&mut faults, &load, vec![read], "reading everything");
    let counts = transactional.map(|shared| judge_transactions(shared, &load, &mut faults));
    let left = table.map(|shared| judge_table(shared, &load, &mut faults));
    os::log("everything is read");
    inside::look(&load, &brokers, &store, &mut faults);
    // An older state names replicas that have moved since.
    let missed = match load.was_put_back() {
        true => Vec::new(),
        false => inside::not_there(&brokers),
    };
    for line in missed {
        load.complain(line);
    }
    over.store(true, Ordering::SeqCst);
    let took = os::now() - healed;
    let faults = faults.drawn();
    let (findings, mut facts) = judge(&load, sent, took, faults);
    if let (Some(done), Value::Object(facts)) = (pinned, &mut facts) {
        let pinning::Done {
            made,
            lost,
            trimmed,
            ..
        } = done;
        let told = json!({"made": made, "lost": lost, "lanes that begin later": trimmed});
        facts.insert("pins".to_owned(), told);
    }
    if let (Some(counts), Value::Object(facts)) = (counts, &mut facts) {
        facts.insert("transactions".to_owned(), counts);
    }
    if let (Some(left), Value::Object(facts)) = (left, &mut facts) {
        facts.insert("table".to_owned(), left);
    }
    if let (Some(got), Value::Object(facts)) = (got_by_key, &mut facts) {
        facts.insert("keys".to_owned(), got);
    }
    if let (Some(got), Value::Object(facts)) = (got_shared, &mut facts) {
        facts.insert("shares".to_owned(), got);
    }
    (findings, facts)
}

/// Who begins and ends transactions, and who reads what counts of them.
fn transactional_clients(
    seed: u64,
    load: &Load,
    shared: Option<&Arc<transactions::Shared>>,
) -> (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
    let (Some(shared), Some(plan)) = (shared, &load.plan.transactions) else {
        return (Vec::new(), Vec::new());
    };
    let beginning = (0..plan.producers).map(|number| {
        let dice = Dice::new(seed, &format!("transactions {number}"));
        let shared = shared.clone();
        on_own(TRANSACTIONS + number, "transactions", move || {
            transactions::produce(shared, number, dice)
        })
    });
    let readers = (0..plan.readers).map(|number| {
        let dice = Dice::new(seed, &format!("reader of transactions {number}"));
        let shared = shared.clone();
        on_own(COMMITTED + number, "committed", move || {
            transactions::watch(shared, (number + 1) * 100, dice)
        })
    });
    (beginning.collect(), readers.collect())
}

/// Reads what counts until nothing is held up any more, and judges it; how many transactions ended how.
fn judge_transactions(
    shared: Arc<transactions::Shared>,
    load: &Arc<Load>,
    faults: &mut Faults,
) -> Value {
    let judging = shared.clone();
    let read = on_own(LAST, "transactions", move || {
        transactions::until_all_is_read(judging)
    });
    let findings = join_all(faults, load, vec![read], "reading transactions");
    findings
        .into_iter()
        .flatten()
        .for_each(|finding| load.complain(finding));
    let count = |outcome| shared.ledger.count(outcome);
    json!({
        "committed": count(transactions::Outcome::Committed),
        "aborted": count(transactions::Outcome::Aborted),
        "left": count(transactions::Outcome::Left),
        "unknown": count(transactions::Outcome::Unknown),
    })
}

/// Who writes the compacted stream, and who reads it.
fn table_clients(
    seed: u64,
    shared: Option<&Arc<compaction::Shared>>,
) -> (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
    let Some((shared, plan)) = shared.and_then(|s| Some((s, s.load.plan.table.as_ref()?))) else {
        return (Vec::new(), Vec::new());
    };
    let writing = (0..plan.producers).map(|number| {
        let dice = Dice::new(seed, &format!("table {number}"));
        let shared = shared.clone();
        on_own(TABLE + number, "table", move || {
            compaction::produce(shared, number, dice)
        })
    });
    let readers = (0..plan.readers).map(|number| {
        let dice = Dice::new(seed, &format!("reader of the table {number}"));
        let shared = shared.clone();
        on_own(TABLE_READERS + number, "reads table", move || {
            compaction::watch(shared, (number + 1) * 100, dice)
        })
    });
    (writing.collect(), readers.collect())
}

/// Who writes the stream whose group keeps the order of keys, and the group's members.
fn key_clients(
    seed: u64,
    shared: Option<&Arc<keys::Shared>>,
    over: &Arc<AtomicBool>,
) -> (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
    let Some((shared, plan)) = shared.and_then(|s| Some((s, s.load.plan.keys.as_ref()?))) else {
        return (Vec::new(), Vec::new());
    };
    let producing = shared.clone();
    let dice = Dice::new(seed, "producer by key");
    let writing = on_own(KEYS, "by key", move || keys::produce(producing, dice));
    let members = (0..plan.members).map(|number| {
        let dice = Dice::new(seed, &format!("member by key {number}"));
        let (shared, over) = (shared.clone(), over.clone());
        on_own(KEY_MEMBERS + number, "by key", move || {
            keys::consume(shared, dice, over)
        })
    });
    (vec![writing], members.collect())
}

/// Who writes the stream that a share group reads, and the group's members. What is set for the group is set before.
fn share_clients(
    seed: u64,
    shared: Option<&Arc<shares::Shared>>,
    over: &Arc<AtomicBool>,
) -> (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
    let Some((shared, plan)) = shared.and_then(|s| Some((s, s.load.plan.shares.as_ref()?))) else {
        return (Vec::new(), Vec::new());
    };
    let configuring = shared.clone();
    let configured = on_own(LAST, "configure", move || shares::configure(configuring));
    if configured.join().is_err() {
        shared
            .load
            .complain("setting what is set for the share group panicked".to_owned());
    }
    let producing = shared.clone();
    let dice = Dice::new(seed, "producer for the share group");
    let writing = on_own(SHARES, "shares", move || shares::produce(producing, dice));
    let members = (0..plan.members).map(|number| {
        let dice = Dice::new(seed, &format!("member of the share group {number}"));
        let (shared, over) = (shared.clone(), over.clone());
        on_own(SHARE_MEMBERS + number, "shares", move || {
            shares::consume(shared, number, dice, over)
        })
    });
    (vec![writing], members.collect())
}

/// Reads what is left of the compacted stream, has it compacted, and judges it; how many records are left of how many.
fn judge_table(shared: Arc<compaction::Shared>, load: &Arc<Load>, faults: &mut Faults) -> Value {
    let read = on_own(LAST, "table", move || compaction::read_and_compact(shared));
    let done = join_all(faults, load, vec![read], "reading the table").pop();
    let (findings, (written, left)) = done.unwrap_or_default();
    findings
        .into_iter()
        .for_each(|finding| load.complain(format!("table: {finding}")));
    json!({"written": written, "left": left})
}

/// Ends leases of who is not heard of, until the run is over.
fn keep_leases(brokers: &Arc<Brokers>, store: &Arc<Store>, over: &Arc<AtomicBool>) {
    let (brokers, store, over) = (brokers.clone(), store.clone(), over.clone());
    os::on_node(0, "leases", move || {
        while !over.load(Ordering::SeqCst) {
            os::sleep(Duration::from_millis(100));
            store.look_at_leases(&brokers.running());
        }
    });
}

/// Waits for clients; whoever does not end in time is a finding.
fn join_all<T>(faults: &mut Faults, load: &Load, threads: Vec<JoinHandle<T>>, who: &str) -> Vec<T> {
    join_within(
        PATIENCE + Duration::from_secs(60),
        faults,
        load,
        threads,
        who,
    )
}

fn join_within<T>(
    patience: Duration,
    faults: &mut Faults,
    load: &Load,
    threads: Vec<JoinHandle<T>>,
    who: &str,
) -> Vec<T> {
    let until = os::now() + patience;
    let mut done = Vec::new();
    for thread in threads {
        while !thread.is_finished() && os::now() < until {
            os::sleep(Duration::from_millis(20));
            faults.start_what_has_ended();
        }
        if !thread.is_finished() {
            load.complain(format!("{who} did not come to an end"));
            continue;
        }
        match thread.join() {
            Ok(value) => done.push(value),
            Err(_) => load.complain(format!("{who} panicked")),
        }
    }
    done
}

fn judge(load: &Arc<Load>, sent: u64, healing: Duration, faults: u32) -> (Vec<String>, Value) {
    let mut findings = load.complaints();
    findings.extend(inside::panics());
    findings.extend(os::spinning());
    let expectations = Expectations {
        complete: true,
        ..Expectations::default()
    };
    let judged = load
        .history()
        .and_then(|history| check(&history, &expectations));
    let told = match judged {
        Ok(report) => {
            if !report.is_clean() {
                findings.push(format!("history: {}", report.headline()));
                for line in report.to_string().lines() {
                    os::log(line);
                }
            }
            json!({"acknowledged": report.counts.acknowledged, "read": report.counts.read, "kills": report.counts.kills})
        }
        Err(error) => {
            findings.push(format!("the history cannot be judged: {error}"));
            json!({})
        }
    };
    if load.acknowledged() == 0 {
        findings.push("nothing was acknowledged: the run says nothing".to_owned());
    }
    let seconds = os::now().as_secs_f64();
    let healing = healing.as_secs_f64();
    let plan = &load.plan;
    let facts = json!({
        "sent": sent, "seconds": seconds, "healing": healing, "history": told, "faults": faults,
        "producers": plan.producers.len(), "members": plan.members, "trouble_ms": plan.trouble.as_millis() as u64,
    });
    (findings, facts)
}
