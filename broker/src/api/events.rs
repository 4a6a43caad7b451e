//! What changed between two looks: the time line of the overview.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::told::Told;
use super::views::{BrokerRow, Event, GroupRow, Severity, short};
use crate::data::catalog::Stream;
use crate::shared::Shared;

/// Events that are remembered.
const REMEMBERED: usize = 50;
/// So many streams or groups to which the same happened at once are told one by one.
const ONE_BY_ONE: usize = 3;

/// What a look is compared by.
#[derive(Debug, Default)]
pub(super) struct Marks {
    brokers: BTreeMap<u32, &'static str>,
    controller: Option<u32>,
    streams: HashMap<String, StreamMarks>,
    behind: BTreeMap<String, bool>,
}

#[derive(Debug, Default)]
struct StreamMarks {
    owners: Vec<u32>,
    partitions: u32,
}

impl Marks {
    pub(super) fn of(
        shared: &Shared,
        streams: &[&Arc<Stream>],
        brokers: &[BrokerRow],
        groups: &[GroupRow],
        told: &Told,
    ) -> Self {
        let of_stream = |stream: &&Arc<Stream>| {
            let marks = StreamMarks {
                owners: shared.owners_of(stream),
                partitions: stream.record.load().config.to_wire().partitions(),
            };
            (stream.name(), marks)
        };
        let behind = groups.iter();
        Self {
            brokers: brokers
                .iter()
                .map(|row| (row.broker_id, row.state))
                .collect(),
            controller: told.cluster.as_ref().and_then(|cluster| cluster.controller),
            streams: streams.iter().map(of_stream).collect(),
            behind: behind
                .map(|row| (row.group.clone(), row.falls_behind))
                .collect(),
        }
    }

    /// What is different now.
    fn changes(&self, now: &Self) -> Vec<(Severity, String)> {
        let mut changes = Vec::new();
        let mut say = |severity, text: String| changes.push((severity, text));
        for (id, state) in &now.brokers {
            let is_bad = |state: &str| matches!(state, "SILENT" | "GONE");
            match self.brokers.get(id) {
                Some(before) if before == state => {}
                None => say(Severity::Ok, format!("broker {id} joined")),
                Some(_) if *state == "SILENT" => {
                    say(Severity::Trouble, format!("broker {id} does not answer"));
                }
                Some(_) if *state == "GONE" => {
                    let text = format!("the lease of broker {id} ended: it is gone");
                    say(Severity::Trouble, text);
                }
                Some(before) if is_bad(before) => {
                    say(Severity::Ok, format!("broker {id} answers again"));
                }
                Some(_) => {
                    let state = state.to_lowercase();
                    say(Severity::Ok, format!("broker {id} is {state}"));
                }
            }
        }
        for id in self
            .brokers
            .keys()
            .filter(|id| !now.brokers.contains_key(id))
        {
            say(Severity::Attention, format!("broker {id} left the cluster"));
        }
        if now.controller != self.controller {
            match now.controller {
                Some(id) => say(Severity::Ok, format!("broker {id} became controller")),
                None => say(Severity::Trouble, "there is no controller".into()),
            }
        }
        self.owner_changes(now, &mut say);
        let (created, grown): (Vec<_>, Vec<_>) = now
            .streams
            .iter()
            .map(|(name, marks)| (name, marks, self.streams.get(name)))
            .partition(|(_, _, before)| before.is_none());
        let created = created.into_iter().map(|(name, ..)| name.as_str());
        together(created, "stream", "was created", "were created", |text| {
            say(Severity::Ok, text);
        });
        for (name, marks, before) in grown {
            let from = before.map_or(0, |before| before.partitions);
            if from != marks.partitions {
                let text = format!(
                    "stream {name} grew from {from} to {} lanes",
                    marks.partitions
                );
                say(Severity::Ok, text);
            }
        }
        let deleted = self.streams.keys().map(String::as_str);
        let deleted = deleted.filter(|name| !now.streams.contains_key(*name));
        together(deleted, "stream", "was deleted", "were deleted", |text| {
            say(Severity::Ok, text);
        });
        let changed = |to: bool| {
            let groups = now.behind.iter().filter(move |(_, behind)| **behind == to);
            let groups = groups.map(|(group, _)| group.as_str());
            groups.filter(move |group| self.behind.get(*group) == Some(&!to))
        };
        let began = "began to fall behind";
        together(changed(true), "group", began, began, |text| {
            say(Severity::Attention, text);
        });
        let (one, more) = (
            "does not fall behind any more",
            "do not fall behind any more",
        );
        together(changed(false), "group", one, more, |text| {
            say(Severity::Ok, text);
        });
        changes
    }

