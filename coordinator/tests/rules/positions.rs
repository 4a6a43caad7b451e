//! Positions of whoever keeps them itself.

use super::*;

fn positions(b: &mut Bench, group: &str, positions: &[(u32, u32, u64)]) -> Result<(), ErrorCode> {
    let positions = positions.iter();
    let positions = positions.map(|(streamlet, lane, ordinal)| v1::LanePosition {
        streamlet: *streamlet,
        lane: *lane,
        ordinal: *ordinal,
    });
    let request = v1::CommitPositionsRequest {
        group: group.into(),
        stream: "s".into(),
        positions: positions.collect(),
    };
    let asked = Request::CommitPositions {
        request,
        client_host: "/10.0.0.1".into(),
    };
    match b.call(asked) {
        Ok(Reply::CommitPositions(_)) => Ok(()),
        Ok(other) => panic!("positions answered {other:?}"),
        Err(error) => Err(error.code),
    }
}

fn committed(b: &mut Bench, group: &str) -> Vec<u64> {
    b.describe(group)
        .lanes
        .iter()
        .map(|lane| lane.committed)
        .collect()
}

#[test]
fn positions_move_a_group_without_members_to_and_fro() {
    let mut b = bench(1, 2);
    b.stream.append((0, 0), 10);
    b.stream.append((0, 1), 10);
    assert_eq!(positions(&mut b, "g", &[(0, 0, 7), (0, 1, 4)]), Ok(()));
    assert_eq!(committed(&mut b, "g"), [7, 4]);
    let events = b.events.len();
    assert_eq!(positions(&mut b, "g", &[(0, 0, 7)]), Ok(()));
    assert_eq!(b.events.len(), events, "nothing moved");
    assert_eq!(positions(&mut b, "g", &[(0, 1, 9), (0, 1, 2)]), Ok(()));
    assert_eq!(committed(&mut b, "g"), [7, 2]);
    let replayed = support::replay(&b.events, b.now);
    assert!(replayed.same_durable_state(&b.coordinator));
}

#[test]
fn ranges_that_members_finished_do_not_outlive_a_position() {
    let mut b = bench(1, 1);
    for _ in 0..4 {
        b.stream.append((0, 0), 10);
    }
    let m = b.join("g", "c", Order::None);
    let leases = b.acquire("g", &m, 4);
    let last = leases.last().expect("leases");
    b.commit("g", &m, &[commit(last.lease, Some(last.end_ordinal), true)]);
    assert_eq!(
        positions(&mut b, "g", &[(0, 0, 5)]),
        Err(ErrorCode::GroupNotEmpty)
    );
    b.tick(10_000);
    assert_eq!(positions(&mut b, "g", &[(0, 0, 0)]), Ok(()));
    assert_eq!(b.describe("g").lanes[0].finished_above, 0);
}

#[test]
fn what_is_refused_makes_no_group() {
    let mut b = bench(1, 1);
    assert_eq!(
        positions(&mut b, "g", &[(0, 1, 0)]),
        Err(ErrorCode::UnknownLane)
    );
    assert_eq!(
        positions(&mut b, "g", &[(1, 0, 0)]),
        Err(ErrorCode::UnknownLane)
    );
    assert_eq!(
        positions(&mut b, "no name", &[]),
        Err(ErrorCode::InvalidName)
    );
    let many = vec![(0, 0, 0); Limits::default().commits_per_request + 1];
    assert_eq!(
        positions(&mut b, "g", &many),
        Err(ErrorCode::InvalidArgument)
    );
    assert_eq!(
        positions(&mut b, "g", &[(0, 0, 1)]),
        Err(ErrorCode::InvalidArgument)
    );
    assert!(b.events.is_empty());
}
