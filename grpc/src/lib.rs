//! Control calls over gRPC, as brokers serve them and call each other, and as tools make them. Kera's clients make the same
//! calls as frames: [`kera_rpc`].
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

mod channels;
mod connector;
pub mod serve;
mod status;

pub use channels::Channels;
pub use connector::{Connector, channel};
pub use status::{ERROR_METADATA_KEY, error_of_status, status_of, wire_error_of_status};

/// The stubs of the control services, generated from `protocol/proto`; checked against it by a
/// test. Messages are in `kera_protocol::v1`.
#[allow(missing_docs, clippy::all, rustdoc::all)]
pub mod v1 {
    include!("generated/kera.v1.rs");
}
