//! A data connection spoken by hand: frame by frame, with all that a well-behaved client leaves out.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::{self, Decoded, Frame, FrameKind, HELLO_REPLY_BYTES, Hello, HelloReply};
use kera_protocol::ids::StreamId;
use kera_protocol::v1;

use super::{Broker, PATIENCE};

pub struct Raw {
    pub socket: TcpStream,
    /// What the broker says it accepts; 0 before the hello.
    pub max_frame_bytes: usize,
    received: BytesMut,
}

impl Raw {
    /// A connection that has sent nothing yet.
    pub fn connect(broker: &Broker) -> Self {
        Self::connect_to(broker.address())
    }

    /// As [`connect`](Self::connect), to a broker by its address.
    pub fn connect_to(address: &str) -> Self {
        let socket = TcpStream::connect(address).expect("the broker accepts");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        Self {
            socket,
            max_frame_bytes: 0,
            received: BytesMut::new(),
        }
    }

    /// A connection after a good hello.
    pub fn open(broker: &Broker) -> Self {
        Self::open_to(broker.address())
    }

    /// As [`open`](Self::open), to a broker by its address.
    pub fn open_to(address: &str) -> Self {
        let mut raw = Self::connect_to(address);
        raw.send(&Hello::CURRENT.encode());
        raw.max_frame_bytes = raw.hello_reply().max_frame_bytes as usize;
        raw
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The broker may have closed already: that shows in what it said.
        let _ = self.socket.write_all(bytes);
    }

    pub fn hello_reply(&mut self) -> HelloReply {
        let mut reply = [0; HELLO_REPLY_BYTES];
        self.socket
            .read_exact(&mut reply)
            .expect("the hello is answered");
        HelloReply::decode(&reply).expect("the answer is a hello")
    }

    /// The next frame; none when the broker closed.
    pub fn next(&mut self) -> Option<Frame> {
        let mut bytes = [0; 64 << 10];
        loop {
            let decoded = frame::decode(&self.received, 1 << 30).expect("the broker sends frames");
            if let Decoded::Frame(header) = decoded
                && header.total_bytes() <= self.received.len()
            {
                let whole = self.received.split_to(header.total_bytes()).freeze();
                return Some(Frame::from_parts(&header, &whole));
            }
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.received.extend_from_slice(&bytes[..read]),
                // It closed while we were still sending.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the broker neither answers nor closes: {error}"),
            }
        }
    }

    /// The answer to an append, with its correlation.
    pub fn append_answer(&mut self) -> (u32, v1::AppendResponse) {
        let frame = self.next().expect("an append is answered");
        assert_eq!(frame.kind, FrameKind::AppendReply);
        (frame.correlation, frame.message().expect("an answer"))
    }

    /// The broker says goodbye with this code, and closes.
    pub fn goes_away(mut self, code: ErrorCode) -> String {
        let frame = self.next().expect("the broker says why it closes");
        assert_eq!(frame.kind, FrameKind::GoAway);
        let message: v1::GoAway = frame.message().expect("a goodbye");
        assert_eq!(
            ErrorCode::from_number(message.error),
            Some(code),
            "{}",
            message.message
        );
        assert!(!message.message.is_empty());
        assert!(self.next().is_none(), "nothing follows a goodbye");
        message.message
    }
}

/// A whole frame.
pub fn frame_of(kind: FrameKind, correlation: u32, header: &impl Message, body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    frame::encode_head(&mut out, kind, correlation, header, body.len()).expect("it fits");
    out.extend_from_slice(body);
    out
}

/// A stream's id as it stands in requests.
pub fn stream_id(broker: &Broker, stream: &str) -> Bytes {
    let described = broker.json(&["stream", "describe", stream]);
    let id: StreamId = described["id"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .expect("an id");
    Bytes::copy_from_slice(id.as_bytes())
}

/// A batch of one record, of no idempotent producer.
pub fn batch_of(value: &[u8]) -> Vec<u8> {
    batch_by(ProducerStamp::NONE, value)
}

/// Now: what is older than the retention time goes once its group is closed.
fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("it is later than 1970").as_millis() as i64
}

/// A batch of one record.
pub fn batch_by(producer: ProducerStamp, value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        timestamp: now_ms(),
        key: None,
        value: Some(value),
        headers: &[],
    };
    builder.push(&record).expect("a record fits");
    builder
        .finish(Compression::None, producer)
        .expect("a record makes a batch")
        .to_vec()
}
