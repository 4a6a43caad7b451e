//! Functions of libc for sockets, and for waiting until files are ready. Each is the real one for whoever is not
//! simulated, and for files that are not sockets of the simulated network.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddrV4};

use libc::{pollfd, sockaddr, sockaddr_in, socklen_t, ssize_t, timespec};

use super::connections::{Descriptor, Kind, Listener, Nanos};
use super::real::{self, fail};
use super::threads::State;
use super::unflushed::bytes_of;
use super::world::{Event, World, me, world};
use super::{disks, network, schedule, timers};

fn simulated() -> bool {
    me() != 0
}

fn put(world: &mut World, fd: i32, kind: Kind) {
    let node = world.here();
    world
        .connections
        .descriptors
        .0
        .insert(fd, Descriptor { node, kind });
}

/// # Safety
/// `address` points to an address of `len` bytes.
unsafe fn read_address(address: *const sockaddr, len: socklen_t) -> Option<SocketAddrV4> {
    if (len as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: as the caller promises; it need not be aligned.
    let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
    let is_v4 = c_int::from(address.sin_family) == libc::AF_INET;
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    is_v4.then(|| SocketAddrV4::new(ip, u16::from_be(address.sin_port)))
}

/// # Safety
/// `place` is null or has room for what `len` says.
unsafe fn write_address(found: SocketAddrV4, place: *mut sockaddr, len: *mut socklen_t) {
    if place.is_null() || len.is_null() {
        return;
    }
    // SAFETY: zeros are an address.
    let mut address: sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_port = found.port().to_be();
    address.sin_addr.s_addr = u32::from(*found.ip()).to_be();
    // SAFETY: as the caller promises.
    unsafe {
        let room = (*len as usize).min(size_of::<sockaddr_in>());
        std::ptr::copy_nonoverlapping((&raw const address).cast::<u8>(), place.cast::<u8>(), room);
        *len = size_of::<sockaddr_in>() as socklen_t;
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let stream = kind & 0xf == libc::SOCK_STREAM;
    if !simulated() || domain == libc::AF_UNIX || !stream {
        // SAFETY: passed on.
        return unsafe { real::socket(domain, kind, protocol) };
    }
    if domain != libc::AF_INET {
        return fail(libc::EAFNOSUPPORT);
    }
    // SAFETY: plain values.
    let fd = unsafe { real::socket(libc::AF_UNIX, kind, 0) };
    if fd >= 0 {
        put(world(), fd, Kind::Fresh);
    }
    fd
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if !simulated() || world().kind(fd).is_none() {
        // SAFETY: passed on.
        return unsafe { real::bind(fd, address, len) };
    }
    // SAFETY: libc's callers give an address.
    let Some(wanted) = (unsafe { read_address(address, len) }) else {
        return fail(libc::EINVAL);
    };
    let world = world();
    let here = world.here();
    let mut port = wanted.port();
    if port == 0 {
        let node = world.node(here);
        node.next_port = node.next_port.wrapping_add(1).max(40_000);
        port = node.next_port;
    }
    let bound = SocketAddrV4::new(network::address_of(here), port);
    if world.connections.listeners.contains_key(&bound) {
        return fail(libc::EADDRINUSE);
    }
    put(world, fd, Kind::Bound(bound));
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(Kind::Bound(address)) = simulated().then(|| world().kind(fd)).flatten() else {
        // SAFETY: passed on.
        return unsafe { real::listen(fd, backlog) };
    };
    let world = world();
    // SAFETY: the count takes the descriptor's place.
    unsafe {
        let count = libc::eventfd(
            0,
            libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK | libc::EFD_CLOEXEC,
        );
        libc::dup3(count, fd, libc::O_CLOEXEC);
        real::close(count);
    }
    let listener = Listener {
        fd,
        waiting: Default::default(),
    };
    world.connections.listeners.insert(address, listener);
    put(world, fd, Kind::Listening(address));
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    place: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(Kind::Listening(address)) = simulated().then(|| world().kind(fd)).flatten() else {
        // SAFETY: passed on.
        return unsafe { real::accept4(fd, place, len, flags) };
    };
    let world = world();
    loop {
        let waiting = world.connections.listeners.get_mut(&address);
        let Some((number, own)) = waiting.and_then(|listener| listener.waiting.pop_front()) else {
            return fail(libc::EAGAIN);
        };
        let mut count = [0_u8; 8];
        // SAFETY: one of those that waited is counted off; there is room for the count.
        unsafe { real::read(fd, count.as_mut_ptr().cast(), 8) };
        let Some(connection) = world.connections.by_number.get(&number) else {
            // SAFETY: nobody else has it.
            unsafe { real::close(own) };
            continue;
        };
        let from = connection.addresses[0];
        // SAFETY: the descriptor is this process's now; the caller gives room for an address.
        unsafe {
            if flags & libc::SOCK_NONBLOCK != 0 {
                let now = real::fcntl(own, libc::F_GETFL, 0);
                real::fcntl(own, libc::F_SETFL, (now | libc::O_NONBLOCK) as usize);
            }
            write_address(from, place, len);
        }
        put(world, own, Kind::Connected(number, 1));
        return own;
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if !simulated() || world().kind(fd).is_none() {
        // SAFETY: passed on.
        return unsafe { real::connect(fd, address, len) };
    }
    // SAFETY: libc's callers give an address.
    let Some(to) = (unsafe { read_address(address, len) }) else {
        return fail(libc::EINVAL);
    };
    let world = world();
    let Some(number) = network::connect(world, fd, to) else {
        return fail(libc::EMFILE);
    };
    put(world, fd, Kind::Connected(number, 0));
    world.stirred = true;
    if !blocks(fd) {
        return fail(libc::EINPROGRESS);
    }
    schedule::wait(State::Files(vec![(fd, libc::POLLOUT)]), None);
    match take_error(super::world::world(), number) {
        0 => 0,
        error => fail(error),
    }
}

fn take_error(world: &mut World, number: u64) -> c_int {
    match world.connections.by_number.get_mut(&number) {
        Some(connection) => std::mem::take(&mut connection.error),
        None => 0,
    }
}

/// Whether calls for the descriptor wait.
fn blocks(fd: c_int) -> bool {
    // SAFETY: plain values.
    unsafe { real::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK == 0 }
}

macro_rules! names {
    ($($name:ident($peer:literal);)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, place: *mut sockaddr, len: *mut socklen_t) -> c_int {
            let found = simulated().then(|| world().kind(fd)).flatten();
            let address = match found {
                Some(Kind::Connected(number, end)) => {
                    let connection = world().connections.by_number.get(&number);
                    let end = if $peer { 1 - end } else { end };
                    match connection {
                        Some(connection) => connection.addresses[end],
                        None => return fail(libc::ENOTCONN),
                    }
                }
                Some(Kind::Bound(address) | Kind::Listening(address)) if !$peer => address,
                Some(_) => return fail(libc::ENOTCONN),
                // SAFETY: passed on.
                None => return unsafe { real::$name(fd, place, len) },
            };
            // SAFETY: libc's callers give room for it.
            unsafe { write_address(address, place, len) };
            0
        }
    )+ };
}

names! {
    getsockname(false);
    getpeername(true);
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let found = simulated().then(|| world().kind(fd)).flatten();
    let told = match (found, level, name) {
        (Some(Kind::Connected(number, 0)), libc::SOL_SOCKET, libc::SO_ERROR) => {
            take_error(world(), number)
        }
        (Some(_), libc::SOL_SOCKET, libc::SO_ERROR) | (Some(_), libc::IPPROTO_TCP, _) => 0,
        // SAFETY: passed on.
        _ => return unsafe { real::getsockopt(fd, level, name, value, len) },
    };
    // SAFETY: these are numbers, for which libc's callers give room.
    unsafe {
        value.cast::<c_int>().write_unaligned(told);
        *len = size_of::<c_int>() as socklen_t;
    }
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(found) = simulated().then(|| world().kind(fd)).flatten() else {
        // SAFETY: passed on.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    };
    let (Kind::Connected(number, end), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) =
        (found, level, name)
    else {
        let waits = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];
        if level == libc::SOL_SOCKET && waits.contains(&name) {
            // SAFETY: passed on.
            return unsafe { real::setsockopt(fd, level, name, value, len) };
        }
        return 0;
    };
    // SAFETY: it is a number.
    let millis = unsafe { value.cast::<u32>().read_unaligned() };
    if let Some(connection) = world().connections.by_number.get_mut(&number) {
        connection.patience[end] = u64::from(millis) * 1_000_000;
    }
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if simulated() {
        world().touch(fd);
    }
    // SAFETY: passed on; the pair behind a connection ends as one would.
    unsafe { real::shutdown(fd, how) }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if simulated() {
        let world = world();
        world.touch(fd);
        if let Some(found) = world.connections.descriptors.0.remove(&fd)
            && let Kind::Listening(address) = found.kind
        {
            network::end_listening(world, address);
        }
    }
    // SAFETY: passed on.
    unsafe { real::close(fd) }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real::fcntl(fd, command, arg) };
    let copies = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&command);
    if copies && result >= 0 && simulated() {
        let world = world();
        if let Some(found) = world.connections.descriptors.0.get(&fd).copied() {
            world.connections.descriptors.0.insert(result, found);
        }
    }
    result
}

