//! What retention spares for pins, decided from what a broker serves of a stream.
//!
//! 1. Retention says which closed groups of each lane are due: its oldest ones.
//! 2. A pin needs a due group if the lane would begin above the pin's position without it. All that it needs is what it
//!    holds back, also where another pin needs it too.
//! 3. A pin of policy `wait` that is within its bounds keeps what it needs, and the groups after that. The bound on bytes is
//!    for the whole stream: what other owners hold back for the pin counts as well, as far as they have told. They are asked
//!    once more is held back here than the part of the bound that the lanes here have, each the same: while nobody holds
//!    back more than that, the bound is kept.
//! 4. Any other pin that needs a due group loses its records. It is lost then as a whole, and needs nothing any more.

use std::collections::BTreeMap;

use kera_metadata::{LossCause, PinLoss, PinPolicy, PinRecord};
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};

/// A lane, with its streamlet.
pub(super) type Lane = (StreamletId, LaneId);

/// A closed group that retention is to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueGroup {
    /// Where it ends.
    pub(super) end: Ordinal,
    /// Where its lane begins once it is gone: above its end where ordinals have jumped.
    pub(super) next: Ordinal,
    /// Its bytes.
    pub(super) bytes: u64,
}

/// A lane that is served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueLane {
    pub(super) lane: Lane,
    /// Where it begins.
    pub(super) log_start: Ordinal,
    /// What is due of it, oldest first.
    pub(super) due: Vec<DueGroup>,
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spared {
    /// What goes.
    pub(super) starts: Vec<Start>,
    /// Pins that lose records by that, by their number among those given.
    pub(super) lost: Vec<(usize, PinLoss)>,
    /// Bytes that each of those given holds back here, by streamlet.
    pub(super) held: Vec<HeldBytes>,
    /// Bytes of what is due and stays.
    pub(super) kept_bytes: u64,
    /// A pin that waits holds back more here than the part of its bound that the lanes here have.
    pub(super) asks: bool,
}

/// Bytes that a pin holds back, by streamlet.
pub(crate) type HeldBytes = BTreeMap<StreamletId, u64>;

/// Where retention puts the start of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) lane: Lane,
    /// What lies below goes.
    pub(super) start: Ordinal,
    /// Where the lane begins then.
    pub(super) next: Ordinal,
}

impl Start {
    /// Whether one of these pins waits for what would go.
    pub(super) fn is_needed(&self, pins: &[PinRecord], streamlets: u32) -> bool {
        let (streamlet, lane) = self.lane;
        let mut waiting = pins
            .iter()
            .filter(|pin| pin.lost.is_none() && pin.policy == PinPolicy::Wait);
        waiting.any(|pin| self.next > pin.position(streamlets, streamlet, lane))
    }
}

/// How many streamlets and lanes a stream has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) streamlets: u32,
    pub(super) lanes: u32,
    /// Lanes of the streamlets that are recorded as this broker's, whether it serves them yet or not.
    pub(super) owned: u32,
}

