//! Who the client of a connection is.

use std::fmt;
use std::sync::Arc;

/// Who the client of a connection has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// It has proved nothing.
    Anonymous,
    /// It has proved to be the user of this name.
    User(Arc<str>),
}

impl fmt::Display for Principal {
    /// As Kafka writes it. No name of a user looks like `anonymous`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::User(name) => write!(f, "User:{name}"),
        }
    }
}
