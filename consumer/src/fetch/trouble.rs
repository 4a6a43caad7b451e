//! Why a source does not go on.

use tokio::time::Instant;

/// What keeps a source from going on.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) since: Instant,
    pub(super) why: String,
    /// It is about the connection, and over with that.
    pub(super) of_link: bool,
}

/// A trouble that may be over: another attempt has begun, and has brought nothing yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    pub(super) since: Instant,
    pub(super) at: Instant,
}