/// What retention does with what is due of `lanes`, for `pins` of their stream, each with the bytes that other owners hold back
/// for it, as far as that is known.
pub(super) fn spare(
    lanes: &[DueLane],
    pins: &[(&PinRecord, u64)],
    shape: Shape,
    now_ms: u64,
) -> Spared {
    let mut spared = Spared {
        held: vec![HeldBytes::new(); pins.len()],
        ..Spared::default()
    };
    let mut keeping = Vec::new();
    let unlost = pins
        .iter()
        .enumerate()
        .filter(|(_, (p, _))| p.lost.is_none());
    for (at, (pin, elsewhere)) in unlost {
        let position = |(streamlet, lane): Lane| pin.position(shape.streamlets, streamlet, lane);
        let needed = |lane: &DueLane| {
            let position = position(lane.lane);
            let groups = lane.due.iter().filter(move |g| g.next > position);
            groups.map(|group| group.bytes).sum::<u64>()
        };
        let lost = |lane: &DueLane, cause| PinLoss {
            streamlet: lane.lane.0,
            lane: lane.lane.1,
            ordinal: position(lane.lane),
            cause,
            at_ms: now_ms,
        };
        if let Some(gone) = lanes.iter().find(|l| l.log_start > position(l.lane)) {
            spared.lost.push((at, lost(gone, LossCause::Trim)));
            continue;
        }
        let is_needed = |lane: &&DueLane| lane.due.iter().any(|g| g.next > position(lane.lane));
        let Some(first) = lanes.iter().find(is_needed) else {
            keeping.push(pin);
            continue;
        };
        let bytes: u64 = lanes.iter().map(needed).sum();
        match cause_of_loss(pin, bytes.saturating_add(*elsewhere), now_ms) {
            Some(cause) => spared.lost.push((at, lost(first, cause))),
            None => {
                spared.asks |= bytes > part(pin.max_bytes, lanes.len(), shape);
                for lane in lanes {
                    let bytes = needed(lane);
                    if bytes > 0 {
                        *spared.held[at].entry(lane.lane.0).or_default() += bytes;
                    }
                }
                keeping.push(pin);
            }
        }
    }
    for lane in lanes {
        let (streamlet, number) = lane.lane;
        let positions = keeping
            .iter()
            .map(|pin| pin.position(shape.streamlets, streamlet, number));
        let least = positions.min().unwrap_or(Ordinal::MAX);
        let going = lane.due.iter().take_while(|group| group.next <= least);
        let (going, kept) = lane.due.split_at(going.count());
        spared.kept_bytes += kept.iter().map(|group| group.bytes).sum::<u64>();
        if let Some(last) = going.last() {
            spared.starts.push(Start {
                lane: lane.lane,
                start: last.end,
                next: last.next,
            });
        }
    }
    spared
}

/// Why a pin that needs so many bytes of what is due does not keep them; `None` if it does.
fn cause_of_loss(pin: &PinRecord, bytes: u64, now_ms: u64) -> Option<LossCause> {
    match pin.policy {
        PinPolicy::Warn => Some(LossCause::Retention),
        PinPolicy::Wait if pin.age_ms(now_ms) > pin.max_age_ms => Some(LossCause::Age),
        PinPolicy::Wait if bytes > pin.max_bytes => Some(LossCause::Bytes),
        PinPolicy::Wait => None,
    }
}