/// Whether `fd` is an end of a simulated connection for which calls wait.
fn waits(fd: c_int) -> bool {
    simulated() && matches!(world().kind(fd), Some(Kind::Connected(..))) && blocks(fd)
}

/// When a call for the descriptor is to give up.
fn give_up(fd: c_int, option: c_int) -> Option<Nanos> {
    // SAFETY: zeros are a time.
    let mut time: libc::timeval = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::timeval>() as socklen_t;
    // SAFETY: there is room for it.
    unsafe {
        real::getsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw mut time).cast(),
            &raw mut len,
        )
    };
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    (nanos > 0).then(|| world().now + nanos)
}

/// Does `call` until it need not wait any more.
fn until_done(fd: c_int, flags: c_int, events: i16, call: impl Fn() -> ssize_t) -> ssize_t {
    let option = if events == libc::POLLIN {
        libc::SO_RCVTIMEO
    } else {
        libc::SO_SNDTIMEO
    };
    let deadline = give_up(fd, option);
    loop {
        let done = call();
        world().touch(fd);
        if done >= 0 || real::errno() != libc::EAGAIN || flags & libc::MSG_DONTWAIT != 0 {
            return done;
        }
        if !schedule::wait(State::Files(vec![(fd, events)]), deadline) {
            return fail(libc::EAGAIN) as ssize_t;
        }
    }
}

