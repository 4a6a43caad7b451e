//! Workload files of the OpenMessaging benchmark, taken as scenarios.
//!
//! A workload says what clients do, in YAML; which brokers do it, batches and linger are the
//! scenario's, as they are the drivers' there.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::File;

/// Repetitions of a workload that is run by itself.
const REPETITIONS: i64 = 3;
/// Records before anything is measured, if a workload that is run by itself wants that.
const WARM_UP: i64 = 3_000_000;
/// How long the producers are alone before a backlog is read.
const ALONE_SECONDS: i64 = 3;
/// Longest run, in minutes.
const LONGEST: f64 = 60.0;

/// What a workload decides, so that a scenario that has one cannot say it too.
const DECIDED: [&str; 11] = [
    "work",
    "records",
    "record_bytes",
    "keys",
    "partitions",
    "rate",
    "rate_of_peak",
    "seconds",
    "producers",
    "consumers",
    "subscriptions",
];

/// Keys that are known and not supported, with what to do.
const UNSUPPORTED: [(&str, &str); 1] = [("logDir", "results go where --out says")];

/// Replaces `workload = "FILE.yaml"` of every scenario in the text of a file by what it decides.
pub(super) fn insert(text: &str, folder: Option<&Path>) -> Result<String> {
    let mut file: toml::Table = toml::from_str(text)?;
    let Some(toml::Value::Array(scenarios)) = file.get_mut("scenario") else {
        return Ok(text.to_owned());
    };
    let mut found = false;
    for scenario in scenarios {
        let toml::Value::Table(scenario) = scenario else {
            continue;
        };
        let Some(path) = scenario.remove("workload") else {
            continue;
        };
        let path = path.as_str().context("workload is the name of a file")?;
        let path = folder.unwrap_or(Path::new("")).join(path);
        let (_, mut decided) = read(&path)?;
        // The file warms up for all of its scenarios.
        decided.remove("warm");
        if let Some(key) = DECIDED.iter().find(|key| scenario.contains_key(**key)) {
            bail!("a scenario with a workload leaves {key} to it");
        }
        scenario.extend(decided);
        found = true;
    }
    // What was not touched keeps its lines, which messages about errors show.
    Ok(if found {
        toml::to_string(&file)?
    } else {
        text.to_owned()
    })
}

/// A workload by itself, for every contender.
pub(super) fn file(path: &Path) -> Result<File> {
    let (name, mut scenario) = read(path)?;
    let contenders = ["kafka", "kera", "kera-native"];
    let strings = |all: &[&str]| {
        let all = all.iter().map(|one| toml::Value::String((*one).to_owned()));
        toml::Value::Array(all.collect())
    };
    scenario.insert("name".into(), toml::Value::String(name.clone()));
    scenario.insert("contenders".into(), strings(&contenders));
    scenario.insert("batch".into(), strings(&["128KiB"]));
    scenario.insert(
        "linger_ms".into(),
        toml::Value::Array(vec![toml::Value::Integer(1)]),
    );
    let warm = scenario
        .remove("warm")
        .is_none_or(|warm| warm == true.into());
    let file = toml::Table::from_iter([
        (
            "title".to_owned(),
            toml::Value::String(format!("Workload: {name}")),
        ),
        (
            "command".to_owned(),
            toml::Value::String(format!("kera-bench run --workload {}", path.display())),
        ),
        ("repetitions".to_owned(), REPETITIONS.into()),
        (
            "warm_up_records".to_owned(),
            if warm { WARM_UP } else { 0 }.into(),
        ),
        (
            "scenario".to_owned(),
            toml::Value::Array(vec![toml::Value::Table(scenario)]),
        ),
    ]);
    File::parse(&toml::to_string(&file)?).with_context(|| format!("in {}", path.display()))
}

fn read(path: &Path) -> Result<(String, toml::Table)> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&text, &stem).with_context(|| format!("in {}", path.display()))
}

