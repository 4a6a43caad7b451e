//! Transactions of producers, as a kind of its own beside groups: who may write under a transactional id, what is part
//! of its transaction, and how that ends.
//!
//! # The states
//! ```text
//!            Init                 Add                    End, timeout, Init
//!   (none) -------> Empty ------------------> Ongoing ---------------------> PrepareCommit, PrepareAbort
//!                                ^                                                   |
//!                                |  Add                                              | every part has its marker
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
//! - **What was decided is never forgotten** before every part has its marker; an open transaction ends with its time.

mod begin;
mod event;
mod finish;
mod handle;
mod limits;
mod request;
mod state;
mod view;

pub use limits::Limits;
pub use request::{
    Decided, Described, End, Fault, Filter, Init, Listed, Member, Part, Reply, Request, Written,
};
pub use state::Stage;

pub(crate) use event::{TransactionEnded, TransactionSet};
pub(crate) use state::Transaction;
