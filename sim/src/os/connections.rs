//! What there is of connections between simulated machines, and of the descriptors for them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddrV4;

/// Nanoseconds since the simulated machines began to run.
pub(super) type Nanos = u64;

/// One way through a connection: 0 is from who connected.
pub(super) type Way = usize;

pub(super) enum NetworkEvent {
    /// The other machine hears that somebody connects.
    Connect(u64),
    /// Something arrives.
    Arrive(u64, Way),
    /// An end learns that the connection is gone.
    Gone(u64, Way),
}

pub(super) enum Message {
    Bytes(Vec<u8>),
    /// Nothing more comes.
    End,
}

#[derive(Default)]
pub(super) struct Direction {
    pub(super) under_way: VecDeque<(Nanos, Message)>,
    pub(super) bytes: usize,
    pub(super) last: Nanos,
    /// The sender has sent all.
    pub(super) ended: bool,
    /// The receiver has learnt that.
    pub(super) delivered_end: bool,
    /// An arrival is due.
    pub(super) due: bool,
    /// Since when nothing gets through.
    pub(super) since: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Open,
}

pub(super) struct Connection {
    pub(super) nodes: [u32; 2],
    pub(super) addresses: [SocketAddrV4; 2],
    /// The sockets held here: that of who connected, and the other. -1: it is closed.
    pub(super) held: [i32; 2],
    pub(super) phase: Phase,
    /// Bytes that keep the socket from being writable until somebody answers.
    pub(super) junk: usize,
    /// Why it did not come about.
    pub(super) error: i32,
    pub(super) directions: [Direction; 2],
    /// How long each end waits for acknowledgements.
    pub(super) patience: [Nanos; 2],
    pub(super) begun: Nanos,
}

pub(super) struct Listener {
    pub(super) fd: i32,
    /// Connections that nobody has accepted yet, with the sockets for that.
    pub(super) waiting: VecDeque<(u64, i32)>,
}

#[derive(Default)]
pub(super) struct Connections {
    pub(super) by_number: BTreeMap<u64, Connection>,
    pub(super) listeners: BTreeMap<SocketAddrV4, Listener>,
    pub(super) descriptors: Descriptors,
    pub(super) next: u64,
}

/// A socket that is held here, of connection and end.
pub(super) type Relay = (u64, usize);

/// What a descriptor is, of those that are not what the system takes them for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Fresh,
    Bound(SocketAddrV4),
    Listening(SocketAddrV4),
    /// End of a connection.
    Connected(u64, usize),
    /// Set so many times.
    Timer(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) node: u32,
    pub(super) kind: Kind,
}

/// Those of all processes; the one thread that runs owns them, as it does the world.
#[derive(Default)]
pub(super) struct Descriptors(pub(super) BTreeMap<i32, Descriptor>);
