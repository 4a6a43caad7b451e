//! What a stream engine asks beside what consumers ask: how lanes grew, where to cut them, where they end, and
//! that positions which it keeps itself are shown.

use bytes::Bytes;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::FrameKind;
use kera_protocol::v1::{self, BarrierScope, CallMethod};

use crate::common::Broker;
use crate::common::raw::{Raw, frame_of, stream_id};

type Outcome<M> = Result<M, WireError>;

fn call<M: Message + Default>(
    raw: &mut Raw,
    method: CallMethod,
    request: &impl Message,
) -> Outcome<M> {
    let header = v1::CallRequest {
        method: method.into(),
        deadline_ms: 0,
    };
    let body = request.encode_to_vec();
    raw.send(&frame_of(FrameKind::Call, 1, &header, &body));
    let frame = raw.next().expect("a call is answered");
    let told: v1::CallResponse = frame.message().expect("a reply");
    match told.error {
        0 => Ok(M::decode(frame.body).expect("the method's reply")),
        number => Err(WireError::from_number(number, &told.message)),
    }
}

fn generations(raw: &mut Raw, name: &str, from_generation: u32) -> v1::GetGenerationsResponse {
    let request = v1::GetGenerationsRequest {
        name: name.into(),
        from_generation,
    };
    call(raw, CallMethod::GetGenerations, &request).expect("it is told")
}

fn produce(broker: &Broker, stream: &str, records: u32) {
    let records: String = (0..records).map(|n| format!("{n}\n")).collect();
    broker.feed(&["produce", stream], records.as_bytes());
}

#[test]
fn generations_tell_boundaries_and_what_the_order_of_keys_asks() {
    let broker = Broker::start();
    let mut raw = Raw::open(&broker);
    broker.run(&["stream", "create", "s", "--streamlets", "2", "--lanes", "1"]);
    produce(&broker, "s", 100);
    broker.run(&["stream", "alter", "s", "--lanes", "2"]);
    // No multiple of the streamlets: a key may be another streamlet's from here on.
    broker.run(&["stream", "alter", "s", "--partitions", "5"]);
    let told = generations(&mut raw, "s", 0);
    assert_eq!(told.stream, stream_id(&broker, "s"));
    assert_eq!((told.streamlets, told.total), (2, 3));
    let shape = told.generations.iter();
    let shape: Vec<_> = shape
        .map(|g| (g.generation, g.partitions, g.barrier(), g.boundaries.len()))
        .collect();
    assert_eq!(
        shape,
        [
            (0, 2, BarrierScope::None, 0),
            (1, 4, BarrierScope::Streamlet, 2),
            (2, 5, BarrierScope::Stream, 4)
        ]
    );
    let first = told.generations[1].boundaries.iter();
    let records: u64 = first.map(|boundary| boundary.ordinal).sum();
    assert_eq!(records, 100, "all of them are below the first boundaries");
    assert_eq!(
        generations(&mut raw, "s", 2).generations,
        told.generations[2..]
    );
    assert!(generations(&mut raw, "s", 9).generations.is_empty());

    broker.run(&["stream", "create", "p", "--lane-by", "producer"]);
    broker.run(&["stream", "alter", "p", "--lanes", "8"]);
    let told = generations(&mut raw, "p", 1);
    assert_eq!(told.generations[0].barrier(), BarrierScope::None);

    let absent = v1::GetGenerationsRequest {
        name: "absent".into(),
        from_generation: 0,
    };
    let absent: Outcome<v1::GetGenerationsResponse> =
        call(&mut raw, CallMethod::GetGenerations, &absent);
    assert_eq!(absent.expect_err("refused").code, ErrorCode::UnknownStream);
}

#[test]
fn lanes_are_cut_at_batch_boundaries_and_watched() {
    let broker = Broker::start();
    let mut raw = Raw::open(&broker);
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "1"]);
    let stream = stream_id(&broker, "s");
    let watch = |raw: &mut Raw, known, max_wait_ms| -> Vec<v1::LaneBounds> {
        let request = v1::WatchLanesRequest {
            stream: stream.clone(),
            known,
            max_wait_ms,
        };
        let told: v1::WatchLanesResponse =
            call(raw, CallMethod::WatchLanes, &request).expect("bounds");
        told.lanes
    };
    let empty = watch(&mut raw, Vec::new(), 0);
    assert_eq!((empty.len(), empty[0].head_ordinal), (1, 0));
    let lines: String = (0..10).map(|n| format!("{n}\n")).collect();
    for _ in 0..3 {
        // One batch, however slowly the lines come.
        broker.feed(&["produce", "s", "--linger", "20s"], lines.as_bytes());
    }
    let known = watch(&mut raw, empty, 60_000);
    assert!(
        known[0].head_ordinal > 0,
        "it does not wait for what is there"
    );

    let cut = |raw: &mut Raw, from_ordinal, max_ordinals| -> Outcome<v1::CutLaneResponse> {
        let request = v1::CutLaneRequest {
            stream: stream.clone(),
            from_ordinal,
            max_ordinals,
            max_bytes: u32::MAX,
            ..v1::CutLaneRequest::default()
        };
        call(raw, CallMethod::CutLane, &request)
    };
    let mut from = 0;
    let mut ends = Vec::new();
    loop {
        let range = cut(&mut raw, from, 15).expect("a cut");
        if !range.found {
            break;
        }
        assert_eq!(range.start.map(|start| start.ordinal), Some(from));
        ends.push(range.end_ordinal);
        from = range.end_ordinal;
    }
    assert_eq!(
        ends,
        [10, 20, 30],
        "a batch of 10 each, of which 2 are too many"
    );
    let other = v1::CutLaneRequest {
        stream: Bytes::from(vec![7; 16]),
        ..v1::CutLaneRequest::default()
    };
    let other: Outcome<v1::CutLaneResponse> = call(&mut raw, CallMethod::CutLane, &other);
    assert_eq!(other.expect_err("refused").code, ErrorCode::UnknownStream);
}

