//! Requests as bytes: finding the way in them without allocating what the peer claims.

pub mod init_producer_id;
mod newer;
pub mod probe;
pub mod reader;
pub mod request;
pub mod schema;
pub mod share;
pub mod walk;
pub mod writer;
