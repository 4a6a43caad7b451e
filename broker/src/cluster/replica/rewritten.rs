//! Bringing what compaction has rewritten to other brokers.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use kera_metadata::GroupRecord;
use kera_replication::jobs::Jobs;
use kera_streamlet::{Ship, ShipError, Shipped};
use tokio::sync::oneshot;

use super::streamlet_replicas::StreamletReplicas;

/// It is looked so often whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// Makes the replicas of a streamlet's rewritten groups.
pub(crate) struct ShipRewritten {
    pub(super) jobs: Arc<Jobs>,
    pub(super) copies: Arc<StreamletReplicas>,
}

impl Ship for ShipRewritten {
    fn ship(
        &self,
        record: &GroupRecord,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Shipped, ShipError> {
        let (jobs, owned, record) = (self.jobs.clone(), self.copies.owned(), record.clone());
        let shipping = async move { jobs.ship(&owned, &record).await };
        let shipped = self.wait_for(shipping, goes_on)?;
        let shipped = shipped.map_err(ShipError::TooFew)?;
        Ok(Shipped {
            copies: shipped.replicas.clone(),
            hold: Box::new(shipped),
        })
    }

    fn may_fetch(&self, bytes: u64, goes_on: &mut dyn FnMut() -> bool) -> Result<(), ShipError> {
        let jobs = self.jobs.clone();
        self.wait_for(async move { jobs.may_copy(bytes).await }, goes_on)
    }
}

impl ShipRewritten {
    /// Waits on this thread for what is done on the runtime, as long as that goes on.
    fn wait_for<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<T, ShipError> {
        let (tell, told) = sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = self.copies.lanes().primary().runtime().clone();
        runtime.spawn(Box::pin(async move {
            tokio::select! {
                done = work => drop(tell.send(done)),
                // Also if nobody asks any more.
                _ = stopped => {}
            }
        }));
        let done = loop {
            match told.recv_timeout(LOOK) {
                Ok(done) => break done,
                Err(RecvTimeoutError::Timeout) if goes_on() => {}
                Err(_) => return Err(ShipError::Stopped),
            }
        };
        drop(stop);
        Ok(done)
    }
}
