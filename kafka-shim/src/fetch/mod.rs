//! Fetch: what is durable, as slices of segments, to whoever asks; or a wait until there is some.
//!
//! [`request`] reads a request, [`session`] remembers what a client fetches so that it need not
//! repeat it, [`serve`] looks what there is, [`near`] minds clients that say where they are, [`respond`]
//! makes the reply.

pub(crate) mod near;
pub(crate) mod request;
pub(crate) mod respond;
pub(crate) mod serve;
pub(crate) mod session;

pub(crate) use request::FetchRequest;
pub(crate) use serve::{Fetch, Progress};
pub(crate) use session::{Held, MAX_PARTITIONS, SessionRoom, Sessions};
