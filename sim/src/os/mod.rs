//! An operating system for one process, in which everything happens as a seed says.
//!
//! The program defines the functions of libc by which code learns of time, chance, other threads and the network:
//! `clock_gettime`, `getrandom`, `pthread_create`, `syscall` (for futexes), `epoll_wait`, `connect` and so on. So the
//! brokers and clients that are linked into it run here as they are, with their threads, runtimes and sockets.
//!
//! | module | what it is |
//! |---|---|
//! | `real` | libc's functions behind them |
//! | `connections` | what there is of connections and their descriptors |
//! | `world` | what the simulated machines are at any moment |
//! | `threads` | the threads of all of them, found by what they wait for |
//! | `schedule` | which thread runs next, and what time it is |
//! | `network`, `timers` | what happens to connections, and to timers that are files |
//! | `ending` | the end of a run that cannot go on |
//! | `contents`, `unflushed` | what a loss of power takes from disks: contents of files, and names |
//! | `calls`, `socket_calls`, `disks`, `names` | the functions that stand in for libc's |
//! | `control` | what a run does to its machines |
//!
//! **One thread runs at a time.** Each thread that is not running waits for its turn. The one that runs gives the
//! turn away where it would wait: for a futex, for readiness of a file, for time. The dice choose the next. Only when
//! nobody can run does time go on, to the next moment at which something happens. So nothing depends on the machine.
//!
//! **The running thread owns the world.** No lock guards it; nothing that it does to the world gives the turn away.

mod calls;
mod connections;
mod contents;
mod control;
mod disks;
mod ending;
mod names;
mod network;
mod real;
mod schedule;
mod socket_calls;
mod threads;
mod timers;
mod unflushed;
mod world;

pub use control::{
    address_of, at_exit, begin, calmly, cut, forget_disk, heal, kill, log, lose_power, make_room,
    memory_taken, node_here, now, on_node, pause, processors, remember_unflushed, set_boot_id,
    set_disk, set_network, set_trouble, settle, sleep, slow_down, spinning, uncut, wall_drift,
    wall_skew,
};
pub use ending::end;
pub use world::{DiskMood, DiskTrouble, NetworkMood};
