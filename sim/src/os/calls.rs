//! Functions of libc that tell time, chance and threads. Each is the real one for whoever is not simulated.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use libc::{pthread_attr_t, pthread_t, ssize_t, timespec};

use super::connections::Nanos;
use super::disks;
use super::names::{self, unflushed};
use super::real::{self, Begin, fail};
use super::schedule::{self, look};
use super::threads::State;
use super::world::{me, set_me, world};

/// What the wall clock said when the simulated machines began to run.
const WALL: Nanos = 1_800_000_000_000_000_000;
const SECOND: Nanos = 1_000_000_000;
/// Processors of a simulated machine.
const PROCESSORS: usize = 2;

fn simulated() -> bool {
    me() != 0
}

/// # Safety
/// `time` is null or points to a time.
unsafe fn nanos(time: *const timespec) -> Option<Nanos> {
    // SAFETY: as the caller promises.
    let time = unsafe { time.as_ref() }?;
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Some(
        seconds
            .saturating_mul(SECOND)
            .saturating_add(time.tv_nsec as u64),
    )
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::clock_gettime(clock, time) };
    }
    let world = world();
    let now = look(world);
    let told = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
            let here = world.here();
            let node = world.node(here);
            let gained = (now / 1_000_000) as i64 * node.drift;
            (WALL + now).saturating_add_signed(node.skew + gained)
        }
        _ => now,
    };
    // SAFETY: libc's callers give a place for it.
    unsafe {
        (*time).tv_sec = (told / SECOND) as i64;
        (*time).tv_nsec = (told % SECOND) as i64;
    }
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> ssize_t {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::getrandom(buffer, len, flags) };
    }
    // SAFETY: libc's callers give so much room.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    let random = &mut world().random;
    for part in buffer.chunks_mut(8) {
        part.copy_from_slice(&random.bits().to_le_bytes()[..part.len()]);
    }
    len as ssize_t
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpid() -> c_int {
    if !simulated() {
        // SAFETY: it takes nothing.
        return unsafe { real::getpid() };
    }
    1000 + world().here() as c_int
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_getaffinity(process: c_int, len: usize, set: *mut c_void) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::sched_getaffinity(process, len, set) };
    }
    // SAFETY: libc's callers give so much room.
    let set = unsafe { std::slice::from_raw_parts_mut(set.cast::<u8>(), len) };
    set.fill(0);
    set[0] = (1 << PROCESSORS) - 1;
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_yield() -> c_int {
    if !simulated() {
        // SAFETY: it takes nothing.
        return unsafe { real::sched_yield() };
    }
    schedule::give_way();
    0
}

pub(super) fn sleep_until(deadline: Nanos) {
    schedule::wait(State::Sleeping, Some(deadline));
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::nanosleep(time, left) };
    }
    // SAFETY: libc's callers give a time.
    let time = unsafe { nanos(time) }.unwrap_or(0);
    sleep_until(world().now.saturating_add(time));
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::clock_nanosleep(clock, flags, time, left) };
    }
    // SAFETY: libc's callers give a time.
    let time = unsafe { nanos(time) }.unwrap_or(0);
    let absolute = flags & libc::TIMER_ABSTIME != 0;
    sleep_until(if absolute {
        time
    } else {
        world().now.saturating_add(time)
    });
    0
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if simulated() {
        match number {
            // SAFETY: the arguments are those of a futex.
            libc::SYS_futex => return unsafe { futex(a, b as c_int, c as u32, d, f as u32) },
            libc::SYS_getrandom => {
                // SAFETY: the arguments are those of the function.
                let got = unsafe { getrandom(a as *mut c_void, b, c as c_uint) };
                return got as c_long;
            }
            _ => {}
        }
    }
    // SAFETY: passed on.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

