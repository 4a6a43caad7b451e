//! Bringing what compaction has rewritten to other brokers.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use kera_metadata::GroupRecord;
use kera_replication::jobs::Jobs;
use kera_streamlet::{Ship, ShipError, Shipped};
use tokio::sync::oneshot;

use super::copies::StreamletCopies;

/// It is looked so often whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// Makes the replicas of a streamlet's rewritten groups.
pub(crate) struct ShipRewritten {
    pub(super) jobs: Arc<Jobs>,
    pub(super) copies: Arc<StreamletCopies>,
}

impl Ship for ShipRewritten {
    fn ship(
        &self,
        record: &GroupRecord,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Shipped, ShipError> {
        let (jobs, owned, record) = (self.jobs.clone(), self.copies.owned(), record.clone());
        let (tell, told) = sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = self.copies.lanes().primary().runtime().clone();
        runtime.spawn(Box::pin(async move {
            tokio::select! {
                shipped = jobs.ship(&owned, &record) => drop(tell.send(shipped)),
                // Also if nobody asks any more.
                _ = stopped => {}
            }
        }));
        let shipped = loop {
            match told.recv_timeout(LOOK) {
                Ok(shipped) => break shipped,
                Err(RecvTimeoutError::Timeout) if goes_on() => {}
                Err(_) => return Err(ShipError::Stopped),
            }
        };
        drop(stop);
        let shipped = shipped.map_err(ShipError::TooFew)?;
        Ok(Shipped {
            copies: shipped.replicas.clone(),
            hold: Box::new(shipped),
        })
    }
}
