//! Administration of the brokers that share a metadata store: what they are, what moves between them, and how one
//! leaves or restarts.

mod describe;
mod drain;
mod finalize;
mod moves;
mod restart;

use std::sync::Arc;
use std::time::Duration;

use kera_controller::{Members, Picture};
use kera_grpc::v1::clusters_client::ClustersClient;
use kera_metadata::{Living, Role};
use kera_protocol::error::{ErrorCode, WireError};
use tonic::transport::Channel;

use crate::cluster::ownership::live_state::{clustered, living, members_of};
use crate::others;
use crate::shared::Shared;
use crate::store_calls::blocking;

pub use describe::describe_cluster;
pub use drain::{describe_drain, set_draining};
pub use finalize::finalize;
pub use moves::{move_streamlet, plan_moves};
pub use restart::plan_restart;

/// The longest that a call which is passed on may take: a hand-over waits for what is in flight.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

fn invalid(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

/// Looks at what is recorded, on a thread that may take its time.
async fn with_picture<T: Send + 'static>(
    shared: &Arc<Shared>,
    look: impl FnOnce(&Picture, &Members, &Living) -> T + Send + 'static,
) -> Result<T, WireError> {
    let living = living(shared)?;
    let members = members_of(shared, &living);
    let cluster_view = clustered(shared)?.cluster_view.clone();
    blocking(move || {
        let seen = cluster_view.read(|picture| look(picture, &members, &living));
        seen.ok_or_else(|| {
            let text = "this broker has not read the metadata store yet; ask again in a moment";
            WireError::new(ErrorCode::Overloaded, text)
        })
    })
    .await
}

/// The calls of another broker, which must be alive.
fn passed_to(shared: &Shared, broker: u32) -> Result<ClustersClient<Channel>, WireError> {
    match living(shared)?.get(&broker).map(|live| live.role) {
        Some(Role::Broker) => {}
        Some(Role::ReplicaStore) => {
            return Err(invalid(format!(
                "{broker} is a replica store and owns no streamlets; to remove it, stop it: after cluster.lost_after its replicas are built again on other brokers"
            )));
        }
        None => {
            return Err(invalid(format!(
                "broker {broker} is not alive; see `kera cluster status`"
            )));
        }
    }
    Ok(ClustersClient::new(others::channel(shared, broker)?))
}
