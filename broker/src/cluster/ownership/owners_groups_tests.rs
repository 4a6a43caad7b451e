//! Groups over lanes of several owners.

use kera_coordinator::{Reply, Request};

use super::*;

/// Puts a request about group `g` to its coordinator, once that has read its state and heard of all lanes.
async fn ask(trio: &Trio, request: Request) -> Reply {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for at in 1..=3 {
            let shared = trio.shared(at);
            let answer = shared.coordination.call(shared, "g", request.clone()).await;
            match answer.map_err(|error| (error.code, error)) {
                Ok(reply) => return reply,
                Err((
                    ErrorCode::NotCoordinator
                    | ErrorCode::CoordinatorLoading
                    | ErrorCode::NotEnoughCopies,
                    error,
                )) => assert!(Instant::now() < deadline, "{error}"),
                Err((_, error)) => panic!("{error}"),
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_begins_at_a_time_in_the_lanes_of_every_owner() {
    let trio = Trio::start().await;
    let stream = trio.record(1, "orders", small(64 << 10)).await;
    for number in 0..3 {
        let owner = trio.owner(1, stream, number).broker;
        let shared = trio.shared(owner);
        until(|| shared.data.catalog.get(stream).is_some()).await;
        let streamlet = trio.served(owner, stream, number).await;
        append_all(shared, &streamlet, 0..3).await;
    }
    let at = |time| {
        let at = Some(v1::start_at::At::TimestampMs(time));
        Some(v1::StartAt { at })
    };
    // Records have time 1.
    let join = v1::JoinRequest {
        group: "g".into(),
        stream: "orders".into(),
        order: v1::Order::Lane as i32,
        client: "c".into(),
        session_ms: 60_000,
        start: at(2),
        ..Default::default()
    };
    let Reply::Join(joined) = ask(&trio, Request::join(join)).await else {
        panic!("no member");
    };
    let committed = |lanes: Vec<v1::LaneProgress>| -> Vec<_> {
        lanes.iter().map(|lane| lane.committed).collect()
    };
    let describe = v1::DescribeGroupRequest { group: "g".into() };
    let Reply::DescribeGroup(group) = ask(&trio, Request::DescribeGroup(describe)).await else {
        panic!("no description");
    };
    assert_eq!(committed(group.lanes), [3, 3, 3]);

    let leave = v1::LeaveRequest {
        group: "g".into(),
        member: joined.member,
    };
    ask(&trio, Request::Leave(leave)).await;
    let reset = v1::ResetGroupRequest {
        group: "g".into(),
        to: at(1),
        ..Default::default()
    };
    let Reply::ResetGroup(moved) = ask(&trio, Request::ResetGroup(reset)).await else {
        panic!("no reset");
    };
    assert_eq!(committed(moved.lanes), [0, 0, 0]);
}
