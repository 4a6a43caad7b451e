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
        ..v1::CommitPositionsRequest::default()
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

#[test]
fn a_group_is_not_placed_where_a_time_is_not_known() {
    let mut b = bench(2, 1);
    b.stream.append((0, 0), 10);
    b.stream.append((1, 0), 10);
    // Where it begins and ends is known, as an owner tells that apart.
    b.stream.lanes.get_mut(&(1, 0)).unwrap().timeless = true;
    let time = at(start_at::At::TimestampMs(5));
    let starting = v1::JoinRequest {
        start: time,
        ..join("g", "c", Order::Lane)
    };
    let error = b.join_error(starting.clone());
    assert_eq!(error, ErrorCode::NotEnoughCopies);
    b.stream.lanes.get_mut(&(1, 0)).unwrap().timeless = false;
    let Ok(Reply::Join(reply)) = b.call(Request::join(starting)) else {
        panic!("join failed");
    };
    let leave = v1::LeaveRequest {
        group: "g".into(),
        member: reply.member,
    };
    b.call(Request::Leave(leave)).unwrap();
    let committed = |b: &mut Bench| -> Vec<_> {
        let lanes = b.describe("g").lanes;
        lanes.iter().map(|lane| lane.committed).collect()
    };
    assert_eq!(committed(&mut b), [5, 5]);

    b.stream.lanes.get_mut(&(1, 0)).unwrap().timeless = true;
    let reset = |b: &mut Bench, time, streamlet| {
        let reset = Request::ResetGroup(v1::ResetGroupRequest {
            group: "g".into(),
            to: at(start_at::At::TimestampMs(time)),
            streamlet,
            ..v1::ResetGroupRequest::default()
        });
        b.call(reset).map_err(|error| (error.code, error.message))
    };
    let (code, message) = reset(&mut b, 8, None).unwrap_err();
    assert_eq!(code, ErrorCode::NotEnoughCopies);
    assert!(message.contains("streamlet 1 lane 0"), "{message}");
    assert_eq!(committed(&mut b), [5, 5], "nothing moved");
    reset(&mut b, 8, Some(0)).expect("the lanes that it is about are known");
    assert_eq!(committed(&mut b), [8, 5]);
}

#[test]
fn a_lane_whose_owner_told_nothing_has_no_head_and_no_lag() {
    let mut b = Bench::new(FakeStream::new(1, 2, LaneBy::Producer));
    b.stream.append((0, 0), 7);
    b.stream.append((0, 1), 9);
    b.join("g", "c", Order::Lane);
    let seen = b.describe("g");
    let summary = seen.summary.expect("it is there");
    assert_eq!((summary.lag, summary.unknown_lanes), (16, 0));
    b.stream.lanes.remove(&(0, 1)).expect("it is there");
    let seen = b.describe("g");
    let summary = seen.summary.expect("it is there");
    assert_eq!((summary.lag, summary.unknown_lanes), (7, 1));
    let told = seen
        .lanes
        .iter()
        .map(|lane| (lane.head_ordinal, lane.lag, lane.head_unknown));
    assert_eq!(told.collect::<Vec<_>>(), [(7, 7, false), (0, 0, true)]);
}
