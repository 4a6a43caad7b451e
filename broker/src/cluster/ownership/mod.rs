//! Who owns a streamlet: how streamlets come to this broker and leave it.
//!
//! Read in this order; a file imports only those above it in the table, but for the two kinds of take-over, which
//! `owners` begins.
//!
//! | module | what it is |
//! |---|---|
//! | `joining` | becoming one of the brokers that share a store |
//! | `newcomer` | a new data directory, among brokers of which none is alive |
//! | `members` | the brokers that share a store, and who owns what |
//! | `live_state` | the brokers that are alive, and what this one tells them of itself |
//! | `owner_changes` | how far changes of owners are known here |
//! | `takeover` | a streamlet is recovered from its replicas, and its own files are restored |
//! | `overlaps` | after a restore of the store: groups end where later ones begin |
//! | `owners` | what a change of owner does here |
//! | `watching` | what others change in the shared store, as it comes |
//! | `hand_over` | streamlets are given to other brokers |
//! | `refusal` | brokers whose certificates the others refuse |
//! | `suspicion` | brokers that are most likely gone before their lease ends |
//! | `external_moves` | which changes of owners the controller did not ask for |
//! | `controller` | who owns what, decided at the broker that is elected |
//! | `election` | standing for election as controller |

mod awaited;
pub(crate) mod controller;
pub(crate) mod election;
mod external_moves;
pub(crate) mod hand_over;
pub(crate) mod joining;
pub(crate) mod live_state;
pub(crate) mod members;
pub(crate) mod newcomer;
mod overlaps;
pub(crate) mod owner_changes;
pub(crate) mod owners;
mod refusal;
mod suspicion;
pub(crate) mod takeover;
pub(crate) mod watching;

pub use hand_over::hand_over;
pub(crate) use owners::spread;
