//! Transactions of producers, as a kind of its own beside groups: who may write under a transactional id, what is part
//! of its transaction, and how that ends.
//!
//! # The states
//! ```text
//!            Init                 Add                    End, timeout, Init
//!   (none) -------> Empty ------------------> Ongoing ---------------------> PrepareCommit, PrepareAbort
//!                                ^                                                   |
//!                                |  Add            |  Prepare             ^          | every part has its marker
//!                                |                 +-------> Prepared ----+          |
//!                                |                                       End         |
//!                                +------------ CompleteCommit, CompleteAbort <-------+
//! ```
//!
//! # The rules
//! - **A decision comes first.** [`Request::Decided`] is answered with what is decided, and as every answer only once
//!   the events of all earlier steps are durable. Markers go out after that answer, so none is of a decision that a
//!   failure may take back.
//! - **Each transaction of an id has a number**, which only grows. Who asks whether a part belongs to an open transaction
//!   is told the number, and markers carry it.
//! - **The epoch is raised** by each Init, and when a transaction is aborted because its time is over or because another
//!   instance of its producer began: once, and the next Init takes what was raised. Where no epoch is left the id gets
//!   another producer id.
//!   Ends of clients that know it ([`End::raise`]) raise it too, and markers carry the epoch after: what comes late of a
//!   transaction is never taken for the next one's.
//! - **A transaction may be kept** by a later instance of its producer (KIP-939), which does nothing with it but end it. The
//!   instance before is fenced, so the producer has another epoch than the transaction's batches; markers are of those.
//! - **The time of a transaction** runs from its begin; of a producer that sends heartbeats from the last sign of life. A
//!   coordinator that has just replayed its events knows of none, and counts from then.
//! - **A transaction for two-phase commit has no time** from its first part on. Its producer ends it, or a later instance that
//!   has kept it or does not want it.
//! - **A prepared transaction has no time.** Whoever prepared it has said that all of it is durable, and may be gone. It
//!   ends by its [`Handle`], from any process, and by nothing else: no Init, no Add and no operator's abort is taken
//!   meanwhile; only a limit that operators may set, and that is off by default, aborts it. How it ended is remembered until its id begins again, is forgotten at somebody's wish, or was silent for
//!   long.
//! - **How a transaction ended is kept where its marker may be lost again** ([`EndedBefore`]), also while the next one is
//!   open. Where the marker ended tells it from the next one.
//! - **What was decided is never forgotten** before every part has its marker; an open transaction ends with its time.

mod begin;
mod event;
mod finish;
mod handle;
mod limits;
mod prepare;
mod request;
mod state;
mod unsettled;
mod view;

pub use limits::{Limits, MAX_ID_BYTES};
pub use request::{
    AbortOne, Decided, Described, End, Fault, Filter, Handle, Init, Listed, Member, Part,
    Partition, Prepare, Reply, Request, Written,
};
pub use state::{Prepared, Stage};
pub use unsettled::{EndedBefore, Lost, OpenThere};

#[cfg(test)]
pub(crate) use event::{EndedBy, PreparedBy};
pub(crate) use event::{TransactionEnded, TransactionSet};
pub(crate) use state::Transaction;
pub(crate) use unsettled::{MarkedParts, Unsettled};
