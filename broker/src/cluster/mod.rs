//! This broker among others: who it is, who its peers are, the replicas it keeps for them, and its own side as a
//! primary whose groups have replicas there. A broker that works alone has none of it.
//!
//! Read `peers`, then the folders in this order; each imports only those above it, and the files here put them
//! together.
//!
//! | module | what it is |
//! |---|---|
//! | `disk_watch` | whether its disk takes what is written |
//! | `cluster_view` | owners and replicas of all streamlets, kept by watching the store |
//! | `counts` | what it counts; `metrics` shows it |
//! | `replica` | replicas: those kept for others, those of its own groups, and its own files |
//! | `ownership` | how streamlets come to this broker and leave it, and the controller that decides so |
//! | `cleanup` | background work: what is lacking, misplaced or left over |
//! | `peers` | this broker and its peers |
//! | `clustered` | all that a broker has because others share its store |
//! | `describe` | what it tells of itself and its peers |
//! | `metrics` | what a scrape sees |
//! | `replica_store` | a process that only keeps replicas |
//! | `restore_plan` | what is to be recorded of a lane once the store was put back to an older state |
//! | `restored_groups` | groups that a restored store does not know: what is whole of them here is recorded again |
//! | `store_restore` | what a start does after that |
//!
//! The order of a start: the replica store waits for its predecessor to be gone, reads its seals and
//! seals what was open ([`Backup`]), then listens, all before this broker's own streamlets are
//! recovered. So brokers that start at the same time find each other's replicas.

pub(crate) mod cleanup;
pub(crate) mod cluster_view;
mod clustered;
mod counts;
mod describe;
pub(crate) mod disk_watch;
pub(crate) mod metrics;
pub mod ownership;
mod peers;
mod replica;
mod replica_store;
mod restore_plan;
pub(crate) mod restored_groups;
pub(crate) mod store_restore;

use std::time::Duration;

pub(crate) use cleanup::shortage::{self, standing_still};
pub use clustered::Clustered;
pub use describe::describe;
pub(crate) use ownership::joining::Joined;
pub use ownership::joining::host_name;
pub use peers::{Peer, Peers};
pub use replica::backup::{Backup, BackupOptions};
pub use replica::replicated::Replicated;
pub use replica::transports::{TransportState, Ways, transports};
pub use replica_store::BackupProcess;

/// What nobody needs before a streamlet is served waits so long.
const LATER: Duration = Duration::from_secs(3);