macro_rules! receives {
    ($($name:ident($($arg:ident: $ty:ty),*) by $flags:expr, $with:expr;)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: *mut c_void, len: usize $(, $arg: $ty)*) -> ssize_t {
            if !waits(fd) {
                // SAFETY: passed on.
                return unsafe { real::$name(fd, buffer, len $(, $arg)*) };
            }
            let flags: c_int = $flags;
            // SAFETY: libc's callers give so much room.
            until_done(fd, flags, libc::POLLIN, || unsafe {
                real::recv(fd, buffer, len, flags | libc::MSG_DONTWAIT)
            })
        }
    )+ };
}

receives! {
    read() by 0, 0;
    recv(flags: c_int) by flags, 0;
    recvfrom(flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) by flags, 0;
}

macro_rules! sends {
    ($($name:ident($($arg:ident: $ty:ty),*) by $flags:expr;)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buffer: *const c_void, len: usize $(, $arg: $ty)*) -> ssize_t {
            if !waits(fd) {
                if simulated() {
                    world().touch(fd);
                    if let Some(error) = disks::refused(fd) {
                        return fail(error) as ssize_t;
                    }
                    disks::about_to_append(fd, len as u64);
                }
                // SAFETY: passed on.
                return unsafe { real::$name(fd, buffer, len $(, $arg)*) };
            }
            let flags: c_int = $flags;
            // SAFETY: libc's callers give so many bytes.
            until_done(fd, flags, libc::POLLOUT, || unsafe {
                real::send(fd, buffer, len, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            })
        }
    )+ };
}