/// The workload's name, and what it decides of a scenario.
fn parse(text: &str, stem: &str) -> Result<(String, toml::Table)> {
    let keys: BTreeMap<String, Value> =
        serde_saphyr::from_str(text).context("the workload is no YAML mapping")?;
    let mut keys = Keys { keys };
    let name = match keys.take("name") {
        None => stem.to_owned(),
        Some(Value::String(name)) => name,
        Some(other) => bail!("name: {other} is no text"),
    };
    ensure!(
        keys.number("topics", 1.0)? == 1.0,
        "topics: only one is supported; give it more partitionsPerTopic"
    );
    let partitions = keys.whole("partitionsPerTopic", 1)?;
    let bytes = keys.whole("messageSize", 1024)?;
    let spread = match keys.take("keyDistributor") {
        None => "none",
        Some(Value::String(kind)) => match kind.as_str() {
            "NO_KEY" => "none",
            // Either way every partition gets as many.
            "KEY_ROUND_ROBIN" | "RANDOM_NANO" => "random",
            _ => bail!("keyDistributor: {kind} is not NO_KEY, KEY_ROUND_ROBIN or RANDOM_NANO"),
        },
        Some(other) => bail!("keyDistributor: {other} is no text"),
    };
    keys.payload()?;
    let subscriptions = keys.whole("subscriptionsPerTopic", 1)?;
    let producers = keys.whole("producersPerTopic", 1)?;
    let mut consumers = keys.whole("consumerPerSubscription", 1)?;
    let rate = keys.whole("producerRate", 0)?;
    let backlog = keys.number("consumerBacklogSizeGB", 0.0)?;
    ensure!(
        keys.number("backlogDrainRatio", 1.0)? == 1.0,
        "backlogDrainRatio: a backlog is read to its end; leave it out"
    );
    let minutes = keys.number("testDurationMinutes", 1.0)?;
    ensure!(
        minutes > 0.0 && minutes <= LONGEST,
        "testDurationMinutes is above 0, and {LONGEST} at most"
    );
    let warm = keys.number("warmupDurationMinutes", 1.0)? > 0.0;
    keys.none_left()?;

    if subscriptions == 0 {
        consumers = 0;
    }
    let seconds = ((minutes * 60.0).ceil() as i64).max(2);
    let mut scenario = toml::Table::new();
    let mut set = |key: &str, value: toml::Value| {
        scenario.insert(key.to_owned(), value);
    };
    let list = |value: i64| toml::Value::Array(vec![value.into()]);
    if backlog > 0.0 {
        ensure!(
            rate > 0,
            "consumerBacklogSizeGB: say at which producerRate the producers go on meanwhile"
        );
        let records = (backlog * 1e9 / bytes.max(1) as f64).ceil() as i64;
        set("work", "catch-up".into());
        set("records", records.into());
        set("rate", list(rate));
        set("seconds", ALONE_SECONDS.into());
    } else if rate > 0 {
        set("work", "latency".into());
        set("rate", list(rate));
        set("seconds", seconds.into());
    } else {
        set("work", "both".into());
        set("seconds", seconds.into());
    }
    set("record_bytes", bytes.into());
    set("keys", spread.into());
    set("partitions", list(partitions));
    set("producers", list(producers));
    set("consumers", list(consumers));
    set("subscriptions", subscriptions.max(1).into());
    set("warm", warm.into());
    Ok((name, scenario))
}

/// The keys that were not looked at yet.
struct Keys {
    keys: BTreeMap<String, Value>,
}

impl Keys {
    fn take(&mut self, key: &str) -> Option<Value> {
        self.keys.remove(key).filter(|value| !value.is_null())
    }

    fn number(&mut self, key: &str, without: f64) -> Result<f64> {
        let Some(value) = self.take(key) else {
            return Ok(without);
        };
        let number = value.as_f64().filter(|number| *number >= 0.0);
        number.with_context(|| format!("{key}: {value} is no number of 0 or more"))
    }

    fn whole(&mut self, key: &str, without: i64) -> Result<i64> {
        let number = self.number(key, without as f64)?;
        ensure!(
            number.fract() == 0.0 && number <= 1e12,
            "{key}: {number} is no whole number, or too large"
        );
        Ok(number as i64)
    }

    /// What records hold makes no difference to brokers that do not compress: they are random bytes.
    fn payload(&mut self) -> Result<()> {
        let file = self.take("payloadFile");
        if let Some(file) = file {
            eprintln!("payloadFile {file} is not read: records are random bytes of messageSize");
        }
        self.take("useRandomizedPayloads");
        self.take("randomizedPayloadPoolSize");
        ensure!(
            self.number("randomBytesRatio", 1.0)? == 1.0,
            "randomBytesRatio: records are random bytes; leave it out or say 1"
        );
        Ok(())
    }

