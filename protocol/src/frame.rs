//! Data frames: the hello that opens a connection, and the frames that follow, both ways.
//!
//! ```text
//! hello         "KERA", u16 version, u16 flags (0)
//! hello reply   "KERA", u16 version, u16 flags (bit 0: it takes calls), u32 most bytes of a frame
//! frame         u32 length of what follows, u8 kind, u8 version, u16 header length,
//!               u32 correlation, header (a message of `v1`), body (raw batches, or
//!               the message of a control call)
//! ```
//! All numbers are little-endian. Frames are pipelined; replies come in any order and carry the
//! correlation of their request. Pushed frames carry correlation 0.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::error::{ErrorCode, WireError};
use crate::v1;

/// The first bytes of a hello and of its reply.
pub const MAGIC: [u8; 4] = *b"KERA";
/// The protocol version this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// The frame version this build speaks.
pub const FRAME_VERSION: u8 = 1;
/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 8;
/// Bytes of a [`HelloReply`].
pub const HELLO_REPLY_BYTES: usize = 12;
/// The bit of [`HelloReply::flags`] that says that the broker takes [`FrameKind::Call`].
pub const TAKES_CALLS: u16 = 1;
/// Most bytes of a call's request.
pub const MAX_CALL_BYTES: usize = 4 << 20;
/// Most bytes of a call's reply, if the frame limit allows as many.
pub const MAX_CALL_REPLY_BYTES: usize = 64 << 20;
/// Calls of one connection that wait for their reply at a time.
pub const MAX_CALLS: usize = 64;
/// Bytes before a frame's header: length, kind, version, header length, correlation.
pub const PREFIX_BYTES: usize = 12;
/// Most bytes of a frame's header (message).
pub const MAX_HEADER_BYTES: usize = u16::MAX as usize;
/// The limit a broker announces unless configured otherwise: one largest batch and its header.
pub const DEFAULT_MAX_FRAME_BYTES: u32 = (64 << 20) + (64 << 10) + PREFIX_BYTES as u32;
/// The correlation of frames that answer nothing.
pub const PUSH_CORRELATION: u32 = 0;

/// Bytes of the length field, which does not count itself.
const LENGTH_BYTES: usize = 4;

/// What a frame is. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum FrameKind {
    /// [`v1::AppendRequest`], batches in the body.
    Append = 1,
    /// [`v1::AppendResponse`].
    AppendReply = 2,
    /// [`v1::ReadRequest`].
    Read = 3,
    /// [`v1::ReadResponse`], batches in the body.
    ReadReply = 4,
    /// [`v1::SubscribeRequest`].
    Subscribe = 5,
    /// [`v1::SubscribeResponse`].
    SubscribeReply = 6,
    /// [`v1::PushData`], batches in the body; correlation 0.
    PushData = 7,
    /// [`v1::CreditRequest`]; not answered.
    Credit = 8,
    /// [`v1::GoAway`]: the sender closes the connection; correlation 0.
    GoAway = 9,
    /// No header; answered by a pong.
    Ping = 10,
    /// No header.
    Pong = 11,
    /// [`v1::CallRequest`], the method's request in the body.
    Call = 12,
    /// [`v1::CallResponse`], the method's reply in the body.
    CallReply = 13,
}

impl FrameKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [FrameKind; 13] = [
        FrameKind::Append,
        FrameKind::AppendReply,
        FrameKind::Read,
        FrameKind::ReadReply,
        FrameKind::Subscribe,
        FrameKind::SubscribeReply,
        FrameKind::PushData,
        FrameKind::Credit,
        FrameKind::GoAway,
        FrameKind::Ping,
        FrameKind::Pong,
        FrameKind::Call,
        FrameKind::CallReply,
    ];

    /// The kind of a number; `None` for one this build does not know.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }
}

/// Why bytes are not a hello or a frame. The connection cannot go on after any of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first bytes are not a data connection's.
    #[error("connection does not open with \"KERA\": the peer speaks another protocol")]
    NotKera,
    /// The peer's protocol version.
    #[error("peer speaks protocol version {0}, this build {PROTOCOL_VERSION}")]
    UnsupportedProtocol(u16),
    /// The frame's version.
    #[error("frame has version {0}, this build knows {FRAME_VERSION}")]
    UnsupportedFrame(u8),
    /// The frame's kind.
    #[error("frame has unknown kind {0}")]
    UnknownKind(u8),
    /// The frame is above the connection's limit.
    #[error("frame has {bytes} bytes, at most {limit} are accepted: send smaller batches")]
    TooLarge {
        /// Bytes of the frame, its length field included.
        bytes: u64,
        /// Bytes accepted.
        limit: usize,
    },
    /// The lengths contradict each other.
    #[error("frame of {length} bytes cannot hold its prefix and a header of {header} bytes")]
    BadLength {
        /// As the length field says.
        length: u32,
        /// As the header length says.
        header: u16,
    },
    /// The header to send does not fit.
    #[error("frame header has {0} bytes, at most {MAX_HEADER_BYTES} fit")]
    HeaderTooLarge(usize),
    /// The header is not the message its kind asks for.
    #[error("frame header does not decode: {0}")]
    BadMessage(String),
}

