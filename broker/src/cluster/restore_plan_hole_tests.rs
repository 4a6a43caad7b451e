//! Ordinals between groups that are on no broker, and what lies behind them.

use super::*;

#[test]
fn holes_lie_between_groups_and_not_before_them() {
    let groups = [
        closed(2, (10, 20), &[1]),
        closed(3, (25, 30), &[1]),
        open(4, None, &[1]),
        closed(5, (30, 40), &[1]),
    ];
    assert_eq!(holes(&groups), [(20, 25)]);
    let carrier = GroupRecord {
        damaged: Some(Damage::new(0, TRIMMED.to_owned())),
        ..closed(1, (0, 5), &[1])
    };
    let trimmed: Vec<_> = [carrier].into_iter().chain(groups).collect();
    assert_eq!(holes(&trimmed), [(20, 25)]);
    // Ordinals that were passed over are none.
    let jumped = GroupRecord {
        next_ordinal: 25,
        ..closed(2, (10, 20), &[1])
    };
    assert!(holes(&[jumped, closed(3, (25, 30), &[1])]).is_empty());
    // Nor those of jumps that this state does not know, unless records are missing as well.
    for jumps in 1..4 {
        let to = 20 + jumps * MAX_GROUP_ORDINALS;
        for (to, expected) in [(to, vec![]), (to + 5, vec![(20, to + 5)])] {
            let groups = [closed(2, (10, 20), &[1]), closed(3, (to, to + 5), &[1])];
            assert_eq!(holes(&groups), expected);
        }
    }
}

/// A group that this restore has recorded.
fn taken(id: u64, place: (u64, u64), brokers: &[u32]) -> GroupRecord {
    GroupRecord {
        restore: 1,
        ..closed(id, place, brokers)
    }
}

/// Groups by number of which nothing was acknowledged, where two brokers acknowledge.
fn unacknowledged_of(groups: &[GroupRecord]) -> Vec<u64> {
    let found = unacknowledged(groups, 0, 2).into_iter();
    found.map(|record| record.group.0).collect()
}

#[test]
fn what_one_broker_has_behind_a_hole_was_not_acknowledged() {
    let before = closed(1, (0, 10), &[1, 2]);
    let lone = [taken(3, (15, 20), &[1]), taken(4, (20, 25), &[2])];
    let groups = [vec![before.clone()], lone.to_vec()].concat();
    assert_eq!(unacknowledged_of(&groups), [3, 4]);
    // A second hole changes nothing.
    let far = taken(4, (22, 25), &[2]);
    assert_eq!(
        unacknowledged_of(&[before.clone(), lone[0].clone(), far]),
        [3, 4]
    );
    // No hole, or one of trimmed groups at the beginning.
    assert!(unacknowledged_of(&lone).is_empty());
    let first = closed(2, (10, 15), &[1]);
    assert!(unacknowledged_of(&[vec![first], lone.to_vec()].concat()).is_empty());
}

#[test]
fn what_may_have_been_acknowledged_behind_a_hole_stays() {
    let before = closed(1, (0, 10), &[1, 2]);
    let lone = taken(3, (15, 20), &[1]);
    let stays = |behind: GroupRecord| {
        let groups = [before.clone(), lone.clone(), behind];
        assert!(unacknowledged_of(&groups).is_empty(), "{groups:?}");
    };
    stays(taken(4, (20, 25), &[1, 2]));
    stays(closed(4, (20, 25), &[1]));
    stays(GroupRecord {
        generation: 1,
        ..taken(4, (20, 25), &[1])
    });
    // Each life of a lane acknowledges by itself; brokers that have nothing are no holders.
    let later = 20 + MAX_GROUP_ORDINALS;
    let nobody = GroupRecord {
        copies: vec![replica(1), super::nobody(BrokerId(2))],
        ..lone.clone()
    };
    let lives = [before, nobody, taken(5, (later, later + 5), &[1, 2])];
    assert_eq!(unacknowledged_of(&lives), [3]);
}
