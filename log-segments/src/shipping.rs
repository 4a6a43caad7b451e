//! The interface through which a group tells replication about new bytes.

/// Sends a group's bytes to its replicas on other brokers; the group calls it without any lock. Must not block.
pub trait Shipping: Send + Sync {
    /// Bytes were published.
    fn grew(&self);

    /// The group's own file has more, or its writing failed: see [`Group::written`](crate::group::Group::written) and
    /// [`Group::is_broken`](crate::group::Group::is_broken).
    fn wrote(&self);

    /// Nothing more is appended.
    fn froze(&self);
}