    fn none_left(&self) -> Result<()> {
        let Some(key) = self.keys.keys().next() else {
            return Ok(());
        };
        let hint = UNSUPPORTED.iter().find(|(name, _)| name == key);
        match hint {
            Some((_, hint)) => bail!("{key} is not supported: {hint}"),
            None => bail!(
                "{key} is not known; known are topics, partitionsPerTopic, messageSize, keyDistributor, payloadFile, \
                 subscriptionsPerTopic, producersPerTopic, consumerPerSubscription, producerRate, \
                 consumerBacklogSizeGB, testDurationMinutes and warmupDurationMinutes"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Cases, Keys as RecordKeys, Work};

    const RATE: &str = "
name: orders at a rate
topics: 1
partitionsPerTopic: 16
keyDistributor: \"RANDOM_NANO\"
messageSize: 1024
payloadFile: \"payload/payload-1Kb.data\"
subscriptionsPerTopic: 2
consumerPerSubscription: 3
producersPerTopic: 4
producerRate: 50000
consumerBacklogSizeGB: 0
testDurationMinutes: 0.5
";

    fn case(text: &str) -> crate::scenario::Case {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.yaml");
        std::fs::write(&path, text).unwrap();
        let mut cases = Cases::of(&file(&path).unwrap(), 1).0;
        assert_eq!(cases.len(), 1);
        cases.remove(0)
    }

    fn problem(text: &str) -> String {
        format!("{:#}", parse(text, "w").expect_err("the file is wrong"))
    }

    #[test]
    fn a_rate_is_an_open_loop() {
        let case = case(RATE);
        assert_eq!((case.work, case.keys), (Work::Latency, RecordKeys::Random));
        assert_eq!((case.rate, case.records), (Some(50_000), 1_500_000));
        assert_eq!((case.record_bytes, case.partitions), (1024, 16));
        let crowd = case.crowd;
        assert_eq!(
            (crowd.producers, crowd.consumers, crowd.subscriptions),
            (4, 3, 2)
        );
    }

    #[test]
    fn no_rate_is_as_fast_as_it_goes_and_a_backlog_is_caught_up_with() {
        let both = case(&RATE.replace("50000", "0"));
        assert_eq!((both.work, both.crowd.millis), (Work::Both, Some(30_000)));
        let without = case(
            &RATE
                .replace("50000", "0")
                .replace("subscriptionsPerTopic: 2", "subscriptionsPerTopic: 0"),
        );
        assert_eq!(without.crowd.consumers, 0);
        let backlog = RATE.replace("BacklogSizeGB: 0", "BacklogSizeGB: 0.5");
        let behind = case(&backlog);
        assert_eq!((behind.work, behind.records), (Work::CatchUp, 488_282));
        assert!(problem(&backlog.replace("50000", "0")).contains("producerRate"));
    }

    #[test]
    fn what_is_not_known_is_refused_with_a_hint() {
        assert!(problem(&format!("{RATE}producerRates: 1")).contains("known are topics"));
        assert!(problem(&format!("{RATE}logDir: /x")).contains("--out"));
        assert!(problem(&RATE.replace("topics: 1", "topics: 2")).contains("partitionsPerTopic"));
        assert!(problem(&RATE.replace("RANDOM_NANO", "HASH")).contains("NO_KEY"));
        assert!(problem(&RATE.replace("1024", "lots")).contains("messageSize"));
        assert!(problem(&RATE.replace("0.5", "-1")).contains("testDurationMinutes"));
        assert!(problem(&format!("{RATE}randomBytesRatio: 0.5")).contains("random bytes"));
        assert!(problem("- a\n- b").contains("YAML"));
    }

    #[test]
    fn a_scenario_can_name_one() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("w.yaml"), RATE).unwrap();
        let text = "title = \"T\"\ncommand = \"c\"\n[[scenario]]\nname = \"w\"\n\
            workload = \"w.yaml\"\ncontenders = [\"kera\"]\nbatch = [\"16KiB\"]\nlinger_ms = [1]\n";
        let file = File::parse_in(text, Some(folder.path())).unwrap();
        let cases = Cases::of(&file, 1).0;
        assert_eq!(cases[0].rate, Some(50_000));
        let twice = format!("{text}rate = [1]\n");
        let error = File::parse_in(&twice, Some(folder.path())).unwrap_err();
        assert!(error.to_string().contains("leaves rate"), "{error}");
    }

    #[test]
    fn the_workloads_of_the_repository_can_be_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = file(&entry.unwrap().path()).unwrap();
            assert_eq!(Cases::of(&file, 1).0.len(), 1);
            seen += 1;
        }
        assert!(seen >= 3);
    }
}
