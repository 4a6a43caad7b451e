//! What may be used in this cluster: all that every broker can, once an operator has said that there is no way back.

use kera_metadata::{CLUSTER_VERSION, Feature};
use kera_protocol::error::{ErrorCode, WireError};

use crate::error::BrokerError;
use crate::shared::Shared;

/// Whether this program can what the cluster may use.
///
/// # Errors
/// [`BrokerError::NewerCluster`].
pub(crate) fn check_program(found: u32) -> Result<(), BrokerError> {
    if found > CLUSTER_VERSION {
        let known = CLUSTER_VERSION;
        return Err(BrokerError::NewerCluster { found, known });
    }
    if found < CLUSTER_VERSION {
        tracing::info!(
            cluster_version = found,
            program = CLUSTER_VERSION,
            "the cluster was made by an earlier version: until `kera cluster finalize` there is a way back, and what earlier versions cannot read is refused"
        );
    }
    Ok(())
}

impl Shared {
    /// Refuses what some broker of the cluster may not be able to read.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] until the cluster version has it.
    pub fn require(&self, feature: Feature) -> Result<(), WireError> {
        if self.has(feature) {
            return Ok(());
        }
        let (found, since) = (self.settings.cluster_version(), feature.since());
        let text = format!(
            "{feature} needs cluster version {since}, and this cluster is of version {found}; update all brokers, then run `kera cluster finalize`: earlier versions cannot join any more from then on"
        );
        Err(WireError::new(ErrorCode::InvalidArgument, text))
    }

    /// Whether every broker of the cluster can read what this makes.
    pub fn has(&self, feature: Feature) -> bool {
        self.settings.cluster_version() >= feature.since()
    }
}
