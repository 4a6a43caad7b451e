//! Many long polls on one connection: each is answered by news of its own lane, and only by that.

use std::collections::BTreeSet;

use kera_protocol::frame::FrameKind;
use kera_protocol::v1;

use crate::common::Broker;
use crate::common::raw::{Raw, batch_of, frame_of, stream_id};

const LANES: u32 = 4;
const POLLS_PER_LANE: u32 = 50;

struct Polls {
    raw: Raw,
    stream: bytes::Bytes,
}

impl Polls {
    /// Asks for what follows ordinal `from` of a lane; as long as the broker lets it wait.
    fn poll(&mut self, correlation: u32, lane: u32, from: u64) {
        let request = v1::ReadRequest {
            stream: self.stream.clone(),
            lane,
            cursor: Some(v1::Cursor {
                ordinal: from,
                ..v1::Cursor::default()
            }),
            max_bytes: 1 << 20,
            min_bytes: 1,
            max_wait_ms: 3_600_000,
            ..v1::ReadRequest::default()
        };
        self.raw
            .send(&frame_of(FrameKind::Read, correlation, &request, b""));
    }

    fn append(&mut self, lane: u32) {
        let request = v1::AppendRequest {
            stream: self.stream.clone(),
            lane,
            ..v1::AppendRequest::default()
        };
        let body = batch_of(b"news");
        self.raw
            .send(&frame_of(FrameKind::Append, u32::MAX, &request, &body));
    }

    /// The correlations of the next answers, each of which brings the one record there is.
    fn answers(&mut self, count: u32, next: u64) -> BTreeSet<u32> {
        let mut answered = BTreeSet::new();
        let mut appends = 0;
        while answered.len() < count as usize || appends == 0 {
            let frame = self.raw.next().expect("the broker goes on");
            if frame.kind == FrameKind::AppendReply {
                appends += 1;
                continue;
            }
            assert_eq!(frame.kind, FrameKind::ReadReply);
            let reply: v1::ReadResponse = frame.message().expect("a reply");
            assert_eq!(reply.error, 0, "{}", reply.message);
            assert_eq!((reply.head_ordinal, frame.body.is_empty()), (next, false));
            assert!(answered.insert(frame.correlation), "answered once");
        }
        answered
    }
}

#[test]
fn a_long_poll_is_answered_by_its_own_lane() {
    let broker = Broker::start();
    let lanes = LANES.to_string();
    broker.run(&["stream", "create", "s", "--lanes", &lanes]);
    let mut polls = Polls {
        raw: Raw::open(&broker),
        stream: stream_id(&broker, "s"),
    };
    // A subscription at the head of lane 0, which ends while polls wait at the same head.
    let subscribe = v1::SubscribeRequest {
        subscription: 1,
        stream: polls.stream.clone(),
        credit_bytes: 1 << 20,
        max_bytes: 1 << 20,
        ..v1::SubscribeRequest::default()
    };
    polls
        .raw
        .send(&frame_of(FrameKind::Subscribe, 1_000_000, &subscribe, b""));
    let reply = polls.raw.next().expect("the subscription is answered");
    assert_eq!(reply.kind, FrameKind::SubscribeReply);
    for lane in 0..LANES {
        for poll in 0..POLLS_PER_LANE {
            polls.poll(lane * POLLS_PER_LANE + poll, lane, 0);
        }
    }
    let end = v1::CreditRequest {
        subscription: 1,
        unsubscribe: true,
        ..v1::CreditRequest::default()
    };
    polls.raw.send(&frame_of(FrameKind::Credit, 0, &end, b""));
    for round in 0..3 {
        for lane in [2, 0, 3, 1] {
            polls.append(lane);
            let own = lane * POLLS_PER_LANE..(lane + 1) * POLLS_PER_LANE;
            let answered = polls.answers(POLLS_PER_LANE, round + 1);
            assert_eq!(answered, own.clone().collect(), "lane {lane}");
            for correlation in own {
                polls.poll(correlation, lane, round + 1);
            }
        }
    }
}