impl FrameError {
    /// The code under which the error travels.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnsupportedProtocol(_) | Self::UnsupportedFrame(_) => {
                ErrorCode::UnsupportedVersion
            }
            Self::TooLarge { .. } => ErrorCode::FrameTooLarge,
            Self::NotKera
            | Self::UnknownKind(_)
            | Self::BadLength { .. }
            | Self::HeaderTooLarge(_)
            | Self::BadMessage(_) => ErrorCode::MalformedFrame,
        }
    }
}

impl From<FrameError> for WireError {
    fn from(error: FrameError) -> Self {
        WireError::new(error.code(), error.to_string())
    }
}

/// The first bytes a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol version the client speaks.
    pub version: u16,
    /// None are defined; ignored.
    pub flags: u16,
}

impl Hello {
    /// The hello of this build.
    pub const CURRENT: Hello = Hello {
        version: PROTOCOL_VERSION,
        flags: 0,
    };

    /// The bytes to send.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&self.version.to_le_bytes());
        out[6..].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// Reads a hello. The version is not judged: a broker answers its own and closes.
    ///
    /// # Errors
    /// [`FrameError::NotKera`] for other first bytes.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, FrameError> {
        let [a, b, c, d, version @ .., f0, f1] = *bytes;
        if [a, b, c, d] != MAGIC {
            return Err(FrameError::NotKera);
        }
        Ok(Self {
            version: u16::from_le_bytes(version),
            flags: u16::from_le_bytes([f0, f1]),
        })
    }
}

/// The broker's answer to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The protocol version the broker speaks.
    pub version: u16,
    /// What the broker can do: [`TAKES_CALLS`]. Others are ignored.
    pub flags: u16,
    /// Most bytes of a frame, in either direction, its length field included.
    pub max_frame_bytes: u32,
}

impl HelloReply {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; HELLO_REPLY_BYTES] {
        let mut out = [0; HELLO_REPLY_BYTES];
        let hello = Hello {
            version: self.version,
            flags: self.flags,
        };
        out[..HELLO_BYTES].copy_from_slice(&hello.encode());
        out[HELLO_BYTES..].copy_from_slice(&self.max_frame_bytes.to_le_bytes());
        out
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`FrameError::NotKera`] for other first bytes, [`FrameError::UnsupportedProtocol`] for
    /// another version.
    pub fn decode(bytes: &[u8; HELLO_REPLY_BYTES]) -> Result<Self, FrameError> {
        let [hello @ .., a, b, c, d] = *bytes;
        let hello = Hello::decode(&hello)?;
        if hello.version != PROTOCOL_VERSION {
            return Err(FrameError::UnsupportedProtocol(hello.version));
        }
        Ok(Self {
            version: hello.version,
            flags: hello.flags,
            max_frame_bytes: u32::from_le_bytes([a, b, c, d]),
        })
    }
}

/// The fixed part of a frame, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// Matches a reply to its request.
    pub correlation: u32,
    /// Bytes of the header message, which follows the prefix.
    pub header_bytes: usize,
    /// Bytes of the body, which follows the header message.
    pub body_bytes: usize,
}

impl FrameHeader {
    /// Decodes a frame's prefix. `max_frame_bytes` bounds what a receiver allocates for it.
    ///
    /// # Errors
    /// [`FrameError`] if no frame may follow this prefix.
    pub fn decode(prefix: &[u8; PREFIX_BYTES], max_frame_bytes: usize) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, kind, version, h0, h1, c0, c1, c2, c3] = *prefix;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        check_length(length, max_frame_bytes)?;
        if version != FRAME_VERSION {
            return Err(FrameError::UnsupportedFrame(version));
        }
        let kind = FrameKind::from_number(kind).ok_or(FrameError::UnknownKind(kind))?;
        let header = u16::from_le_bytes([h0, h1]);
        let header_bytes = usize::from(header);
        let body_bytes = (length as usize)
            .checked_sub(PREFIX_BYTES - LENGTH_BYTES + header_bytes)
            .ok_or(FrameError::BadLength { length, header })?;
        Ok(Self {
            kind,
            correlation: u32::from_le_bytes([c0, c1, c2, c3]),
            header_bytes,
            body_bytes,
        })
    }

    /// Bytes of the whole frame, prefix and length field included.
    pub fn total_bytes(&self) -> usize {
        PREFIX_BYTES + self.header_bytes + self.body_bytes
    }
}

/// What the bytes received so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// At least this many bytes in all are needed to say more.
    NeedMore(usize),
    /// The prefix of a frame; its bytes may not all be there yet.
    Frame(FrameHeader),
}

