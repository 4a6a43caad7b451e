//! Connections between simulated machines: bytes on their way, late, cut off, or gone with their connection.
//!
//! Each end of a connection is one of a pair of Unix sockets, whose other one is held here. What a process writes is
//! taken from there, kept for as long as its way takes, and given to the other process's pair.

use std::ffi::c_void;
use std::net::{Ipv4Addr, SocketAddrV4};

use libc::pollfd;

use super::connections::{Connection, Direction, Message, Nanos, NetworkEvent, Phase, Relay, Way};
use super::real::{self, file};
use super::world::{Event, World};

/// Bytes under way on a connection, in one direction, at most; and in one message.
const UNDER_WAY: usize = 256 << 10;
const MESSAGE: usize = 16 << 10;
/// How often a message is tried again that could not be delivered.
const AGAIN: Nanos = 10_000_000;
/// How often a connection is tried again over a cut, and for how long.
const SYN_AGAIN: Nanos = 500_000_000;
/// How long a message waits for an acknowledgement before its sender gives up, unless it said so itself.
const GIVEN_UP: Nanos = 15_000_000_000;
/// How long after that the other end notices.
const NOTICED: Nanos = 20_000_000_000;

/// The address of a machine.
pub(super) fn address_of(node: u32) -> Ipv4Addr {
    let [.., high, low] = node.to_be_bytes();
    Ipv4Addr::new(10, 0, high, low)
}

fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: it is closed once, by whoever holds it.
        unsafe { real::close(fd) };
    }
}

/// A pair of connected sockets.
pub(super) fn pair(nonblocking: bool) -> Option<[i32; 2]> {
    let mut pair = [0; 2];
    let kind =
        libc::SOCK_STREAM | libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: there is room for two.
    let error = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
    (error == 0).then_some(pair)
}

fn set_nonblocking(fd: i32) {
    // SAFETY: the descriptor is held here.
    unsafe {
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        real::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
    }
}

/// Begins a connection whose process's end is `fd`; the number of it.
pub(super) fn connect(world: &mut World, fd: i32, to: SocketAddrV4) -> Option<u64> {
    let here = world.here();
    let to = match to.ip().is_loopback() {
        true => SocketAddrV4::new(address_of(here), to.port()),
        false => to,
    };
    let [.., high, low] = to.ip().octets();
    let there = u32::from(high) << 8 | u32::from(low);
    let [own, held] = pair(false)?;
    set_nonblocking(held);
    // SAFETY: both are open; what `fd` was is closed by this, and its flags are kept.
    let junk = unsafe {
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        libc::dup3(own, fd, libc::O_CLOEXEC);
        real::fcntl(fd, libc::F_SETFL, flags as usize);
        real::close(own);
        fill(fd)
    };
    let node = world.node(here);
    node.next_port = node.next_port.wrapping_add(1).max(40_000);
    let from = SocketAddrV4::new(address_of(here), node.next_port);
    world.connections.next += 1;
    let number = world.connections.next;
    let connection = Connection {
        nodes: [here, there],
        addresses: [from, to],
        held: [held, -1],
        phase: Phase::Connecting,
        junk,
        error: 0,
        directions: Default::default(),
        patience: [GIVEN_UP; 2],
        begun: world.now,
    };
    world.connections.by_number.insert(number, connection);
    let way = world.way();
    world.after(way, Event::Network(NetworkEvent::Connect(number)));
    Some(number)
}

/// Fills what a socket has room for; how much that was.
///
/// # Safety
/// `fd` is an open socket.
unsafe fn fill(fd: i32) -> usize {
    let junk = [0_u8; 4096];
    let mut filled = 0;
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: as the caller promises.
        let sent = unsafe { real::send(fd, junk.as_ptr().cast::<c_void>(), junk.len(), flags) };
        if sent <= 0 {
            return filled;
        }
        filled += sent as usize;
    }
}

impl World {
    fn way(&mut self) -> Nanos {
        let mood = self.mood;
        if self.dice.below(100_000) < mood.straggles {
            return self.micros(mood.most, mood.longest);
        }
        self.micros(mood.least, mood.most)
    }
}

pub(super) fn happen(world: &mut World, event: NetworkEvent) {
    match event {
        NetworkEvent::Connect(number) => heard(world, number),
        NetworkEvent::Arrive(number, way) => arrive(world, number, way),
        NetworkEvent::Gone(number, end) => gone(world, number, end),
    }
}

