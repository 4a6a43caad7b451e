//! A session: brokers are started, and every case is run by turns.

mod closed;
pub(crate) mod interrupt;
pub(crate) mod loader;
mod peak;
mod prepare;
mod progress;
mod run;
mod start;
mod turn;
pub(crate) mod workplace;

pub(crate) use self::run::{list, run};

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use self::interrupt::Interrupt;
use self::prepare::Prepared;
use self::progress::Progress;
use crate::peers::{Places, Running};
use crate::report;
use crate::results::{BrokerFacts, CaseRuns, LeftOut, Run, Taken};
use crate::scenario::{
    Acks, Broker, Case, Cluster, Contender, Crowd, Durability, Keys, Size, Work,
};

/// How long a warm-up appends at most, for each kind of batches.
const WARM_UP_SECONDS: f64 = 10.0;
/// Records of a transaction of a warm-up.
const WARM_TRANSACTION: u32 = 1_000;
/// Runs of one contender that may fail in a row before its turn is dropped from a case.
const FAILURES: u32 = 2;

/// The brokers that cases need, and the modes in which they are used.
fn brokers_of(cases: &[&Case]) -> BTreeMap<Broker, Vec<Durability>> {
    let mut wanted: BTreeMap<Broker, BTreeSet<Durability>> = BTreeMap::new();
    for case in cases {
        for contender in case.able() {
            let modes = wanted.entry(case.broker(contender)).or_default();
            modes.insert(case.durability);
        }
    }
    let wanted = wanted.into_iter();
    wanted
        .map(|(broker, modes)| (broker, modes.into_iter().collect()))
        .collect()
}

/// The brokers at work.
struct Session {
    brokers: BTreeMap<Broker, Running>,
    interrupt: Interrupt,
    noise: f64,
    noisy_repeats: u32,
    /// Topics made so far; each has a name of its own.
    topics: u64,
    places: Places,
    /// Records a second that a contender has shown it can do, for each kind of case.
    peaks: BTreeMap<(Contender, String), Result<f64, String>>,
}

impl Session {
    /// Starts what the cases need; facts of those that run, and why others do not.
    fn start(&mut self, cases: &[&Case]) -> (Vec<BrokerFacts>, Vec<LeftOut>) {
        let (mut facts, mut left_out) = (Vec::new(), Vec::new());
        for (broker, modes) in brokers_of(cases) {
            eprintln!("starting {}", broker.title());
            match Running::start(broker, &modes, &self.places) {
                Ok(running) => {
                    facts.push(running.facts.clone());
                    self.brokers.insert(broker, running);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    eprintln!("{} IS LEFT OUT: {why}", broker.title());
                    left_out.push(LeftOut { broker, why });
                }
            }
        }
        (facts, left_out)
    }

    fn new_topic(&mut self) -> String {
        self.topics += 1;
        format!("bench-{}", self.topics)
    }

    /// Lets every contender do some work of each kind that it will be measured at.
    fn warm_up(&mut self, cases: &[&Case], records: u64, progress: &Progress) -> Result<()> {
        if records == 0 {
            return Ok(());
        }
        let mut wanted: Vec<(Contender, Option<Cluster>)> = Vec::new();
        for case in cases.iter().filter(|case| case.work != Work::Start) {
            for &contender in &case.contenders {
                let present = self.brokers.contains_key(&case.broker(contender));
                // A cluster is warmed up with as many copies as it will ever have.
                let brokers = |cluster: Option<Cluster>| cluster.map(|cluster| cluster.brokers);
                let same = wanted.iter_mut().find(|(one, cluster)| {
                    *one == contender && brokers(*cluster) == brokers(case.cluster)
                });
                match same {
                    Some((_, Some(cluster))) => {
                        let copies = case.cluster.map_or(1, |cluster| cluster.replicas);
                        cluster.replicas = cluster.replicas.max(copies);
                    }
                    Some(_) => {}
                    None if present => wanted.push((contender, case.cluster)),
                    None => {}
                }
            }
        }
        wanted.sort_by_key(|(contender, cluster)| (*contender, cluster.map(|one| one.brokers)));
        for (contender, cluster) in wanted {
            progress.doing(format!("warming up {}", contender.name()));
            let durability = durability_of(cases, contender, cluster);
            if let Err(error) = self.warm_up_one((contender, durability), cluster, records) {
                self.interrupt.check()?;
                progress.say(format!("{} DID NOT WARM UP: {error:#}", contender.name()));
            }
        }
        Ok(())
    }

    fn warm_up_one(
        &mut self,
        (contender, durability): (Contender, Durability),
        cluster: Option<Cluster>,
        records: u64,
    ) -> Result<()> {
        let kinds = [(16 << 10, 1), (16 << 10, 16), (128 << 10, 1)];
        for (batch, partitions) in kinds {
            let produce = Case {
                scenario: "warm-up".to_owned(),
                work: Work::Produce,
                contenders: vec![contender],
                records: (records / kinds.len() as u64).max(1),
                record_bytes: 100,
                keys: Keys::Random,
                batch: Size(batch),
                linger_ms: 5.0,
                partitions,
                acks: Acks::All,
                durability,
                most_seconds: Some(WARM_UP_SECONDS),
                rate: None,
                idle_ms: None,
                closed_groups: None,
                transaction_records: contender.has_transactions().then_some(WARM_TRANSACTION),
                compacted_records: None,
                crowd: Crowd::default(),
                cluster,
                targets: Vec::new(),
            };
            let topic = self.new_topic();
            let broker = self.broker(&produce, contender)?;
            broker.create(&topic, partitions, produce.durability, cluster)?;
            let (produced, _) = self.run_load(&produce, contender, &topic, None)?;
            let consume = Case {
                work: Work::Consume,
                records: produced.records,
                ..produce
            };
            self.run_load(&consume, contender, &topic, None)?;
            broker.delete(&topic)?;
        }
        Ok(())
    }

