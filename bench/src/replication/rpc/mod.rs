//! Replication as it was before Tailwind, to compare with: every shipment is a request.
//!
//! RAMCloud's backups, which Tailwind's paper measures against, work like this. A dispatcher takes
//! requests off the network into buffers of its own and hands each to a worker; the worker finds the
//! copy, copies the bytes into its memory and answers. A write's head has the layout that the
//! one-sided transport over TCP uses, the store behind it is the same, and so are the calls for
//! control; only who handles a write differs.
//!
//! It is meant to be as good as such a design can be: shipments are pipelined, a large one is
//! received straight into its request's buffer, buffers are used again, and a worker that finds the
//! next request waiting does not sleep in between. It lives here because only the comparison needs it.
//!
//! | module | what it is |
//! |---|---|
//! | `wire` | what travels |
//! | `client` | the primary's end |
//! | `outgoing` | bytes on their way into a socket |
//! | `server` | the backup's listener and its seats |
//! | `dispatch` | who takes requests off a connection |
//! | `queue` | what workers wait at |

mod client;
mod dispatch;
mod outgoing;
mod queue;
mod server;
mod wire;

pub use client::RpcTransport;
pub use outgoing::{Completions, Outgoing};
pub use server::RpcServer;