/// Somebody's wish to connect comes to the other machine.
fn heard(world: &mut World, number: u64) {
    let Some(connection) = world.connections.by_number.get(&number) else {
        return;
    };
    let ([from, to], address) = (connection.nodes, connection.addresses[1]);
    let cut = |world: &World| world.cuts.contains(&(from, to)) || world.cuts.contains(&(to, from));
    if cut(world) {
        if world.now - connection.begun > 10 * GIVEN_UP {
            return refuse(world, number, libc::ETIMEDOUT);
        }
        return world.after(SYN_AGAIN, Event::Network(NetworkEvent::Connect(number)));
    }
    let Some(listener) = world.connections.listeners.get_mut(&address) else {
        return refuse(world, number, libc::ECONNREFUSED);
    };
    let Some([own, held]) = pair(false) else {
        return refuse(world, number, libc::ECONNREFUSED);
    };
    set_nonblocking(held);
    listener.waiting.push_back((number, own));
    let listening = listener.fd;
    // SAFETY: the listener's descriptor counts who waits; eight bytes are written to it.
    unsafe { real::write(listening, 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
    if let Some(connection) = world.connections.by_number.get_mut(&number) {
        connection.held[1] = held;
        connection.phase = Phase::Open;
        drain(connection.held[0], std::mem::take(&mut connection.junk));
    }
    world.stirred = true;
    world.note(format_args!("c{number} from {from} to {to} is open"));
}

/// Takes what was filled in.
fn drain(fd: i32, mut junk: usize) {
    let mut buffer = [0_u8; 4096];
    while junk > 0 {
        let most = junk.min(buffer.len());
        // SAFETY: there is so much room.
        let read = unsafe { real::recv(fd, buffer.as_mut_ptr().cast(), most, libc::MSG_DONTWAIT) };
        if read <= 0 {
            return;
        }
        junk -= read as usize;
    }
}

fn refuse(world: &mut World, number: u64, error: i32) {
    if let Some(connection) = world.connections.by_number.get_mut(&number) {
        connection.error = error;
        close(std::mem::replace(&mut connection.held[0], -1));
        world.stirred = true;
        world.note(format_args!("c{number} is refused: {error}"));
    }
}

/// What is to be looked at among the sockets held here that were touched.
pub(super) fn wanted(world: &mut World, polled: &mut Vec<pollfd>) -> Vec<Relay> {
    let mut relays = Vec::new();
    let connections = &world.connections.by_number;
    world.touched.retain(|(number, end)| {
        let Some(connection) = connections.get(number) else {
            return false;
        };
        let fd = connection.held[*end];
        let sends = &connection.directions[*end];
        if fd < 0 || sends.ended {
            return false;
        }
        // Before it is open there is only what was filled in.
        let events = if connection.phase == Phase::Open {
            libc::POLLIN
        } else {
            0
        };
        if sends.bytes < UNDER_WAY {
            polled.push(file(fd, events));
            relays.push((*number, *end));
        }
        true
    });
    relays
}

/// A process has written, or closed its end.
pub(super) fn moved(world: &mut World, (number, end): Relay, _events: i16) {
    let Some(connection) = world.connections.by_number.get_mut(&number) else {
        return;
    };
    let fd = connection.held[end];
    if connection.phase == Phase::Connecting {
        // Whoever connected has given up.
        close(fd);
        world.connections.by_number.remove(&number);
        return;
    }
    let mut buffer = vec![0_u8; MESSAGE];
    // SAFETY: there is so much room.
    let read = unsafe { real::recv(fd, buffer.as_mut_ptr().cast(), MESSAGE, libc::MSG_DONTWAIT) };
    let message = match read {
        1.. => {
            buffer.truncate(read as usize);
            Message::Bytes(buffer)
        }
        0 => Message::End,
        _ if real::errno() == libc::EAGAIN => return,
        // The process closed it with something unread.
        _ => Message::End,
    };
    let breaks = world.mood.breaks;
    if world.dice.below(100_000) < breaks {
        world.note(format_args!("c{number} breaks"));
        return reset(world, number);
    }
    let mut way = world.way();
    let now = world.now;
    let Some(connection) = world.connections.by_number.get_mut(&number) else {
        return;
    };
    let link = (connection.nodes[end], connection.nodes[1 - end]);
    way += world.slow.get(&link).copied().unwrap_or(0);
    let direction = &mut connection.directions[end];
    match &message {
        Message::Bytes(bytes) => direction.bytes += bytes.len(),
        Message::End => direction.ended = true,
    }
    direction.last = direction.last.max(now + way);
    direction.under_way.push_back((direction.last, message));
    if !std::mem::replace(&mut direction.due, true) {
        let delay = direction.last - now;
        world.after(delay, Event::Network(NetworkEvent::Arrive(number, end)));
    }
    // There may be more.
    world.stirred = true;
}

/// How far what was due has come.
#[derive(PartialEq, Eq)]
enum Delivered {
    All,
    /// Who receives has no room.
    Stands,
    /// Who receives has closed its end.
    Refused,
}

/// Gives what is due at `now` to the process at the other end.
fn deliver(direction: &mut Direction, target: i32, now: Nanos) -> Delivered {
    while let Some((at, message)) = direction.under_way.front_mut()
        && *at <= now
    {
        match message {
            Message::End => {
                // SAFETY: the socket is held here, or none.
                unsafe { real::shutdown(target, libc::SHUT_WR) };
                direction.delivered_end = true;
            }
            Message::Bytes(bytes) => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the bytes are there.
                let sent = unsafe { real::send(target, bytes.as_ptr().cast(), bytes.len(), flags) };
                if sent < 0 && real::errno() != libc::EAGAIN {
                    return Delivered::Refused;
                }
                let sent = sent.max(0) as usize;
                direction.bytes -= sent;
                if sent < bytes.len() {
                    bytes.drain(..sent);
                    return Delivered::Stands;
                }
            }
        }
        direction.under_way.pop_front();
    }
    Delivered::All
}

fn arrive(world: &mut World, number: u64, way: Way) {
    let now = world.now;
    let Some(connection) = world.connections.by_number.get_mut(&number) else {
        return;
    };
    let (from, to) = (connection.nodes[way], connection.nodes[1 - way]);
    let target = connection.held[1 - way];
    let patience = connection.patience[way];
    let direction = &mut connection.directions[way];
    direction.due = false;
    let (cut, unanswered) = (
        world.cuts.contains(&(from, to)),
        world.cuts.contains(&(to, from)),
    );
    world.stirred = true;
    let delivered = if cut {
        Delivered::Stands
    } else {
        deliver(direction, target, now)
    };
    if delivered == Delivered::Refused {
        return reset(world, number);
    }
    // Whoever receives and is slow acknowledges that it is there.
    if cut || unanswered {
        let since = *direction.since.get_or_insert(now);
        if now - since > patience {
            world.note(format_args!("c{number} is given up by {from}"));
            world.after(NOTICED, Event::Network(NetworkEvent::Gone(number, 1 - way)));
            return gone(world, number, way);
        }
    } else {
        direction.since = None;
    }
    let again = delivered == Delivered::Stands || direction.since.is_some();
    let next = match again {
        true => Some(now + AGAIN),
        false => direction.under_way.front().map(|(at, _)| *at),
    };
    if connection.directions.iter().all(|one| one.delivered_end) {
        return reset(world, number);
    }
    if let Some(next) = next {
        connection.directions[way].due = true;
        let delay = next.saturating_sub(now);
        world.after(delay, Event::Network(NetworkEvent::Arrive(number, way)));
    }
}

/// One end learns that there is no connection any more.
fn gone(world: &mut World, number: u64, end: usize) {
    if let Some(connection) = world.connections.by_number.get_mut(&number) {
        close(std::mem::replace(&mut connection.held[end], -1));
        world.stirred = true;
        if connection.held == [-1, -1] {
            world.connections.by_number.remove(&number);
        }
    }
}

/// Both ends learn that there is no connection any more.
pub(super) fn reset(world: &mut World, number: u64) {
    for end in [0, 1] {
        gone(world, number, end);
    }
}

/// Nobody accepts there any more.
pub(super) fn end_listening(world: &mut World, address: SocketAddrV4) {
    let Some(listener) = world.connections.listeners.remove(&address) else {
        return;
    };
    for (number, own) in listener.waiting {
        // SAFETY: nobody else has it.
        unsafe { real::close(own) };
        reset(world, number);
    }
}