    /// The broker that a contender speaks to.
    fn broker(&self, case: &Case, contender: Contender) -> Result<&Running> {
        let running = self.brokers.get(&case.broker(contender));
        let running = running.context("the broker does not run")?;
        running.check()?;
        Ok(running)
    }

    /// Runs a case: every contender in turn, and that so often.
    fn case(&mut self, case: &Case, repetitions: u32, progress: &Progress) -> Result<CaseRuns> {
        let mut runs: Vec<Run> = Vec::new();
        let present = |one: &Contender| self.brokers.contains_key(&case.broker(*one));
        let contenders: Vec<_> = case.able().filter(present).collect();
        let prepared = self.prepare(case, &contenders, progress)?;
        let actual = self.at_share_of_peak(case, &contenders, progress)?;
        let mut failed: BTreeMap<Contender, u32> = BTreeMap::new();
        for repetition in 1..=repetitions {
            for &contender in &contenders {
                if failed
                    .get(&contender)
                    .is_some_and(|&times| times >= FAILURES)
                {
                    continue;
                }
                progress.doing(format!("{} {}", contender.name(), case.name()));
                let pace = contender.paced_by().map(|pace| rate_of(&runs, pace));
                let topic = prepared.get(&case.broker(contender));
                let run = match (topic, &actual[&contender]) {
                    (Some(Err(why)), _) | (_, Err(why)) => {
                        Run::failed(contender, repetition, why.clone())
                    }
                    _ if pace == Some(None) => {
                        Run::failed(contender, repetition, "nothing gives its pace".into())
                    }
                    (topic, Ok(actual)) => {
                        let topic = topic.and_then(|topic| topic.as_ref().ok());
                        let who = (contender, pace.flatten());
                        self.repeat_while_noisy(actual, who, repetition, topic)
                    }
                };
                self.interrupt.check()?;
                if let Some(why) = &run.failure {
                    *failed.entry(contender).or_default() += 1;
                    let running = self.brokers.get(&case.broker(contender));
                    let log = running.map(Running::log_tail).unwrap_or_default();
                    progress.say(format!("{} FAILED: {why}\n  {log}", contender.name()));
                } else {
                    failed.remove(&contender);
                }
                runs.push(run);
                progress.one_done(case);
            }
        }
        self.clean_up(case, prepared, progress);
        let runs = CaseRuns {
            case: case.clone(),
            from: None,
            runs,
        };
        progress.say(report::one_line(&runs));
        Ok(runs)
    }

    fn repeat_while_noisy(
        &mut self,
        case: &Case,
        (contender, pace): (Contender, Option<u64>),
        repetition: u32,
        prepared: Option<&Prepared>,
    ) -> Run {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let done = match prepared {
                Some(prepared) => self.run_prepared(case, contender, prepared),
                None => self.one_run(case, (contender, pace)),
            };
            match done {
                Ok((_, others)) if others > self.noise && attempts <= self.noisy_repeats => {}
                Ok((taken, others)) => {
                    return Run {
                        contender,
                        repetition,
                        attempts,
                        noisy: others > self.noise,
                        others,
                        taken: Some(taken),
                        failure: None,
                    };
                }
                Err(error) => return Run::failed(contender, repetition, format!("{error:#}")),
            }
        }
    }

    /// A run on a topic of its own.
    fn one_run(
        &mut self,
        case: &Case,
        (contender, pace): (Contender, Option<u64>),
    ) -> Result<(Taken, f64)> {
        let topic = self.new_topic();
        self.create(case, contender, &topic)?;
        let beside = format!("{topic}-beside");
        let result = self
            .fill_backlog(case, contender, &topic)
            .and_then(|()| self.compact_beside(case, contender, &beside))
            .and_then(|()| self.run_load(case, contender, &topic, pace));
        if case.compacted_records.is_some() {
            self.broker(case, contender)?.delete(&beside)?;
        }
        let deleted = self.broker(case, contender)?.delete(&topic);
        if result.is_ok() {
            deleted?;
        }
        result
    }
}

/// What a contender's acknowledgements mean while it warms up: what they mean in all of its cases at such a
/// cluster, so that the code which that takes is warm; `written` where cases differ.
fn durability_of(cases: &[&Case], contender: Contender, cluster: Option<Cluster>) -> Durability {
    let brokers = |cluster: Option<Cluster>| cluster.map(|cluster| cluster.brokers);
    let mut cases = cases.iter().filter(|case| {
        case.contenders.contains(&contender) && brokers(case.cluster) == brokers(cluster)
    });
    let first = cases
        .next()
        .map_or(Durability::Written, |case| case.durability);
    match cases.all(|case| case.durability == first) {
        true => first,
        false => Durability::Written,
    }
}

/// Records a second that a contender reached in its last run.
fn rate_of(runs: &[Run], contender: Contender) -> Option<u64> {
    let mut runs = runs.iter().rev().filter(|run| run.contender == contender);
    let taken = runs.find_map(|run| run.taken.as_ref())?;
    Some((taken.records as f64 / taken.seconds) as u64)
}
