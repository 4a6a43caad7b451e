//! What a run does to its machines.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use super::connections::{Kind, Nanos};
use super::schedule;
use super::threads::State;
use super::unflushed::Unflushed;
use super::world::{BEGIN, DiskMood, DiskTrouble, NetworkMood, World, activate, me, set_me, world};
use super::{calls, ending, network};
use crate::dice::Dice;

/// What two runs of a seed have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Every line of the log, and every decision if those were logged too, folded into a number.
    pub value: u64,
    /// Turns of threads.
    pub turns: u64,
}

/// From here on the calling thread, and what it starts, is simulated, on node 0. `trace` logs every turn. If the run
/// cannot go on its log is in `log`.
pub fn begin(seed: u64, trace: bool, log: PathBuf) {
    calls::prepare();
    // SAFETY: plain values; the handler ends the process.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        let handler: extern "C" fn(i32) = aborted;
        libc::signal(libc::SIGABRT, handler as libc::sighandler_t);
    }
    ending::log_to(log);
    let mut world = Box::new(World::new(seed, trace));
    world.node(0);
    let number = world.threads.add(0, 0);
    world.threads.run(number);
    set_me(number);
    activate(Some(world));
}

extern "C" fn aborted(_signal: i32) {
    if me() != 0 {
        ending::end_with("ABORTED: the program ended itself\n", 4);
    }
}

/// The simulation is over; the caller goes on as the system has it, everybody else stands still.
pub fn at_exit() -> (Digest, Vec<String>) {
    let world = world();
    let digest = Digest {
        value: world.digest,
        turns: world.steps,
    };
    let lines = std::mem::take(&mut world.lines);
    activate(None);
    (digest, lines)
}

/// Time since the machines began to run.
pub fn now() -> Duration {
    Duration::from_nanos(world().now - BEGIN)
}

/// The machine of the calling thread; `None` if it is not simulated.
pub fn node_here() -> Option<u32> {
    (me() != 0).then(|| world().here())
}

/// Adds a line to the log of the run, which two runs of a seed have in common.
pub fn log(line: &str) {
    if me() == 0 {
        return;
    }
    let world = world();
    let line = format!("{:>12.6} {line}", (world.now - BEGIN) as f64 / 1e9);
    world.fold(line.as_bytes());
    world.line(line);
}

/// How the network is from now on.
pub fn set_network(mood: NetworkMood) {
    world().mood = mood;
}

/// How disks are from now on.
pub fn set_disk(mood: DiskMood) {
    world().disk = mood;
}

/// What the disk of a machine does wrong from now on.
pub fn set_trouble(node: u32, trouble: DiskTrouble) {
    world().node(node).trouble = trouble;
}

/// From now on it is kept what machines have not flushed, with removed files in `saved`.
pub fn remember_unflushed(saved: PathBuf) {
    world().unflushed = Some(Unflushed::new(saved));
}

/// What a machine, whose process does not run, has not flushed below `dir` is lost or not, as `dice` say; what that
/// changed, in words. Nothing where that is not kept.
pub fn lose_power(node: u32, dir: &Path, dice: &mut Dice) -> Vec<String> {
    let unflushed = world().unflushed.as_mut();
    unflushed.map_or_else(Vec::new, |unflushed| unflushed.lose(node, dir, dice))
}

/// The machine has another disk.
pub fn forget_disk(node: u32) {
    if let Some(unflushed) = &mut world().unflushed {
        unflushed.forget(node);
    }
}

/// Threads that kept a processor busy for nothing.
pub fn spinning() -> Vec<String> {
    world().spinning.clone()
}

/// Runs `body` on a thread of the process that runs on `node` now.
///
/// # Panics
/// If the system has no thread to give.
pub fn on_node<T: Send + 'static>(
    node: u32,
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let number = me();
    let life = world().node(node).life;
    let place = |node: u32, life: u32| {
        let thread = world()
            .threads
            .get_mut(number)
            .expect("the running thread is known");
        (
            std::mem::replace(&mut thread.node, node),
            std::mem::replace(&mut thread.life, life),
        )
    };
    let (mine, my_life) = place(node, life);
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body);
    place(mine, my_life);
    spawned.expect("the system has a thread")
}

/// Does `work` without giving the turn away where others are woken: what it holds is never held by who is killed.
pub fn calmly<T>(work: impl FnOnce() -> T) -> T {
    world().calm += 1;
    let done = work();
    world().calm -= 1;
    done
}

/// Waits until no thread of `node` stands where it would go on at once: it may hold what others need.
fn come_to_rest(node: u32) {
    while world()
        .threads
        .iter()
        .any(|(_, thread)| thread.node == node && thread.preempted)
    {
        schedule::wait(State::Sleeping, Some(world().now + 1_000));
    }
}

