//! Which groups of a lane count, from records and copies that are put there by hand.

use std::collections::BTreeMap;

use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_records::{GroupRecord, GroupState, Transaction};
use kera_replication::ids::{BrokerId, CopyId, Incarnation, Replica};
use kera_replication::records::{commit, take_epoch};
use kera_replication::recovery::{Stopped, Unclean};
use kera_replication::transport::Request;
use kera_replication::transport::sim::MemoryFate;

use crate::suite::Stage;
use crate::suite::scenario::streamlet;
use crate::suite::test_group::TestGroup;
use crate::{Case, OWNER, case};

const EPOCH: Epoch = Epoch(1);
const LANE: LaneId = LaneId(0);
const NODE: BrokerId = BrokerId(2);

fn copy(group: u64) -> CopyId {
    CopyId {
        streamlet: streamlet(),
        group: GroupId(group),
        epoch: EPOCH,
        generation: 0,
    }
}

/// About all groups of these cases.
fn everything() -> Unclean {
    Unclean::Accept((0..3).map(GroupId).collect())
}

async fn holder(case: &Case) -> Replica {
    Replica {
        broker: NODE,
        incarnation: case.describe(NODE).await.incarnation,
    }
}

/// The same broker in a life that is over.
fn gone() -> Replica {
    Replica {
        broker: NODE,
        incarnation: Incarnation::default(),
    }
}

fn opened(group: u64, first_ordinal: Option<u64>, holder: Replica) -> GroupRecord {
    GroupRecord {
        state: GroupState::Open,
        first_ordinal,
        copies: vec![holder],
        ..GroupRecord::new(streamlet().group(GroupId(group)), LANE, EPOCH)
    }
}

async fn record(case: &Case, groups: Vec<GroupRecord>) -> u64 {
    let records = case.stage.records(OWNER);
    let runtime = case.stage.runtime(OWNER);
    if case.stage.look().streamlet.epoch < EPOCH {
        let taken = take_epoch(&records, &*runtime, streamlet(), OWNER).await;
        assert_eq!(taken.expect("an epoch").0, EPOCH);
    }
    let changes = groups.into_iter().map(GroupRecord::put);
    let transaction = Transaction::of_groups(streamlet(), EPOCH, changes);
    commit(&records, &*runtime, &transaction, false)
        .await
        .expect("is recorded")
}

/// A group of `batches` batches, at `NODE`.
async fn written(case: &Case, group: u64, first_ordinal: u64, batches: u64) -> TestGroup {
    let source = TestGroup::new(copy(group), LANE, first_ordinal);
    for id in 0..batches {
        source.append(group * 100 + id, 20).expect("room");
    }
    case.put(NODE, &source).await;
    source
}

#[test]
fn after_a_decision_a_valid_group_behind_an_unused_one_is_kept() {
    case(|case| async move {
        let here = holder(&case).await;
        let groups = vec![
            opened(0, Some(0), gone()),
            opened(1, None, here),
            opened(2, None, here),
        ];
        record(&case, groups).await;
        written(&case, 2, 5, 3).await;
        let (_, recovered) = case.recover(OWNER, everything()).await;
        let lane = &recovered.lanes[0];
        assert_eq!(
            (lane.stopped.clone(), lane.next_ordinal),
            (None, 8),
            "{lane:?}"
        );
        assert_eq!(lane.discarded, [copy(1)]);
        assert_eq!(lane.gaps, [(0, 5)]);
    });
}

#[test]
fn after_a_decision_the_lane_goes_on_where_a_closed_group_begins() {
    case(|case| async move {
        let here = holder(&case).await;
        let revision = record(
            &case,
            vec![opened(0, Some(0), gone()), opened(1, Some(7), here)],
        )
        .await;
        let source = written(&case, 1, 7, 2).await;
        let open = GroupRecord {
            revision,
            ..opened(1, Some(7), here)
        };
        let closed = open.closed(7, (source.end().address, 9), 9, vec![here]);
        record(&case, vec![closed]).await;
        let (_, recovered) = case.recover(OWNER, everything()).await;
        let lane = &recovered.lanes[0];
        assert_eq!((lane.next_ordinal, lane.gaps.clone()), (9, vec![(0, 7)]));
    });
}

#[test]
fn what_is_left_of_two_groups_of_another_life_is_kept_together() {
    case(|case| async move {
        record(
            &case,
            vec![opened(0, Some(0), gone()), opened(1, None, gone())],
        )
        .await;
        written(&case, 0, 0, 2).await;
        written(&case, 1, 2, 3).await;
        let (_, recovered) = case.recover(OWNER, everything()).await;
        let lane = &recovered.lanes[0];
        let ends: Vec<_> = lane.groups.iter().map(|c| c.end_ordinal).collect();
        assert_eq!(ends, [2, 5], "{lane:?}");
        assert_eq!(lane.gaps.len(), 1, "after the last of them only");
    });
}

