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

impl Principal {
    /// Who has proved to be this user, or nothing.
    pub fn of(user: Option<&Arc<str>>) -> Self {
        user.map_or(Self::Anonymous, |name| Self::User(name.clone()))
    }

    /// The user that it has proved to be, if any.
    pub fn user(&self) -> Option<Arc<str>> {
        match self {
            Self::Anonymous => None,
            Self::User(name) => Some(name.clone()),
        }
    }
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
