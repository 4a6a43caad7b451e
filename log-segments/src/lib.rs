//! The log: segments in group files, the memory they are built in, and what makes them durable.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | segment headers and durable marks, byte for byte |
//! | [`group`] | a group of segments: one writer appends, many read |
//! | [`group_life`] | what is to be done next with a group, from what is known of it |
//! | [`lane_chain`] | which groups of a lane count after a crash |
//! | [`window`] | the part of a group that is in memory |
//! | [`local_writer`] | makes appended bytes durable and moves the head |
//! | [`head`] | the durable head of a lane |
//! | [`mod@invariant`] | what ends the process if it does not hold |
//! | [`read`] | whole batches from memory or file |
//! | [`buffers`] | memory that file bytes are read into |
//! | [`scan`] | recovery of a group from its bytes |
//! | [`damage`] | what a file tells against itself once its writer is gone |
//! | [`check`] | a closed group's bytes looked at again |
//! | [`assemble`] | a closed group put together from replicas that are not whole |
//! | [`replicas`] | what a streamlet and who makes its replicas need of each other |
//! | [`rewrite`] | a run of closed groups written anew as one |
//! | [`ship`] | a group whose bytes have copies elsewhere |
//! | [`footer`] | the sparse index of a closed group |
//! | [`pool`] | chunks of warm memory |
//! | [`io`] | one I/O trait, three engines |
//!
//! `unsafe` stands only in `pool` and in the io_uring engine.
#![warn(unreachable_pub)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod assemble;
pub mod buffers;
pub mod check;
pub mod damage;
pub mod footer;
pub mod group;
pub mod group_life;
pub mod head;
pub mod invariant;
pub mod io;
pub mod lane_chain;
pub mod layout;
pub mod local_writer;
mod place;
pub mod pool;
pub mod read;
pub mod replicas;
pub mod rewrite;
pub mod scan;
pub mod ship;
mod shipping;
mod spec;
mod steps;
pub mod sync;
mod waiters;
mod walk;
pub mod window;
mod writer;
