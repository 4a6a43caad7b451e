//! Somebody pins positions of a stream that has retention, moves pins and deletes them. What waits for a pin stays, and no
//! pin is said to hold what is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::v1;
use kera_rpc::Admin;
use tokio::time::sleep;

use crate::dice::Dice;
use crate::load::{Load, PATIENCE};
use crate::os;

/// Pins that there are at a time, of those that nobody is unsure of.
const MOST: usize = 3;
/// Longest time between two things that are done.
const BETWEEN: u64 = 2_000;
/// How old a pin may become: clocks jump by days.
const AGE_MS: u64 = 365 * 24 * 3_600_000;
/// What a pin that gives way may hold back.
const LITTLE: u64 = 96 << 10;
/// How long one waits for an answer in the end.
const AGAIN: Duration = Duration::from_millis(500);

/// A lane: its streamlet, and its number.
type Lane = (u32, u32);

/// A pin of which a broker said that it holds.
#[derive(Clone, Debug)]
struct Pin {
    positions: BTreeMap<Lane, u64>,
    /// Nothing but a person may end it.
    is_firm: bool,
}

/// Who pins.
struct Pinner {
    load: Arc<Load>,
    admin: Admin,
    stream: String,
    /// Pins that are as they were answered. One of which nobody can tell what became of it is never named again.
    pins: BTreeMap<String, Pin>,
    named: u32,
    done: Done,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub made: u32,
    pub moved: u32,
    pub lost: u32,
    pub unsure: u32,
    /// Looks at pins, and lanes below whose position of a firm pin something was gone, all of them together.
    pub looks: u32,
    pub trimmed: u32,
}

/// Makes, moves and deletes pins while there is trouble, and compares them with the lanes once more in the end.
pub async fn run(load: Arc<Load>, mut dice: Dice) -> Done {
    let stream = load.plan.streams.last().map(|stream| stream.name.clone());
    let mut pinner = Pinner {
        admin: Admin::new(load.client()),
        stream: stream.unwrap_or_default(),
        pins: BTreeMap::new(),
        named: 0,
        done: Done::default(),
        load: load.clone(),
    };
    while !load.is_stopping() {
        sleep(Duration::from_millis(dice.between(1, BETWEEN))).await;
        let done = match dice.below(10) {
            0..=4 if pinner.pins.len() < MOST => pinner.make(&mut dice).await,
            0..=5 => pinner.shift(&mut dice).await,
            6 => pinner.delete(&mut dice).await,
            _ => pinner.look().await,
        };
        if let Err(why) = done {
            os::log(&format!("pins: {why}"));
        }
    }
    let until = os::now() + PATIENCE;
    while let Err(why) = pinner.look().await {
        if os::now() > until {
            load.complain(format!("pins are not told of: {why}"));
            break;
        }
        sleep(AGAIN).await;
    }
    os::log(&format!("pins: {:?}", pinner.done));
    pinner.done
}

impl Pinner {
    /// Makes a pin of another name.
    async fn make(&mut self, dice: &mut Dice) -> Result<(), String> {
        self.named += 1;
        let name = format!("p{}", self.named);
        let positions = self.positions(&BTreeMap::new(), dice).await?;
        self.put(name, positions, dice.chance(600)).await
    }

    /// Moves a pin ahead.
    async fn shift(&mut self, dice: &mut Dice) -> Result<(), String> {
        let Some((name, pin)) = self.one(dice) else {
            return Ok(());
        };
        let positions = self.positions(&pin.positions, dice).await?;
        self.done.moved += 1;
        self.put(name, positions, pin.is_firm).await
    }

    fn one(&self, dice: &mut Dice) -> Option<(String, Pin)> {
        let names: Vec<_> = self.pins.keys().cloned().collect();
        let name = (!names.is_empty()).then(|| dice.one(&names).clone())?;
        let pin = self.pins[&name].clone();
        Some((name, pin))
    }

    /// Of each lane some ordinal that it has, at or above `least`.
    async fn positions(
        &self,
        least: &BTreeMap<Lane, u64>,
        dice: &mut Dice,
    ) -> Result<BTreeMap<Lane, u64>, String> {
        let lanes = self.lanes().await?;
        let chosen = lanes.into_iter().map(|(lane, (start, head))| {
            let from = start.max(least.get(&lane).copied().unwrap_or(0));
            (lane, dice.between(from, head.max(from)))
        });
        Ok(chosen.collect())
    }

