//! What must hold for any bytes that arrive on a data connection.

use bytes::BytesMut;
use kera_protocol::Message;
use kera_protocol::frame::{
    Decoded, Frame, FrameKind, HELLO_BYTES, HELLO_REPLY_BYTES, Hello, HelloReply, PREFIX_BYTES,
    decode, encode_head,
};
use kera_protocol::v1;

/// What the receiver accepts here; inputs of a fuzzer are smaller still.
const LIMIT: usize = 1 << 20;

/// Takes frames off `data` until it ends or turns out to be none.
///
/// # Panics
/// If a rule is broken.
pub fn check(data: &[u8]) {
    hello(data);
    prefixes_agree(data);

    let mut buffer = BytesMut::from(data);
    loop {
        let before = buffer.len();
        match Frame::split_from(&mut buffer, LIMIT) {
            Ok(Some(frame)) => {
                let taken = before - buffer.len();
                assert_eq!(taken, PREFIX_BYTES + frame.header.len() + frame.body.len());
                assert!(
                    taken <= LIMIT,
                    "a frame of {taken} bytes passed a limit of {LIMIT}"
                );
                message(&frame);
            }
            Ok(None) => {
                assert_eq!(buffer.len(), before, "an unfinished frame lost bytes");
                break;
            }
            Err(_) => break,
        }
    }
}

fn hello(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<HELLO_BYTES>()
        && let Ok(hello) = Hello::decode(bytes)
    {
        assert_eq!(hello.encode(), *bytes);
    }
    if let Some(bytes) = data.first_chunk::<HELLO_REPLY_BYTES>()
        && let Ok(reply) = HelloReply::decode(bytes)
    {
        let again = HelloReply::decode(&reply.encode());
        assert_eq!(again, Ok(reply));
    }
}

/// A verdict on the first bytes stands when more bytes arrive.
fn prefixes_agree(data: &[u8]) {
    let whole = decode(data, LIMIT);
    for cut in 0..data.len().min(PREFIX_BYTES) {
        match decode(&data[..cut], LIMIT) {
            Ok(Decoded::NeedMore(need)) => assert!(need > cut),
            Ok(Decoded::Frame(header)) => panic!("{cut} bytes gave a frame: {header:?}"),
            Err(early) => assert_eq!(whole.as_ref().err(), Some(&early)),
        }
    }
    if let Ok(Decoded::Frame(header)) = whole {
        assert!(header.total_bytes() <= LIMIT);
    }
}

fn message(frame: &Frame) {
    match frame.kind {
        FrameKind::Append => round_trip::<v1::AppendRequest>(frame),
        FrameKind::AppendReply => round_trip::<v1::AppendResponse>(frame),
        FrameKind::Read => round_trip::<v1::ReadRequest>(frame),
        FrameKind::ReadReply => round_trip::<v1::ReadResponse>(frame),
        FrameKind::Subscribe => round_trip::<v1::SubscribeRequest>(frame),
        FrameKind::SubscribeReply => round_trip::<v1::SubscribeResponse>(frame),
        FrameKind::PushData => round_trip::<v1::PushData>(frame),
        FrameKind::Credit => round_trip::<v1::CreditRequest>(frame),
        FrameKind::Call => round_trip::<v1::CallRequest>(frame),
        FrameKind::CallReply => round_trip::<v1::CallResponse>(frame),
        FrameKind::GoAway => round_trip::<v1::GoAway>(frame),
        _ => {}
    }
}

/// A message that decodes says the same after it was sent again.
fn round_trip<M: Message + Default + PartialEq>(frame: &Frame) {
    let Ok(message) = frame.message::<M>() else {
        return;
    };
    let mut out = BytesMut::new();
    if encode_head(
        &mut out,
        frame.kind,
        frame.correlation,
        &message,
        frame.body.len(),
    )
    .is_err()
    {
        // Encoding may be longer than what arrived, as for numbers in fewer bytes than ours.
        assert!(message.encoded_len() > usize::from(u16::MAX));
        return;
    }
    out.extend_from_slice(&frame.body);
    let again = Frame::split_from(&mut out, 2 * LIMIT).expect("what was encoded decodes");
    let again = again.expect("what was encoded is whole");
    assert_eq!(
        (again.kind, again.correlation),
        (frame.kind, frame.correlation)
    );
    assert_eq!(again.body, frame.body);
    assert!(again.message::<M>().expect("the message decodes") == message);
}
