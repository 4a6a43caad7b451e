//! The messages by which a client proves who it is, ahead of the [hello](crate::frame::Hello) or of HTTP/2: those of SASL,
//! with lengths. See `docs/protocol.md`.

/// What a client's first message begins with.
pub const MAGIC: [u8; 4] = *b"KSAS";
/// The version of these messages.
pub const VERSION: u16 = 1;
/// Bytes before the length of a client's first message: magic, version, mechanism.
pub const HEAD_BYTES: usize = 8;
/// Bytes before the length of a broker's message: status, and two reserved ones.
pub const REPLY_HEAD_BYTES: usize = 4;
/// The mechanism OAUTHBEARER, among those of a first message.
pub const OAUTHBEARER: u16 = 3;
/// Most bytes of a message of SASL.
pub const MAX_MESSAGE: usize = 4096;
/// The same with a token in it.
pub const MAX_TOKEN_MESSAGE: usize = 32 << 10;

/// In the message of a refusal: the same proof may be taken later. Brokers say so in these words, and clients know it by
/// them.
pub const BUSY: &str = "the broker checks too many passwords";

/// The same, of a broker that looks at no proof because of the connections that there are.
pub const FULL: &str = "the broker takes no more connections now";

/// True if the same proof may be taken later, by the message of a refusal.
pub fn passes(refusal: &str) -> bool {
    [BUSY, FULL].iter().any(|words| refusal.contains(words))
}

/// What a broker's message says of the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The client is who it says; what follows is the connection.
    Proved,
    /// Another message of the client is due.
    GoesOn,
    /// It is not, and the connection ends; the message says why.
    Refused,
}

impl Status {
    const ALL: [Self; 3] = [Self::Proved, Self::GoesOn, Self::Refused];

    fn number(self) -> u16 {
        match self {
            Self::Proved => 0,
            Self::GoesOn => 1,
            Self::Refused => 2,
        }
    }
}

/// A client's first message, for the mechanism of a number.
pub fn first(mechanism: u16, message: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend(mechanism.to_le_bytes());
    push(&mut out, message);
    out
}

/// A later message of the client.
pub fn next(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out, message);
    out
}

/// A broker's message.
pub fn reply(status: Status, message: &[u8]) -> Vec<u8> {
    let mut out = status.number().to_le_bytes().to_vec();
    out.extend([0; 2]);
    push(&mut out, message);
    out
}

fn push(out: &mut Vec<u8>, message: &[u8]) {
    out.extend((message.len() as u32).to_le_bytes());
    out.extend(message);
}

/// Version and mechanism of a client's first message; `None` if it is none.
pub fn read_head(head: &[u8; HEAD_BYTES]) -> Option<(u16, u16)> {
    let [m0, m1, m2, m3, v0, v1, n0, n1] = *head;
    let (version, mechanism) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([n0, n1]));
    ([m0, m1, m2, m3] == MAGIC).then_some((version, mechanism))
}

/// The status of a broker's message; `None` if it is none.
pub fn read_reply_head(head: &[u8; REPLY_HEAD_BYTES]) -> Option<Status> {
    let [s0, s1, 0, 0] = *head else {
        return None;
    };
    let number = u16::from_le_bytes([s0, s1]);
    Status::ALL.into_iter().find(|one| one.number() == number)
}

/// Most bytes of the first message for a mechanism.
pub fn max_first(mechanism: u16) -> usize {
    match mechanism {
        OAUTHBEARER => MAX_TOKEN_MESSAGE,
        _ => MAX_MESSAGE,
    }
}

/// The length of the message that follows; `None` if it is longer than `most`.
pub fn read_length(bytes: [u8; 4], most: usize) -> Option<usize> {
    let length = u32::from_le_bytes(bytes) as usize;
    (length <= most).then_some(length)
}
