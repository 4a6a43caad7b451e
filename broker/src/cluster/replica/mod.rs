//! Replicas: those that this broker keeps for others, and those of its own groups.
//!
//! Read in this order; a file imports only those above it in the table, but that `local` asks `replicated` what is
//! served.
//!
//! | module | what it is |
//! |---|---|
//! | `cards` | network cards that write replicas by themselves |
//! | `transports` | over what replicas travel |
//! | `door` | who gets to replicas where their listener has TLS |
//! | `backup` | the passive side: a store of other brokers' replicas, and its listener |
//! | `own_files` | own files of closed groups: whether they are whole, and how they are made so or freed |
//! | `fetching` | an own file made from other replicas |
//! | `waiting` | streamlets that wait for their replicas, closed groups that are not whole, and the operator's decision |
//! | `closed_records` | records of closed groups whose own file was looked for |
//! | `streamlet_replicas` | the replicas of one streamlet's groups |
//! | `deleted_streams` | deleted streams that not every replica store has heard of |
//! | `replicated` | the streamlets with replicas elsewhere that are served |
//! | `local` | all replicas at this broker: its own files, and those in its store |

pub(crate) mod backup;
#[cfg(feature = "rdma")]
mod cards;
#[cfg(not(feature = "rdma"))]
#[path = "no_cards.rs"]
mod cards;
pub(crate) mod closed_records;
pub(crate) mod deleted_streams;
mod door;
pub(crate) mod fetching;
pub(crate) mod local;
pub(crate) mod own_files;
pub(crate) mod replicated;
pub(crate) mod rewritten;
pub(crate) mod streamlet_replicas;
pub(crate) mod transports;
pub(crate) mod waiting;
