//! The suite over replication's own lanes, with groups in memory and waiters at a lane's address: as it was before
//! real streamlets. One broken rule, `seals_forgotten_at_restart`, is noticed here and not over streamlets.

pub mod check;
pub mod scenario;