    fn owner_changes(&self, now: &Self, say: &mut impl FnMut(Severity, String)) {
        let mut moved: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (name, marks) in &now.streams {
            let Some(before) = self.streams.get(name) else {
                continue;
            };
            for (from, to) in before.owners.iter().zip(&marks.owners) {
                if from != to {
                    *moved.entry((*from, *to)).or_default() += 1;
                }
            }
        }
        for ((from, to), streamlets) in moved {
            let what = match streamlets {
                1 => "1 streamlet".to_owned(),
                many => format!("{many} streamlets"),
            };
            say(
                Severity::Ok,
                format!("broker {to} took over {what} of broker {from}"),
            );
        }
    }
}

/// Tells what happened to each of these, or how many there are: hundreds at once would push all else out of the time line.
fn together<'a>(
    names: impl Iterator<Item = &'a str>,
    what: &str,
    one: &str,
    more: &str,
    mut say: impl FnMut(String),
) {
    let names: Vec<_> = names.collect();
    match names.len() {
        0..=ONE_BY_ONE => {
            for name in names {
                say(format!("{what} {} {one}", short(name)));
            }
        }
        many => say(format!(
            "{many} {what}s {more}, {} among them",
            short(names[0])
        )),
    }
}

/// The last changes.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    before: Option<Marks>,
    events: VecDeque<Event>,
}

impl Timeline {
    /// Notes what changed since the last look; all that is remembered, the newest first.
    pub(super) fn take(&mut self, at_ms: u64, now: Marks) -> Vec<Event> {
        if let Some(before) = &self.before {
            for (severity, text) in before.changes(&now) {
                self.events.push_front(Event {
                    at_ms,
                    severity,
                    text,
                });
            }
        }
        self.before = Some(now);
        self.events.truncate(REMEMBERED);
        self.events.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(states: [&'static str; 2], owners: [u32; 3], partitions: u32) -> Marks {
        let stream = StreamMarks {
            owners: owners.to_vec(),
            partitions,
        };
        Marks {
            brokers: (1..).zip(states).collect(),
            controller: Some(1),
            streams: HashMap::from([("orders".to_owned(), stream)]),
            behind: BTreeMap::from([("billing".to_owned(), states[1] == "SILENT")]),
        }
    }

    #[test]
    fn a_failover_is_told_as_it_goes() {
        let mut timeline = Timeline::default();
        assert!(
            timeline
                .take(1, marks(["NORMAL", "NORMAL"], [1, 2, 2], 6))
                .is_empty()
        );
        timeline.take(2, marks(["NORMAL", "SILENT"], [1, 2, 2], 6));
        timeline.take(3, marks(["NORMAL", "GONE"], [1, 1, 1], 6));
        let events = timeline.take(4, marks(["NORMAL", "NORMAL"], [1, 1, 1], 8));
        let told: Vec<_> = events.iter().map(|e| (e.at_ms, e.text.as_str())).collect();
        let wanted = [
            (4, "stream orders grew from 6 to 8 lanes"),
            (4, "broker 2 answers again"),
            (3, "group billing does not fall behind any more"),
            (3, "broker 1 took over 2 streamlets of broker 2"),
            (3, "the lease of broker 2 ended: it is gone"),
            (2, "group billing began to fall behind"),
            (2, "broker 2 does not answer"),
        ];
        assert_eq!(told, wanted);
    }

    #[test]
    fn what_happens_to_many_at_once_is_told_together() {
        let with = |streams: u32, behind: bool| {
            let mut marks = marks(["NORMAL", "NORMAL"], [1, 2, 2], 6);
            for number in 0..streams {
                let name = format!("s{number:03}");
                marks.behind.insert(name.clone(), behind);
                marks.streams.insert(name, StreamMarks::default());
            }
            marks
        };
        let mut timeline = Timeline::default();
        timeline.take(1, with(0, false));
        let texts = |timeline: &mut Timeline, at, marks| -> Vec<String> {
            let events = timeline.take(at, marks).into_iter();
            let events = events.filter(|event| event.at_ms == at);
            events.map(|event| event.text).collect()
        };
        let created = texts(&mut timeline, 2, with(200, false));
        assert_eq!(created.len(), 1, "{created:?}");
        assert!(
            created[0].starts_with("200 streams were created, s"),
            "{created:?}"
        );
        let behind = texts(&mut timeline, 3, with(200, true));
        assert_eq!(behind, ["200 groups began to fall behind, s000 among them"]);
        let mut gone = texts(&mut timeline, 4, with(198, true));
        gone.sort();
        assert_eq!(gone, ["stream s198 was deleted", "stream s199 was deleted"]);
    }

    #[test]
    fn only_the_last_events_are_remembered() {
        let mut timeline = Timeline::default();
        for at in 0..200 {
            let state = if at % 2 == 0 { "NORMAL" } else { "SILENT" };
            timeline.take(at, marks(["NORMAL", state], [1, 1, 1], 6));
        }
        assert_eq!(timeline.events.len(), REMEMBERED);
    }
}