/// Decodes the prefix at the start of `bytes`. A length above `max_frame_bytes` is refused as soon
/// as the length field is there.
///
/// # Errors
/// [`FrameError`] if no frame may start with these bytes.
pub fn decode(bytes: &[u8], max_frame_bytes: usize) -> Result<Decoded, FrameError> {
    if let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() {
        return FrameHeader::decode(prefix, max_frame_bytes).map(Decoded::Frame);
    }
    if let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() {
        check_length(u32::from_le_bytes(*length), max_frame_bytes)?;
    }
    Ok(Decoded::NeedMore(PREFIX_BYTES))
}

fn check_length(length: u32, max_frame_bytes: usize) -> Result<(), FrameError> {
    let bytes = u64::from(length) + LENGTH_BYTES as u64;
    if bytes > max_frame_bytes as u64 {
        return Err(FrameError::TooLarge {
            bytes,
            limit: max_frame_bytes,
        });
    }
    if (length as usize) < PREFIX_BYTES - LENGTH_BYTES {
        return Err(FrameError::BadLength { length, header: 0 });
    }
    Ok(())
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the frame is.
    pub kind: FrameKind,
    /// Matches a reply to its request.
    pub correlation: u32,
    /// The encoded header message.
    pub header: Bytes,
    /// Raw batches.
    pub body: Bytes,
}

impl Frame {
    /// Takes the frame off the front of `buffer` without copying; `None` if it is not whole yet.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are no frame; the connection cannot go on.
    pub fn split_from(
        buffer: &mut BytesMut,
        max_frame_bytes: usize,
    ) -> Result<Option<Self>, FrameError> {
        let Decoded::Frame(header) = decode(buffer, max_frame_bytes)? else {
            return Ok(None);
        };
        if buffer.len() < header.total_bytes() {
            return Ok(None);
        }
        let whole = buffer.split_to(header.total_bytes()).freeze();
        Ok(Some(Self::from_parts(&header, &whole)))
    }

    /// The frame whose bytes, prefix included, are `whole`; no copy.
    ///
    /// # Panics
    /// If `whole` has fewer bytes than `header` says.
    pub fn from_parts(header: &FrameHeader, whole: &Bytes) -> Self {
        let body_at = PREFIX_BYTES + header.header_bytes;
        Self {
            kind: header.kind,
            correlation: header.correlation,
            header: whole.slice(PREFIX_BYTES..body_at),
            body: whole.slice(body_at..header.total_bytes()),
        }
    }

    /// Decodes the header message.
    ///
    /// # Errors
    /// [`FrameError::BadMessage`] if it is not an `M`.
    pub fn message<M: Message + Default>(&self) -> Result<M, FrameError> {
        M::decode(self.header.clone()).map_err(|error| FrameError::BadMessage(error.to_string()))
    }
}

/// Appends prefix and header of a frame to `out`. The body, of exactly `body_bytes` bytes, is sent
/// right after them, so that it is never copied.
///
/// # Errors
/// [`FrameError::HeaderTooLarge`] or [`FrameError::TooLarge`]; `out` is then unchanged.
pub fn encode_head<M: Message>(
    out: &mut BytesMut,
    kind: FrameKind,
    correlation: u32,
    header: &M,
    body_bytes: usize,
) -> Result<(), FrameError> {
    let header_bytes = header.encoded_len();
    let header_length =
        u16::try_from(header_bytes).map_err(|_| FrameError::HeaderTooLarge(header_bytes))?;
    let length = PREFIX_BYTES - LENGTH_BYTES + header_bytes + body_bytes;
    let length = u32::try_from(length).map_err(|_| FrameError::TooLarge {
        bytes: length as u64,
        limit: u32::MAX as usize,
    })?;
    out.reserve(PREFIX_BYTES + header_bytes);
    out.put_u32_le(length);
    out.put_u8(kind as u8);
    out.put_u8(FRAME_VERSION);
    out.put_u16_le(header_length);
    out.put_u32_le(correlation);
    header.encode_raw(out);
    Ok(())
}

/// Appends a frame without header and body, such as a ping, to `out`.
pub fn encode_empty(out: &mut BytesMut, kind: FrameKind, correlation: u32) {
    out.reserve(PREFIX_BYTES);
    out.put_u32_le((PREFIX_BYTES - LENGTH_BYTES) as u32);
    out.put_u8(kind as u8);
    out.put_u8(FRAME_VERSION);
    out.put_u16_le(0);
    out.put_u32_le(correlation);
}

/// Appends the frame that says why the connection is about to be closed to `out`. The message is
/// cut to 1,024 bytes.
pub fn encode_go_away(out: &mut BytesMut, error: &WireError) {
    let mut message = error.message.clone();
    message.truncate(message.floor_char_boundary(1024));
    let header = v1::GoAway {
        error: error.code as u32,
        message,
    };
    // A header of this size always fits.
    let _ = encode_head(out, FrameKind::GoAway, PUSH_CORRELATION, &header, 0);
}