/// # Safety
/// `address` is that of a word, and `timeout` of a time or null.
unsafe fn futex(
    address: usize,
    operation: c_int,
    value: u32,
    timeout: usize,
    _bits: u32,
) -> c_long {
    let plain = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    match plain {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            // SAFETY: as the caller promises.
            let (found, timeout) =
                unsafe { (*(address as *const u32), nanos(timeout as *const timespec)) };
            if found != value {
                return fail(libc::EAGAIN).into();
            }
            let now = world().now;
            let deadline = timeout.map(|time| match plain {
                libc::FUTEX_WAIT => now.saturating_add(time),
                _ if operation & libc::FUTEX_CLOCK_REALTIME != 0 => time.saturating_sub(WALL),
                _ => time,
            });
            if schedule::wait(State::Futex(address), deadline) {
                return 0;
            }
            fail(libc::ETIMEDOUT).into()
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let woken = schedule::wake(address, value as usize);
            if woken > 0 {
                schedule::preempt();
            }
            woken as c_long
        }
        other => super::ending::end_with(&format!("a futex is asked for operation {other}\n"), 3),
    }
}

/// What a simulated thread begins with.
struct Start {
    number: u32,
    turn: &'static AtomicU32,
    begin: Begin,
    arg: *mut c_void,
}

/// Whose destructors run when threads end.
fn at_end() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the place is there, and the destructor has the type.
        unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) };
        key
    })
}

/// Makes the key before any thread needs it.
pub(super) fn prepare() {
    at_end();
}

/// Runs once all other destructors of the thread have, in a later round of them.
unsafe extern "C" fn ended(rounds: *mut c_void) {
    let rounds = rounds as usize;
    if rounds > 1 {
        // SAFETY: the key is there for good.
        unsafe { libc::pthread_setspecific(at_end(), (rounds - 1) as *const c_void) };
    } else if me() != 0 {
        schedule::leave();
        set_me(0);
    }
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: it was made for this thread alone.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let Start {
        number,
        turn,
        begin,
        arg,
    } = *start;
    // SAFETY: the key is there for good.
    unsafe { libc::pthread_setspecific(at_end(), 3 as *const c_void) };
    schedule::wait_for(turn);
    set_me(number);
    begin(arg)
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attr: *const pthread_attr_t,
    begins: Begin,
    arg: *mut c_void,
) -> c_int {
    if !simulated() {
        // SAFETY: passed on.
        return unsafe { real::pthread_create(thread, attr, begins, arg) };
    }
    let world = world();
    let here = world.here();
    let life = world.threads.get(me()).map_or(0, |thread| thread.life);
    let number = world.threads.add(here, life);
    let turn = world.threads.get(number).expect("it was just added").turn;
    world.note(format_args!("t{number} begins on node {here}"));
    let start = Box::into_raw(Box::new(Start {
        number,
        turn,
        begin: begins,
        arg,
    }));
    // SAFETY: `begin` takes what it is given.
    let error = unsafe { real::pthread_create(thread, attr, begin, start.cast()) };
    if error == 0 {
        // SAFETY: it was just written.
        world.by_handle.insert(unsafe { *thread }, number);
    } else {
        world.threads.remove(number);
    }
    error
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int {
    if simulated()
        && let Some(number) = world().by_handle.remove(&thread)
        && world().threads.get(number).is_some()
    {
        schedule::wait(State::Joining(number), None);
    }
    // SAFETY: passed on.
    unsafe { real::pthread_join(thread, value) }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const libc::c_char, flags: c_int, mode: usize) -> c_int {
    let mut path = path;
    // SAFETY: libc's callers give a text that ends.
    let wanted = unsafe { std::ffi::CStr::from_ptr(path) };
    if simulated() && wanted == c"/proc/sys/kernel/random/boot_id" {
        let world = world();
        let here = world.here();
        if let Some(own) = &world.node(here).boot_id {
            path = own.as_ptr();
        }
    }
    // SAFETY: libc's callers give a text that ends.
    let name = unsafe { names::path(path) };
    let makes = unflushed().is_some_and(|unflushed| unflushed.opens(name, flags));
    let is_here = simulated() && disks::is_on_disk(name);
    // The simulated disk knows which writes go around its page cache. The real one need not be waited for.
    let really = if is_here {
        flags & !libc::O_DIRECT
    } else {
        flags
    };
    // SAFETY: passed on.
    let fd = unsafe { real::open64(path, really, mode) };
    if simulated() && fd >= 0 {
        match flags == really {
            true => world().around.remove(&fd),
            false => world().around.insert(fd),
        };
    }
    if let Some(unflushed) = unflushed().filter(|_| makes && fd >= 0) {
        unflushed.made(name);
    }
    fd
}