    /// Where each lane begins, and ends.
    async fn lanes(&self) -> Result<BTreeMap<Lane, (u64, u64)>, String> {
        let described = self.admin.describe_stream(&self.stream).await;
        let described = described.map_err(|error| error.to_string())?;
        if !described.unrecovered.is_empty() {
            return Err(format!("{:?} are not served", described.unrecovered));
        }
        let lanes = described.lanes.into_iter();
        Ok(lanes
            .map(|lane| {
                (
                    (lane.streamlet, lane.lane),
                    (lane.log_start, lane.head_ordinal),
                )
            })
            .collect())
    }

    async fn put(
        &mut self,
        name: String,
        positions: BTreeMap<Lane, u64>,
        is_firm: bool,
    ) -> Result<(), String> {
        // What a call that fails has done nobody knows.
        self.pins.remove(&name);
        let request = v1::CreatePinRequest {
            stream: self.stream.clone(),
            name: name.clone(),
            positions: positions
                .iter()
                .map(|((streamlet, lane), ordinal)| v1::LanePosition {
                    streamlet: *streamlet,
                    lane: *lane,
                    ordinal: *ordinal,
                })
                .collect(),
            max_age_ms: Some(AGE_MS),
            max_bytes: Some(if is_firm { u64::MAX >> 1 } else { LITTLE }),
            policy: v1::PinPolicy::Wait as i32,
            ..v1::CreatePinRequest::default()
        };
        let answer = self.admin.create_pin(request).await.map_err(|error| {
            self.done.unsure += 1;
            format!("{name}: {error}")
        })?;
        let lost = answer.pin.and_then(|pin| pin.lost);
        os::log(&format!(
            "pin {name}: {positions:?}, firm: {is_firm}, lost: {lost:?}"
        ));
        match lost {
            // Retention was first: it is said at once.
            Some(_) => self.done.lost += 1,
            None => {
                self.done.made += 1;
                self.pins.insert(name, Pin { positions, is_firm });
            }
        }
        Ok(())
    }

    async fn delete(&mut self, dice: &mut Dice) -> Result<(), String> {
        let Some((name, pin)) = self.one(dice) else {
            return Ok(());
        };
        self.pins.remove(&name);
        let deleted = self.admin.delete_pin(&self.stream, &name).await;
        let deleted = deleted.map_err(|error| format!("{name}: {error}"))?;
        os::log(&format!("pin {name} is deleted"));
        if let Some(lost) = deleted.pin.and_then(|pin| pin.lost).filter(|_| pin.is_firm) {
            self.load.complain(format!(
                "pin {name} is lost, and what retention was to delete had to wait for it: {lost:?}"
            ));
        }
        Ok(())
    }

    /// Compares what brokers say of lanes with what they say of pins, which is asked for later: a pin is said to be lost before
    /// anything goes that it needs.
    async fn look(&mut self) -> Result<(), String> {
        let lanes = self.lanes().await?;
        let listed = self.admin.pins(Some(&self.stream), true).await;
        let listed = listed.map_err(|error| error.to_string())?.pins;
        let told: BTreeMap<_, _> = listed
            .into_iter()
            .map(|pin| (pin.name.clone(), pin))
            .collect();
        let mut gone = BTreeSet::new();
        self.done.looks += 1;
        for (name, pin) in &self.pins {
            let Some(told) = told.get(name) else {
                self.load
                    .complain(format!("pin {name} is not there any more"));
                continue;
            };
            let positions = told.positions.iter();
            let positions: BTreeMap<_, _> = positions
                .map(|at| ((at.streamlet, at.lane), at.ordinal))
                .collect();
            if positions != pin.positions {
                let text = format!(
                    "pin {name} is at {positions:?}, and was put to {:?}",
                    pin.positions
                );
                self.load.complain(text);
            }
            match &told.lost {
                Some(lost) if pin.is_firm => self.load.complain(format!(
                    "pin {name} is lost, and what retention was to delete had to wait for it: {lost:?}"
                )),
                Some(_) => _ = gone.insert(name.clone()),
                None => {}
            }
            for (lane, (start, _)) in &lanes {
                let position = pin.positions.get(lane).copied().unwrap_or(0);
                if *start > position && told.lost.is_none() {
                    self.load.complain(format!(
                        "pin {name} needs lane {lane:?} from {position} on, which begins at {start}, and is not said to be lost"
                    ));
                }
            }
        }
        self.done.trimmed = lanes.values().filter(|(start, _)| *start > 0).count() as u32;
        self.done.lost += gone.len() as u32;
        self.pins.retain(|name, _| !gone.contains(name));
        Ok(())
    }
}