sends! {
    write() by 0;
    send(flags: c_int) by flags;
    sendto(flags: c_int, address: *const sockaddr, alen: socklen_t) by flags;
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t {
    if simulated() {
        world().touch(fd);
        // SAFETY: libc's callers give as many parts as they say.
        disks::about_to_append(fd, unsafe { bytes_of(parts, count) });
    }
    // SAFETY: passed on.
    unsafe { real::writev(fd, parts, count) }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    if simulated() {
        world().touch(fd);
    }
    // SAFETY: passed on.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// Looks by `look` until something is ready or `timeout` is over; negative is for ever.
fn until_ready(files: Vec<(i32, i16)>, timeout: Option<Nanos>, look: impl Fn() -> c_int) -> c_int {
    world().stirred = true;
    let deadline = timeout.map(|timeout| world().now.saturating_add(timeout));
    loop {
        let found = look();
        if found != 0 {
            return found;
        }
        if deadline.is_some_and(|deadline| deadline <= world().now) {
            // Whoever looks without waiting may do so until another has done something.
            schedule::preempt();
            return 0;
        }
        if !schedule::wait(State::Files(files.clone()), deadline) {
            return look();
        }
    }
}

fn millis(timeout: c_int) -> Option<Nanos> {
    u64::try_from(timeout).ok().map(|millis| millis * 1_000_000)
}

/// # Safety
/// `fds` points to `count` entries.
unsafe fn files_of(fds: *const pollfd, count: libc::nfds_t) -> Vec<(i32, i16)> {
    // SAFETY: as the caller promises.
    let fds = unsafe { std::slice::from_raw_parts(fds, count as usize) };
    fds.iter()
        .map(|polled| (polled.fd, polled.events))
        .collect()
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::poll(fds, count, timeout) };
    }
    // SAFETY: libc's callers give so many.
    let files = unsafe { files_of(fds, count) };
    // SAFETY: passed on.
    until_ready(files, millis(timeout), || unsafe {
        real::poll(fds, count, 0)
    })
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: libc's callers give so many, and a time or none.
    let (files, timeout) = unsafe { (files_of(fds, count), timeout.as_ref()) };
    let timeout = timeout.map(|time| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
    // SAFETY: passed on.
    until_ready(files, timeout, || unsafe { real::poll(fds, count, 0) })
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::epoll_wait(fd, events, count, timeout) };
    }
    let files = vec![(fd, libc::POLLIN)];
    // SAFETY: passed on.
    until_ready(files, millis(timeout), || unsafe {
        real::epoll_wait(fd, events, count, 0)
    })
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::timerfd_create(clock, flags) };
    }
    // SAFETY: plain values; the flags of both are the same.
    let fd = unsafe { libc::eventfd(0, flags) };
    if fd >= 0 {
        put(world(), fd, Kind::Timer(0));
    }
    fd
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timerfd_settime(
    fd: c_int,
    flags: c_int,
    new: *const libc::itimerspec,
    old: *mut libc::itimerspec,
) -> c_int {
    let Some(Kind::Timer(set)) = simulated().then(|| world().kind(fd)).flatten() else {
        // SAFETY: passed on.
        return unsafe { real::timerfd_settime(fd, flags, new, old) };
    };
    let world = world();
    let mut count = [0_u8; 8];
    // SAFETY: what it counted is forgotten; there is room for that, and the caller gives a time.
    let value = unsafe {
        timers::forget(fd, &mut count);
        (*new).it_value
    };
    put(world, fd, Kind::Timer(set + 1));
    let time = value.tv_sec as u64 * 1_000_000_000 + value.tv_nsec as u64;
    if time > 0 {
        let delay = if flags & libc::TFD_TIMER_ABSTIME != 0 {
            time.saturating_sub(world.now)
        } else {
            time
        };
        world.after(delay, Event::Timer { fd, set: set + 1 });
    }
    0
}
