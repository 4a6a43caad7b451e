//! The frame codec: round trips, bounds, and bytes that are no frame.

use bytes::{Bytes, BytesMut};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{
    Decoded, Frame, FrameError, FrameHeader, FrameKind, Hello, HelloReply, MAX_HEADER_BYTES,
    PREFIX_BYTES, PROTOCOL_VERSION, decode, encode_empty, encode_go_away, encode_head,
};
use kera_protocol::v1;
use proptest::collection::vec;
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

fn append_frame(correlation: u32, lane: u32, body: &[u8]) -> BytesMut {
    let header = v1::AppendRequest {
        stream: Bytes::from_static(&[7; 16]),
        streamlet: 3,
        lane,
        lane_generation: 1,
        partitions: 0,
        transactional_id: String::new(),
    };
    let mut out = BytesMut::new();
    encode_head(
        &mut out,
        FrameKind::Append,
        correlation,
        &header,
        body.len(),
    )
    .unwrap();
    out.extend_from_slice(body);
    out
}

proptest! {
    #[test]
    fn what_is_sent_is_received(
        correlation in any::<u32>(),
        lane in any::<u32>(),
        body in vec(any::<u8>(), 0..200),
    ) {
        let mut buffer = append_frame(correlation, lane, &body);
        encode_empty(&mut buffer, FrameKind::Ping, 9);
        let frame = Frame::split_from(&mut buffer, LIMIT).unwrap().unwrap();
        prop_assert_eq!(frame.kind, FrameKind::Append);
        prop_assert_eq!(frame.correlation, correlation);
        prop_assert_eq!(&frame.body[..], &body[..]);
        prop_assert_eq!(frame.message::<v1::AppendRequest>().unwrap().lane, lane);
        let ping = Frame::split_from(&mut buffer, LIMIT).unwrap().unwrap();
        prop_assert_eq!((ping.kind, ping.correlation), (FrameKind::Ping, 9));
        prop_assert!(ping.header.is_empty() && ping.body.is_empty() && buffer.is_empty());
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..64), limit in 0_usize..100_000) {
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(frame)) = Frame::split_from(&mut buffer, limit) {
            prop_assert!(PREFIX_BYTES + frame.header.len() + frame.body.len() <= limit);
            let _ = frame.message::<v1::ReadResponse>();
        }
    }
}

#[test]
fn a_frame_cut_at_any_byte_needs_more() {
    let whole = append_frame(5, 1, b"body");
    for cut in 0..whole.len() {
        let mut part = BytesMut::from(&whole[..cut]);
        assert_eq!(Frame::split_from(&mut part, LIMIT), Ok(None));
        assert_eq!(part.len(), cut, "nothing is taken");
        match decode(&part, LIMIT).unwrap() {
            Decoded::NeedMore(bytes) => assert!(cut < bytes && bytes <= whole.len()),
            Decoded::Frame(header) => {
                assert!(cut >= PREFIX_BYTES);
                assert_eq!(header.total_bytes(), whole.len());
            }
        }
    }
}

#[test]
fn a_frame_above_the_limit_is_refused_by_its_first_four_bytes() {
    let whole = append_frame(5, 1, &[0; 100]);
    let exact = whole.len();
    assert!(matches!(decode(&whole, exact), Ok(Decoded::Frame(_))));
    for cut in 4..whole.len() {
        let error = decode(&whole[..cut], exact - 1).unwrap_err();
        assert_eq!(error.code(), ErrorCode::FrameTooLarge);
    }
    let huge = u32::MAX.to_le_bytes();
    assert!(matches!(
        decode(&huge, LIMIT),
        Err(FrameError::TooLarge { .. })
    ));
}

#[test]
fn lengths_versions_and_kinds_that_cannot_be_are_refused() {
    let good: [u8; PREFIX_BYTES] = append_frame(5, 1, b"")[..PREFIX_BYTES].try_into().unwrap();
    let with = |at: usize, value: u8| {
        let mut prefix = good;
        prefix[at] = value;
        FrameHeader::decode(&prefix, LIMIT)
    };
    assert!(with(4, 1).is_ok());
    assert_eq!(with(4, 0), Err(FrameError::UnknownKind(0)));
    assert_eq!(with(4, 14), Err(FrameError::UnknownKind(14)));
    assert_eq!(with(5, 2), Err(FrameError::UnsupportedFrame(2)));
    assert!(matches!(with(7, 255), Err(FrameError::BadLength { .. })));
    assert!(matches!(with(0, 7), Err(FrameError::BadLength { .. })));
    assert_eq!(
        with(5, 2).unwrap_err().code(),
        ErrorCode::UnsupportedVersion
    );
}

#[test]
fn kinds_keep_their_numbers() {
    for (index, kind) in FrameKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, index + 1);
        assert_eq!(FrameKind::from_number(kind as u8), Some(kind));
    }
    assert_eq!(FrameKind::from_number(0), None);
    assert_eq!(FrameKind::from_number(14), None);
}

#[test]
fn a_header_that_does_not_fit_changes_nothing() {
    let header = v1::GoAway {
        error: 1,
        message: "x".repeat(MAX_HEADER_BYTES),
    };
    let mut out = BytesMut::from(&b"before"[..]);
    assert!(matches!(
        encode_head(&mut out, FrameKind::GoAway, 0, &header, 0),
        Err(FrameError::HeaderTooLarge(_))
    ));
    assert_eq!(&out[..], b"before");
}

#[test]
fn a_go_away_says_why_and_cuts_long_reasons() {
    for reason in ["frame of 9 bytes".to_owned(), "ö".repeat(5_000)] {
        let mut out = BytesMut::new();
        encode_go_away(
            &mut out,
            &WireError::new(ErrorCode::FrameTooLarge, reason.clone()),
        );
        let frame = Frame::split_from(&mut out, LIMIT).unwrap().unwrap();
        let message: v1::GoAway = frame.message().unwrap();
        assert_eq!(message.error, ErrorCode::FrameTooLarge as u32);
        assert!(reason.starts_with(&message.message) && message.message.len() <= 1024);
    }
}

#[test]
fn a_header_of_another_message_is_an_error_not_a_panic() {
    let frame = Frame {
        kind: FrameKind::Append,
        correlation: 1,
        header: Bytes::from_static(&[0xff; 9]),
        body: Bytes::new(),
    };
    let error = frame.message::<v1::AppendRequest>().unwrap_err();
    assert_eq!(error.code(), ErrorCode::MalformedFrame);
}

#[test]
fn hellos_round_trip_and_other_protocols_are_told_apart() {
    assert_eq!(Hello::CURRENT.encode(), *b"KERA\x01\0\0\0");
    assert_eq!(Hello::decode(&Hello::CURRENT.encode()), Ok(Hello::CURRENT));
    assert_eq!(Hello::decode(b"PRI * HT"), Err(FrameError::NotKera));
    let reply = HelloReply {
        version: PROTOCOL_VERSION,
        flags: 1,
        max_frame_bytes: 123_456,
    };
    assert_eq!(HelloReply::decode(&reply.encode()), Ok(reply));
    let newer = HelloReply {
        version: 2,
        ..reply
    };
    assert_eq!(
        HelloReply::decode(&newer.encode()),
        Err(FrameError::UnsupportedProtocol(2))
    );
}