/// The part that a broker's lanes of a stream have of a bound for all of it: those that are its own, of which only so many may
/// be `served` yet.
fn part(bound: u64, served: usize, shape: Shape) -> u64 {
    let lanes = (shape.owned as usize).max(served);
    let part = u128::from(bound) * lanes as u128 / u128::from(shape.lanes.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::StreamId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_000_000;
    const SHAPE: Shape = Shape {
        streamlets: 2,
        lanes: 4,
        owned: 0,
    };

    fn pin(policy: PinPolicy, positions: &[Ordinal]) -> PinRecord {
        PinRecord {
            stream: StreamId(uuid::Uuid::from_u128(1)),
            name: "savepoint".to_owned(),
            job: String::new(),
            owner: "User:ann".to_owned(),
            created_ms: NOW - 1_000,
            positions: positions.to_vec(),
            max_age_ms: 1_000,
            max_bytes: 400,
            policy,
            lost: None,
            revision: 1,
        }
    }

    /// A lane by its partition, which begins at `log_start`, with due groups of ten records and ten bytes each.
    fn lane(partition: u32, log_start: Ordinal, due: u64) -> DueLane {
        let group = |number: u64| DueGroup {
            end: 10 * (number + 1),
            next: 10 * (number + 1),
            bytes: 10,
        };
        DueLane {
            lane: (StreamletId(partition % 2), LaneId(partition / 2)),
            log_start,
            due: (log_start / 10..log_start / 10 + due).map(group).collect(),
        }
    }

    /// As [`super::spare`], with nothing that is known of other owners.
    fn spare(lanes: &[DueLane], pins: &[PinRecord], shape: Shape, now_ms: u64) -> Spared {
        let pins: Vec<_> = pins.iter().map(|pin| (pin, 0)).collect();
        super::spare(lanes, &pins, shape, now_ms)
    }

    /// What each pin holds back.
    fn held(spared: &Spared) -> Vec<u64> {
        let held = spared.held.iter();
        held.map(|bytes| bytes.values().sum()).collect()
    }

    fn causes(spared: &Spared) -> Vec<(usize, LossCause, Ordinal)> {
        let lost = spared.lost.iter();
        lost.map(|(at, loss)| (*at, loss.cause, loss.ordinal))
            .collect()
    }

    fn ends(spared: &Spared) -> Vec<(u32, Ordinal)> {
        let starts = spared.starts.iter();
        let partition = |(streamlet, lane): Lane| lane.0 * 2 + streamlet.0;
        starts
            .map(|start| (partition(start.lane), start.start))
            .collect()
    }

    #[test]
    fn what_a_waiting_pin_needs_stays_and_what_lies_below_goes() {
        let lanes = [lane(0, 0, 5), lane(1, 0, 3), lane(3, 0, 2)];
        let waiting = pin(PinPolicy::Wait, &[20, 25, 0, 100]);
        let spared = spare(&lanes, &[waiting], SHAPE, NOW);
        // Within a group: the whole group stays.
        assert_eq!(ends(&spared), [(0, 20), (1, 20), (3, 20)]);
        assert_eq!((held(&spared), spared.lost), (vec![30 + 10], vec![]));
        let by_streamlet: Vec<_> = spared.held[0].iter().map(|(s, b)| (s.0, *b)).collect();
        assert_eq!(by_streamlet, [(0, 30), (1, 10)]);
    }

    #[test]
    fn the_least_position_of_all_pins_counts_and_each_holds_all_that_it_needs() {
        let lanes = [lane(0, 0, 5)];
        let pins = [20, 10, 50].map(|at| pin(PinPolicy::Wait, &[at]));
        let spared = spare(&lanes, &pins, SHAPE, NOW);
        assert_eq!(ends(&spared), [(0, 10)]);
        assert_eq!((held(&spared), spared.kept_bytes), (vec![30, 40, 0], 40));
    }

    #[test]
    fn a_pin_that_only_warns_is_lost_once_and_then_needs_nothing() {
        let lanes = [lane(0, 0, 1), lane(1, 0, 3)];
        let mut warning = pin(PinPolicy::Warn, &[10, 15, 0, 0]);
        let spared = spare(&lanes, &[warning.clone()], SHAPE, NOW);
        assert_eq!(ends(&spared), [(0, 10), (1, 30)]);
        assert_eq!(causes(&spared), [(0, LossCause::Retention, 15)]);
        let (_, loss) = &spared.lost[0];
        assert_eq!((loss.streamlet.0, loss.lane.0, loss.at_ms), (1, 0, NOW));
        warning.lost = Some(loss.clone());
        let again = spare(&lanes, &[warning], SHAPE, NOW);
        assert_eq!((ends(&again), again.lost), (ends(&spared), vec![]));
    }

    #[test]
    fn bounds_of_age_and_of_bytes_end_the_wait() {
        let old = PinRecord {
            created_ms: NOW - 1_001,
            ..pin(PinPolicy::Wait, &[0])
        };
        let spared = spare(&[lane(0, 0, 2)], std::slice::from_ref(&old), SHAPE, NOW);
        assert_eq!(causes(&spared), [(0, LossCause::Age, 0)]);
        assert_eq!(ends(&spared), [(0, 20)]);
        // While nothing is due that it needs, its age does not matter.
        let spared = spare(&[lane(0, 0, 0)], &[old], SHAPE, NOW);
        assert_eq!(spared.lost, []);
        let waiting = [pin(PinPolicy::Wait, &[0])];
        let spared = spare(&[lane(0, 0, 40)], &waiting, SHAPE, NOW);
        assert_eq!((ends(&spared), held(&spared)), (vec![], vec![400]));
        let spared = spare(&[lane(0, 0, 41)], &waiting, SHAPE, NOW);
        assert_eq!(causes(&spared), [(0, LossCause::Bytes, 0)]);
        assert_eq!(ends(&spared), [(0, 410)]);
    }

    #[test]
    fn what_other_owners_hold_back_counts_and_they_are_asked_beyond_the_part_of_the_lanes_here() {
        let waiting = pin(PinPolicy::Wait, &[0]);
        // One of four lanes is here: 100 of 400 bytes.
        let spared = |due, elsewhere, owned| {
            let shape = Shape { owned, ..SHAPE };
            super::spare(&[lane(0, 0, due)], &[(&waiting, elsewhere)], shape, NOW)
        };
        assert!(!spared(10, 0, 1).asks);
        // Alone, it is within the bound of the stream, however few of the lanes are here.
        let skewed = spared(30, 100, 1);
        assert_eq!((ends(&skewed), held(&skewed)), (vec![], vec![300]));
        assert!(skewed.asks);
        let beyond = spared(30, 101, 1);
        assert_eq!(causes(&beyond), [(0, LossCause::Bytes, 0)]);
        // Of three lanes that are its own 300, though two are not served yet.
        assert!(!spared(30, 0, 3).asks && spared(31, 0, 3).asks);
    }

    #[test]
    fn what_goes_is_needed_by_a_pin_that_waits_below_where_the_lane_begins_then() {
        let start = Start {
            lane: (StreamletId(1), LaneId(0)),
            start: 10,
            next: 15,
        };
        let needed = |pin| start.is_needed(&[pin], 2);
        assert!(needed(pin(PinPolicy::Wait, &[20, 14])));
        assert!(!needed(pin(PinPolicy::Wait, &[0, 15])));
        assert!(!needed(pin(PinPolicy::Warn, &[0, 0])));
    }

    #[test]
    fn a_lane_that_begins_above_a_pin_was_trimmed() {
        let waiting = pin(PinPolicy::Wait, &[5, 20]);
        let lanes = [lane(0, 0, 0), lane(1, 30, 0)];
        let spared = spare(&lanes, &[waiting], SHAPE, NOW);
        assert_eq!(causes(&spared), [(0, LossCause::Trim, 20)]);
    }

    #[test]
    fn a_lane_never_begins_beyond_a_jump_that_a_pin_stands_before() {
        let mut jumped = lane(0, 0, 2);
        jumped.due[0].next = 1 << 32;
        jumped.due[1].end = (1 << 32) + 10;
        jumped.due[1].next = (1 << 32) + 10;
        let waiting = pin(PinPolicy::Wait, &[10]);
        let spared = spare(&[jumped], &[waiting], SHAPE, NOW);
        assert_eq!((ends(&spared), spared.lost), (vec![], vec![]));
    }

    fn lanes() -> impl Strategy<Value = Vec<DueLane>> {
        let groups = vec((1_u64..20, 0_u64..5, 1_u64..100), 0..6);
        let lane = (0_u64..30, groups).prop_map(|(log_start, groups)| {
            let mut at = log_start;
            let due = groups.into_iter().map(|(records, gap, bytes)| {
                let end = at + records;
                at = end + gap;
                DueGroup {
                    end,
                    next: at,
                    bytes,
                }
            });
            (log_start, due.collect::<Vec<_>>())
        });
        vec(lane, 0..4).prop_map(|lanes| {
            let numbered = (0_u32..).zip(lanes);
            let lane = |(number, (log_start, due))| DueLane {
                lane: (StreamletId(number % 2), LaneId(number / 2)),
                log_start,
                due,
            };
            numbered.map(lane).collect()
        })
    }

    fn pins() -> impl Strategy<Value = Vec<PinRecord>> {
        let one = (
            vec(0_u64..100, 0..5),
            any::<bool>(),
            0_u64..3_000,
            1_u64..1_000,
            prop::bool::weighted(0.2),
        );
        let made = one.prop_map(|(positions, waits, age, max_bytes, is_lost)| {
            let policy = if waits {
                PinPolicy::Wait
            } else {
                PinPolicy::Warn
            };
            PinRecord {
                created_ms: NOW - age,
                max_bytes,
                lost: is_lost.then_some(PinLoss {
                    streamlet: StreamletId(0),
                    lane: LaneId(0),
                    ordinal: 0,
                    cause: LossCause::Age,
                    at_ms: 0,
                }),
                ..pin(policy, &positions)
            }
        });
        vec(made, 0..5)
    }

    /// All that is due.
    fn all(lanes: &[DueLane]) -> Vec<(Lane, Ordinal)> {
        let due = lanes.iter();
        due.filter_map(|lane| Some((lane.lane, lane.due.last()?.end)))
            .collect()
    }

    proptest! {
        #[test]
        fn pins_keep_what_they_need_within_their_bounds_and_nothing_else(lanes in lanes(), pins in pins()) {
            let spared = spare(&lanes, &pins, SHAPE, NOW);
            let ended = |at: usize| spared.lost.iter().find(|(lost, _)| *lost == at).map(|(_, loss)| loss);
            let keeps = |at: usize| pins[at].lost.is_none() && ended(at).is_none();
            for (at, pin) in pins.iter().enumerate() {
                let position = |lane: &DueLane| pin.position(SHAPE.streamlets, lane.lane.0, lane.lane.1);
                let needed: u64 = lanes.iter().flat_map(|lane| {
                    let position = position(lane);
                    lane.due.iter().filter(move |g| g.next > position).map(|g| g.bytes)
                }).sum();
                let within = pin.policy == PinPolicy::Wait
                    && pin.created_ms >= NOW - pin.max_age_ms
                    && needed <= pin.max_bytes;
                let is_gone = lanes.iter().any(|lane| lane.log_start > position(lane));
                if pin.lost.is_none() {
                    prop_assert_eq!(keeps(at), !is_gone && (within || needed == 0));
                }
                prop_assert_eq!(held(&spared)[at], if keeps(at) { needed } else { 0 });
                prop_assert!(pin.lost.is_none() || ended(at).is_none(), "it was lost before");
                if keeps(at) {
                    for lane in &lanes {
                        let start = spared.starts.iter().find(|start| start.lane == lane.lane);
                        let group = start.and_then(|start| lane.due.iter().find(|g| g.end == start.start));
                        prop_assert!(group.is_none_or(|group| group.next <= position(lane)));
                        prop_assert_eq!(group.map(|group| group.next), start.map(|start| start.next));
                    }
                }
            }
            // What no pin keeps goes as if there were none.
            for lane in &lanes {
                let kept = pins.iter().enumerate().filter(|(at, _)| keeps(*at));
                let least = kept.map(|(_, p)| p.position(SHAPE.streamlets, lane.lane.0, lane.lane.1)).min();
                let going = lane.due.iter().take_while(|g| least.is_none_or(|least| g.next <= least)).last();
                let start = spared.starts.iter().find(|start| start.lane == lane.lane).map(|start| start.start);
                prop_assert_eq!(start, going.map(|group| group.end));
            }
            let unpinned = spare(&lanes, &[], SHAPE, NOW).starts;
            let unpinned: Vec<_> = unpinned.iter().map(|start| (start.lane, start.start)).collect();
            prop_assert_eq!(unpinned, all(&lanes));
        }
    }
}
