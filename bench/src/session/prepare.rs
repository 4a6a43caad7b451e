//! Topics that are made, or filled, before what is measured.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::Session;
use super::progress::Progress;
use crate::results::Taken;
use crate::scenario::{Broker, Case, ClientPath, Contender, Crowd, Keys, Work};

/// How often a run is tried on a topic with very many partitions: a broker may still be busy making
/// them.
const TRIES: u32 = 2;

/// A topic that all runs of a case use.
pub(super) struct Prepared {
    topic: String,
    /// Fewer than wanted if the broker could not have so many.
    partitions: u32,
}

/// The topic of each broker, or why there is none.
pub(super) type Topics = BTreeMap<Broker, Result<Prepared, String>>;

impl Session {
    /// Makes a topic at every broker for work that goes on where the run before left it, or that
    /// reads what is there again and again.
    pub(super) fn prepare(
        &mut self,
        case: &Case,
        contenders: &[Contender],
        progress: &Progress,
    ) -> Result<Topics> {
        let mut topics = BTreeMap::new();
        let filled = matches!(case.work, Work::Consume | Work::Share);
        if !filled && !matches!(case.work, Work::Trickle | Work::Start) {
            return Ok(topics);
        }
        for &contender in contenders {
            let broker = case.broker(contender);
            if topics.contains_key(&broker) {
                continue;
            }
            let topic = if filled {
                progress.doing(format!("filling {}", broker.title()));
                self.filled(case, contender)
            } else if case.work == Work::Start {
                progress.doing(format!("preparing {}", broker.title()));
                self.prepare_start(case, contender).map(|topic| Prepared {
                    topic,
                    partitions: case.partitions,
                })
            } else {
                progress.doing(format!(
                    "{} partitions at {}",
                    case.partitions,
                    broker.title()
                ));
                self.widest(case, contender, progress)
            };
            self.interrupt.check()?;
            topics.insert(broker, topic.map_err(|error| format!("{error:#}")));
        }
        // Nothing is left to be written while runs are measured.
        rustix::fs::sync();
        Ok(topics)
    }

    /// A topic with the case's records.
    fn filled(&mut self, case: &Case, contender: Contender) -> Result<Prepared> {
        let topic = self.new_topic();
        self.create(case, contender, &topic)?;
        self.run_load(&fill(case), contender, &topic, None)?;
        Ok(Prepared {
            topic,
            partitions: case.partitions,
        })
    }

    /// A topic with as many partitions as the case wants, or half of that, and so on; one run that
    /// does not count shows that the broker can work with them.
    fn widest(
        &mut self,
        case: &Case,
        contender: Contender,
        progress: &Progress,
    ) -> Result<Prepared> {
        let mut wanted = case.clone();
        loop {
            let topic = self.new_topic();
            let mut tried = self.create(&wanted, contender, &topic);
            if tried.is_ok() {
                for _ in 0..TRIES {
                    tried = self.run_load(&wanted, contender, &topic, None).map(|_| ());
                    self.interrupt.check()?;
                    if tried.is_ok() {
                        break;
                    }
                }
            }
            match tried {
                Ok(()) => {
                    return Ok(Prepared {
                        topic,
                        partitions: wanted.partitions,
                    });
                }
                Err(error) if wanted.partitions > 1 => {
                    self.interrupt.check()?;
                    progress.say(format!(
                        "{} CANNOT HAVE {} PARTITIONS: {error:#}",
                        contender.name(),
                        wanted.partitions
                    ));
                    // Whatever there is of it is in the way.
                    let _ = self.broker(&wanted, contender)?.delete(&topic);
                    wanted.partitions /= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A run on a topic that stays.
    pub(super) fn run_prepared(
        &self,
        case: &Case,
        contender: Contender,
        prepared: &Prepared,
    ) -> Result<(Taken, f64)> {
        if case.work == Work::Start {
            return self.start_once(case, contender);
        }
        let actual = Case {
            partitions: prepared.partitions,
            ..case.clone()
        };
        let (mut taken, others) = self.run_load(&actual, contender, &prepared.topic, None)?;
        if prepared.partitions != case.partitions {
            taken.sides.partitions = Some(prepared.partitions);
        }
        Ok((taken, others))
    }

    pub(super) fn clean_up(&self, case: &Case, topics: Topics, progress: &Progress) {
        for (broker, topic) in topics {
            if case.work == Work::Start {
                if let Err(error) = self.forget_start(broker) {
                    progress.say(format!("{}: {error:#}", broker.title()));
                }
            } else if let (Some(running), Ok(prepared)) = (self.brokers.get(&broker), topic)
                && let Err(error) = running.delete(&prepared.topic)
            {
                progress.say(format!("{}: {error:#}", broker.title()));
            }
        }
    }

    /// Makes a topic, or a stream with several lanes in each streamlet.
    pub(super) fn create(&self, case: &Case, contender: Contender, topic: &str) -> Result<()> {
        let broker = self.broker(case, contender)?;
        match case.crowd.streamlets {
            Some(streamlets) if contender.path() == ClientPath::Native => broker.create_stream(
                topic,
                streamlets,
                case.partitions / streamlets,
                case.durability,
                case.cluster,
            ),
            _ => broker.create(topic, case.partitions, case.durability, case.cluster),
        }
    }

    /// Appends what a consumer is to catch up with.
    pub(super) fn fill_backlog(
        &self,
        case: &Case,
        contender: Contender,
        topic: &str,
    ) -> Result<()> {
        if !matches!(case.work, Work::CatchUp | Work::Compact) {
            return Ok(());
        }
        let filled = self.run_load(&fill(case), contender, topic, None);
        filled.context("the backlog could not be made")?;
        rustix::fs::sync();
        if case.work == Work::Compact {
            self.broker(case, contender)?.compact_from_now(topic)?;
        }
        Ok(())
    }

    /// Fills a stream beside that of a run, if the case has one, and has the broker begin to compact it if that is to go on
    /// during the run of this contender.
    pub(super) fn compact_beside(
        &self,
        case: &Case,
        contender: Contender,
        stream: &str,
    ) -> Result<()> {
        let Some(records) = case.compacted_records else {
            return Ok(());
        };
        let beside = Case {
            work: Work::Compact,
            records,
            keys: Keys::Tenth,
            compacted_records: None,
            ..case.clone()
        };
        self.create(&beside, contender, stream)?;
        if contender == Contender::KeraNativeCompacting {
            return self.fill_backlog(&beside, contender, stream);
        }
        // As much is written, and kept in memory.
        self.run_load(&fill(&beside), contender, stream, None)?;
        rustix::fs::sync();
        Ok(())
    }
}

/// One producer appends the case's records.
pub(super) fn fill(case: &Case) -> Case {
    Case {
        work: Work::Produce,
        rate: None,
        transaction_records: None,
        crowd: Crowd {
            streamlets: case.crowd.streamlets,
            ..Crowd::default()
        },
        ..case.clone()
    }
}