#[test]
fn positions_kept_elsewhere_are_shown_unless_the_group_has_members() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "2"]);
    let keyed: String = (0..40).map(|n| format!("{n}:{n}\n")).collect();
    broker.feed(&["produce", "s", "--key-separator", ":"], keyed.as_bytes());
    let mut raw = Raw::open(&broker);
    let positions = |raw: &mut Raw, group: &str, positions: &[(u32, u64)]| -> Outcome<()> {
        let positions = positions.iter();
        let positions = positions.map(|(lane, ordinal)| v1::LanePosition {
            streamlet: 0,
            lane: *lane,
            ordinal: *ordinal,
        });
        let request = v1::CommitPositionsRequest {
            group: group.into(),
            stream: "s".into(),
            positions: positions.collect(),
            ..v1::CommitPositionsRequest::default()
        };
        let done: Outcome<v1::CommitPositionsResponse> =
            call(raw, CallMethod::CommitPositions, &request);
        done.map(|_| ())
    };
    let lag = |raw: &mut Raw, group: &str| {
        let request = v1::DescribeGroupRequest {
            group: group.into(),
        };
        let told: v1::DescribeGroupResponse =
            call(raw, CallMethod::DescribeGroup, &request).expect("the group");
        told.summary.expect("a summary").lag
    };
    positions(&mut raw, "engine", &[(0, 5), (1, 3)]).expect("they are taken");
    assert_eq!(lag(&mut raw, "engine"), 32);
    positions(&mut raw, "engine", &[(0, 2)]).expect("an older checkpoint");
    assert_eq!(lag(&mut raw, "engine"), 35);
    let code = |outcome: Outcome<()>| outcome.expect_err("refused").code;
    assert_eq!(
        code(positions(&mut raw, "engine", &[(2, 0)])),
        ErrorCode::UnknownLane
    );
    assert_eq!(
        code(positions(&mut raw, "engine", &[(0, 41)])),
        ErrorCode::InvalidArgument
    );
    assert_eq!(
        lag(&mut raw, "engine"),
        35,
        "what is refused changes nothing"
    );

    broker.kill();
    broker.restart();
    let mut raw = Raw::open(&broker);
    assert_eq!(lag(&mut raw, "engine"), 35);

    let join = v1::JoinRequest {
        group: "engine".into(),
        stream: "s".into(),
        session_ms: 60_000,
        ..v1::JoinRequest::default()
    };
    let joined: Outcome<v1::JoinResponse> = call(&mut raw, CallMethod::Join, &join);
    joined.expect("a member");
    assert_eq!(
        code(positions(&mut raw, "engine", &[(0, 7)])),
        ErrorCode::GroupNotEmpty
    );
}

/// Of a stream that was made again under its name nothing is known that was meant for the one before.
#[test]
fn positions_of_a_stream_that_is_gone_are_not_taken_for_another_of_its_name() {
    let broker = Broker::start();
    let mut raw = Raw::open(&broker);
    broker.run(&["stream", "create", "s"]);
    let mut commit = |stream_id| {
        let positions = v1::CommitPositionsRequest {
            group: "g".into(),
            stream: "s".into(),
            stream_id,
            ..v1::CommitPositionsRequest::default()
        };
        let done: Outcome<v1::CommitPositionsResponse> =
            call(&mut raw, CallMethod::CommitPositions, &positions);
        done.map(drop).map_err(|refused| refused.code)
    };
    assert_eq!(commit(vec![7; 16].into()), Err(ErrorCode::UnknownStream));
    assert_eq!(commit(Default::default()), Ok(()));
}

#[test]
fn long_lists_come_in_pages() {
    let broker = Broker::start();
    let mut raw = Raw::open(&broker);
    for n in 0..5 {
        broker.run(&["stream", "create", &format!("s{n}")]);
        let positions = v1::CommitPositionsRequest {
            group: format!("g{n}"),
            stream: format!("s{n}"),
            positions: Vec::new(),
            ..v1::CommitPositionsRequest::default()
        };
        let done: Outcome<v1::CommitPositionsResponse> =
            call(&mut raw, CallMethod::CommitPositions, &positions);
        done.expect("a group is made");
    }
    let (mut streams, mut groups) = (Vec::<String>::new(), Vec::<String>::new());
    for more in [true, true, false] {
        let request = v1::ListStreamsRequest {
            after: streams.last().cloned().unwrap_or_default(),
            max_streams: 2,
            ..v1::ListStreamsRequest::default()
        };
        let page: v1::ListStreamsResponse =
            call(&mut raw, CallMethod::ListStreams, &request).expect("a page");
        assert_eq!(page.more, more);
        streams.extend(page.streams.into_iter().map(|stream| stream.name));
        let request = v1::ListGroupsRequest {
            after: groups.last().cloned().unwrap_or_default(),
            max_groups: 2,
            ..v1::ListGroupsRequest::default()
        };
        let page: v1::ListGroupsResponse =
            call(&mut raw, CallMethod::ListGroups, &request).expect("a page");
        assert_eq!(page.more, more);
        groups.extend(page.groups.into_iter().map(|group| group.group));
    }
    assert_eq!(streams, ["s0", "s1", "s2", "s3", "s4"]);
    assert_eq!(groups, ["g0", "g1", "g2", "g3", "g4"]);
}
