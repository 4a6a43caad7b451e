//! Copies of groups at passive backups: what survives when a broker does not.
//!
//! A primary ships its groups' bytes into buffers at backups, one-sided: no backup handles a request
//! for data. What all copies of a group's recorded set hold may be acknowledged. When the primary is
//! gone, or only seems to be, its successor *seals* the copies, takes the longest whole one, completes
//! the others, and closes the group. The seed is Tailwind (Taleb et al., USENIX ATC'18); what is
//! whole is told by the batches' own checksums, so no byte is added to the log.
//!
//! This crate knows segments and bytes, not what streams mean by them.
//!
//! | module | what it is |
//! |---|---|
//! | [`ids`] | copies, holders, incarnations |
//! | [`records`] | groups' records, and the trait of a store that compares epoch and revision |
//! | [`transport`] | links for data, calls for control: over TCP, over RDMA (feature `rdma`), and simulated |
//! | [`backup`] | the passive side: buffers that outlive the process, seals, flushes |
//! | [`primary`] | replica sets, shippers, the durable head of a lane, what ends a group |
//! | [`recovery`] | after an owner: seal, scan, choose, complete, close |
//! | [`placement`] | which may hold copies of one group together |
//! | [`jobs`] | work in the background: closed groups get back the copies they lost |
//! | [`certificate`] | how far a copy's bytes are whole |
//! | [`own`] | the owner's own files as copies |
//! | [`health`] | which backups to choose |
//! | [`seldom`] | warnings that would come in thousands |
//! | [`runtime`] | tasks and time, tokio's or simulated |
//! | [`faults`] | rules broken on purpose, for tests of the tests |
//!
//! # What holds
//!
//! * **A set is decided once.** The open record, with its set, is durable before the group's first
//!   acknowledgement and never changes; the one close may name fewer holders, or newly built ones.
//! * **An acknowledgement needs every copy of the recorded set**, so sealing any one of them silences
//!   an owner that does not know that it is over, and any one of them is enough to recover.
//! * **Sealed, then read.** A backup stores a seal and ends all writing before it looks at a length, and
//!   remembers it for as long as it remembers copies.
//! * **Only the recorded incarnation speaks.** A store that lost its memory has a new id, and answers
//!   "unknown", never a length.
//! * **A group counts if it begins where the one before ends**, so what is recovered is a prefix.
//! * **Nothing depends on clocks.** Timeouts decide whom to wait for, never what is true.
//!
//! # From a broker's point of view
//!
//! 1. [`recovery::recover`] takes a streamlet over, and says where each lane goes on.
//! 2. [`primary::Lane::new`] for each lane, under the epoch that recovery took.
//! 3. [`primary::Lane::next_group`] names the lane's next group, [`primary::Lane::open`] makes
//!    the [`primary::ReplicaSet`] that ships it.
//! 4. After each append the group tells its set, with no lock held, that it grew. The set tells the group how far
//!    every replica has its bytes; the record is acknowledged when the streamlet's durable head has passed it. The lane may freeze a group at any time, because a replica was lost: the
//!    append that finds it frozen goes to the next group.
//! 5. A full group is frozen by the broker, and tells its set.
//! 6. [`jobs::Jobs::run`] once per broker, and [`primary::Primary::forget`] when a stream is deleted.
//!
//! A broker among its own peers keeps a copy itself. Either that copy is in its own backup store, to
//! which it ships like to any other; or it is the group's file that the broker writes anyway
//! ([`primary::Primary::with_own`] with [`own::OwnFiles`]): then whoever writes it calls
//! [`primary::ReplicaSet::own_completed`], and [`primary::ReplicaSet::own_lost`] when writing fails, and
//! recovery makes the file anew from the others where it is gone or damaged.
#![warn(unreachable_pub)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aside;
pub mod backup;
mod build_replica;
pub mod certificate;
pub mod faults;
pub mod health;
pub mod ids;
pub mod jobs;
pub mod own;
mod pace;
pub mod placement;
pub mod primary;
pub mod records;
pub mod recovery;
pub mod runtime;
pub use kera_records::seldom;
mod signal;
pub mod transport;

pub use build_replica::piece_end;