#[test]
fn a_lane_of_which_nobody_knows_the_start_is_left_alone() {
    case(|case| async move {
        let here = holder(&case).await;
        record(&case, vec![opened(4, None, here)]).await;
        written(&case, 4, 5000, 3).await;
        let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let stopped = recovered.lanes[0].stopped.clone();
        assert_eq!(stopped, Some(Stopped::NoStart { copy: copy(4) }));
        assert_eq!(case.stage.look().groups.len(), 1, "nothing is dropped");
        let (primary, _) = case.recover(OWNER, Unclean::Wait).await;
        let starts = BTreeMap::from([(LANE, 5000)]);
        let recovered = case.recover_from(&primary, Unclean::Wait, starts).await;
        let lane = &recovered.lanes[0];
        assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, 5003));
    });
}

#[test]
fn a_decision_is_about_the_groups_that_were_shown() {
    case(|case| async move {
        let groups = vec![opened(0, Some(0), gone()), opened(1, None, gone())];
        record(&case, groups).await;
        written(&case, 0, 0, 2).await;
        written(&case, 1, 2, 3).await;
        let stops_at = |stopped: &Option<Stopped>| match stopped {
            Some(Stopped::Unclean { copy, .. }) => Some(*copy),
            _ => None,
        };
        let (_, waits) = case.recover(OWNER, Unclean::Wait).await;
        let lane = &waits.lanes[0];
        assert_eq!(stops_at(&lane.stopped), Some(copy(0)));
        let behind: Vec<_> = lane.unclean_behind.iter().map(|(copy, _)| *copy).collect();
        assert_eq!(
            behind,
            [copy(1)],
            "all that is to be decided is told at once"
        );
        // Nobody has decided about the second one, whose replica may be whole at a broker that is away.
        let first = Unclean::Accept([GroupId(0)].into());
        let (_, waits) = case.recover(OWNER, first).await;
        let lane = &waits.lanes[0];
        assert_eq!(stops_at(&lane.stopped), Some(copy(1)), "{lane:?}");
        assert!(lane.groups.iter().all(|group| group.group != GroupId(1)));
        let (_, served) = case.recover(OWNER, everything()).await;
        let lane = &served.lanes[0];
        let ends: Vec<_> = lane.groups.iter().map(|group| group.end_ordinal).collect();
        assert_eq!((lane.stopped.clone(), ends), (None, vec![2, 5]));
    });
}

/// Whether the lane waits for people where an older state has two groups, of which the first is gone.
fn gone_since(is_put_back: bool, is_freed: bool) {
    case(move |case| async move {
        let here = holder(&case).await;
        let first = match is_freed {
            true => here,
            false => gone(),
        };
        let groups = vec![opened(0, Some(0), first), opened(1, Some(7), here)];
        let revision = record(&case, groups).await;
        let source = written(&case, 1, 7, 2).await;
        if is_freed {
            written(&case, 0, 0, 7).await;
            let free = Request::free(copy(0), EPOCH, None);
            case.ask(NODE, free).await;
        }
        let open = GroupRecord {
            revision,
            ..opened(1, Some(7), here)
        };
        let closed = open.closed(7, (source.end().address, 9), 9, vec![here]);
        record(&case, vec![closed]).await;
        if is_put_back {
            case.stage.put_back();
        }
        let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = &recovered.lanes[0];
        let is_stopped = matches!(lane.stopped, Some(Stopped::Unclean { .. }));
        assert_eq!(is_stopped, !(is_put_back && is_freed), "{lane:?}");
        if !is_stopped {
            assert_eq!((lane.next_ordinal, lane.gaps.clone()), (9, vec![(0, 7)]));
        }
    });
}

#[test]
fn a_group_that_was_freed_since_an_older_state_of_the_records_stops_no_lane() {
    gone_since(true, true);
}

#[test]
fn a_group_that_was_lost_or_that_records_of_now_name_stops_its_lane() {
    gone_since(true, false);
    gone_since(false, true);
    gone_since(false, false);
}

#[test]
fn a_group_of_which_another_life_has_some_is_decided_about_by_people_in_an_older_state_too() {
    case(|case| async move {
        record(&case, vec![opened(0, Some(0), gone())]).await;
        written(&case, 0, 0, 2).await;
        case.stage.put_back();
        let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = &recovered.lanes[0];
        let is_stopped = matches!(lane.stopped, Some(Stopped::Unclean { .. }));
        assert!(is_stopped, "{lane:?}");
    });
}