/// Ends the process on `node` where it stands. Its sockets are closed, and its files below `dir`.
pub fn kill(node: u32, dir: &Path) {
    come_to_rest(node);
    let world = world();
    world.node(node).life += 1;
    world.node(node).paused = false;
    world.threads.remove_of(node);
    let null = fs::File::open("/dev/null").expect("every system has it");
    let null = std::os::fd::AsRawFd::as_raw_fd(&null);
    // Others wake its threads still, and must find something under the numbers of its descriptors.
    let fill = |fd: i32| {
        // SAFETY: both are open; the process that had it runs no more.
        unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
    };
    let world = super::world::world();
    let own = world
        .connections
        .descriptors
        .0
        .extract_if(.., |_, found| found.node == node);
    let own: Vec<_> = own.collect();
    for (fd, found) in own {
        match found.kind {
            Kind::Listening(address) => network::end_listening(world, address),
            Kind::Connected(number, end) => _ = world.touched.insert((number, end)),
            Kind::Fresh | Kind::Bound(_) | Kind::Timer(_) => {}
        }
        fill(fd);
    }
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    for fd in open_files(&dir) {
        fill(fd);
    }
    super::world::world().stirred = true;
}

/// Descriptors of this process for what lies below `dir`.
fn open_files(dir: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let of = fs::read_link(entry.path());
        if let (Some(number), Ok(of)) = (number, of)
            && of.starts_with(dir)
        {
            found.push(number);
        }
    }
    found.sort_unstable();
    found
}

/// Stops the process on `node` without ending it, or lets it go on.
pub fn pause(node: u32, paused: bool) {
    if paused {
        come_to_rest(node);
    }
    world().node(node).paused = paused;
}

/// Lets nothing pass from one machine to another any more.
pub fn cut(from: u32, to: u32) {
    world().cuts.insert((from, to));
}

/// Ends such a cut.
pub fn uncut(from: u32, to: u32) {
    world().cuts.remove(&(from, to));
}

/// Has messages from one machine to another take so much longer, until that is set to nothing.
pub fn slow_down(from: u32, to: u32, longer: Duration) {
    let slow = &mut world().slow;
    match longer.is_zero() {
        true => slow.remove(&(from, to)),
        false => slow.insert((from, to), longer.as_nanos() as Nanos),
    };
}

/// Ends all cuts, and what is slow.
pub fn heal() {
    world().cuts.clear();
    world().slow.clear();
}

/// Sets the wall clock of a machine, `nanos` ahead of time.
pub fn wall_skew(node: u32, nanos: i64) {
    world().node(node).skew = nanos;
}

/// Has the wall clock of a machine gain so many millionths, or lose them.
pub fn wall_drift(node: u32, millionths: i64) {
    world().node(node).drift = millionths;
}

/// The file in which programs on `node` find which boot of their machine this is.
pub fn set_boot_id(node: u32, file: &Path) {
    let path = std::ffi::CString::new(file.as_os_str().as_bytes());
    world().node(node).boot_id = path.ok();
}

/// The address of a machine.
pub fn address_of(node: u32) -> std::net::Ipv4Addr {
    network::address_of(node)
}

/// Gives the calling process room for so many files.
pub fn make_room(files: u64) {
    let limit = libc::rlimit {
        rlim_cur: files,
        rlim_max: files,
    };
    // SAFETY: plain values. If it is refused, calls that need files say so.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Bytes that this process has taken from the allocator and not given back.
pub fn memory_taken() -> f64 {
    // SAFETY: it takes nothing, and gives plain numbers.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as f64
}

/// The processors on which this process may run.
pub fn processors() -> Vec<usize> {
    // SAFETY: zeros are a set, and there is room for it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        set
    };
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the numbers are below the set's size.
    all.filter(|number| unsafe { libc::CPU_ISSET(*number, &set) })
        .collect()
}

/// What `command` starts has its memory at the same addresses each time, and runs on one `processor`: of its threads
/// one runs at a time, and the next is not to be fetched from another processor.
pub fn settle(command: &mut std::process::Command, processor: Option<usize>) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec the system is asked for two things, with plain values. If they are refused,
    // addresses differ, which nothing should depend on, and the run is slower.
    unsafe {
        command.pre_exec(move || {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            if let Some(processor) = processor {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(processor, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
            }
            Ok(())
        });
    }
}

/// Waits for so long.
pub fn sleep(time: Duration) {
    let until = world().now.saturating_add(time.as_nanos() as u64);
    schedule::wait(State::Sleeping, Some(until));
}