#[test]
fn a_group_behind_what_an_older_state_does_not_know_is_kept() {
    for is_put_back in [false, true] {
        case(move |case| async move {
            let here = holder(&case).await;
            record(&case, vec![opened(0, Some(0), here), opened(1, None, here)]).await;
            written(&case, 0, 0, 2).await;
            written(&case, 1, 5, 3).await;
            if is_put_back {
                case.stage.put_back();
            }
            let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
            let lane = &recovered.lanes[0];
            let ends: Vec<_> = lane.groups.iter().map(|group| group.end_ordinal).collect();
            let kept = if is_put_back { vec![2, 8] } else { vec![2] };
            assert_eq!(ends, kept, "{lane:?}");
        });
    }
}

#[test]
fn in_an_older_state_a_group_of_another_life_counts_if_it_reaches_the_next_one() {
    for batches in [6, 7] {
        case(move |case| async move {
            let here = holder(&case).await;
            let groups = vec![opened(0, Some(0), gone()), opened(1, Some(7), here)];
            let revision = record(&case, groups).await;
            written(&case, 0, 0, batches).await;
            let source = written(&case, 1, 7, 2).await;
            let open = GroupRecord {
                revision,
                ..opened(1, Some(7), here)
            };
            let closed = open.closed(7, (source.end().address, 9), 9, vec![here]);
            record(&case, vec![closed]).await;
            case.stage.put_back();
            let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
            let lane = &recovered.lanes[0];
            let is_stopped = matches!(lane.stopped, Some(Stopped::Unclean { .. }));
            assert_eq!(is_stopped, batches < 7, "{lane:?}");
            if !is_stopped {
                let ends: Vec<_> = lane.groups.iter().map(|group| group.end_ordinal).collect();
                assert_eq!((ends, lane.gaps.clone()), (vec![7, 9], vec![]));
            }
        });
    }
}

#[test]
fn in_an_older_state_who_fell_out_early_does_not_say_where_a_group_ends() {
    for is_put_back in [false, true] {
        case(move |case| async move {
            let here = holder(&case).await;
            let other = Replica {
                broker: BrokerId(1),
                ..gone()
            };
            let group = GroupRecord {
                copies: vec![here, other],
                ..opened(0, Some(0), here)
            };
            record(&case, vec![group]).await;
            let short = written(&case, 0, 0, 2).await;
            for id in 2..5 {
                short.append(id, 20).expect("room");
            }
            // It was made up for by brokers that are not recorded.
            case.put(other.broker, &short).await;
            if is_put_back {
                case.stage.put_back();
            }
            let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
            let lane = &recovered.lanes[0];
            let end = if is_put_back { 5 } else { 2 };
            assert_eq!((lane.stopped.clone(), lane.next_ordinal), (None, end));
        });
    }
}

#[test]
fn in_an_older_state_a_holder_that_is_silent_is_awaited_where_records_are_missing() {
    for is_closed in [true, false] {
        case(move |case| async move {
            let other = BrokerId(1);
            let here = holder(&case).await;
            let away = Replica {
                broker: other,
                incarnation: case.describe(other).await.incarnation,
            };
            let first = GroupRecord {
                copies: vec![here, away],
                ..opened(0, Some(0), here)
            };
            let open = opened(1, None, here);
            let revision = record(&case, vec![first, open.clone()]).await;
            let short = written(&case, 0, 0, 2).await;
            for id in 2..5 {
                short.append(id, 20).expect("room");
            }
            case.put(other, &short).await;
            let source = written(&case, 1, 5, 2).await;
            if is_closed {
                let open = GroupRecord { revision, ..open };
                let closed = open.closed(5, (source.end().address, 7), 7, vec![here]);
                record(&case, vec![closed]).await;
            }
            case.stage.put_back();
            case.stage.kill(other).await;
            let (_, waits) = case.recover(OWNER, Unclean::Wait).await;
            let stopped = waits.lanes[0].stopped.clone();
            let is_first =
                matches!(stopped, Some(Stopped::Unclean { copy: at, .. }) if at == copy(0));
            assert!(is_first, "{stopped:?}");
            case.stage.start(other, MemoryFate::Kept).await;
            let (_, recovered) = case.recover(OWNER, Unclean::Wait).await;
            let lane = &recovered.lanes[0];
            let ends: Vec<_> = lane.groups.iter().map(|group| group.end_ordinal).collect();
            assert_eq!((lane.stopped.clone(), ends), (None, vec![5, 7]));
            // What it has closed may be made longer by a broker that starts later.
            let restores: Vec<_> = lane.groups.iter().map(|group| group.restore).collect();
            assert_eq!(restores, [1, u64::from(!is_closed)]);
        });
    }
}
