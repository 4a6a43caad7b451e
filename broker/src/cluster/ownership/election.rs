//! Standing for election as controller, and taking the office of one that is gone.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kera_controller::{Limits, Move, refused};
use kera_metadata::Living;
use kera_protocol::v1;
use tokio::sync::watch;

use super::controller::{Controller, HandOvers, Timing, Tools};
use super::refusal::{Handshakes, publish};
use super::suspicion::{Suspects, watch_over};
use crate::admin;
use crate::cluster::Clustered;
use crate::config::TlsListener;
use crate::shared::Shared;

/// Pause before the office is tried for once more, as when the store did not answer.
const AGAIN: Duration = Duration::from_millis(200);

/// Asks owners, this broker among them.
struct Askers(Weak<Shared>);

impl HandOvers for Askers {
    fn ask(&self, one: Move) -> BoxFuture<'static, Result<(), String>> {
        let shared = self.0.upgrade();
        async move {
            let shared = shared.ok_or("this broker is stopping")?;
            let stream =
                shared.cluster_view(|picture| Some(picture.stream(one.stream)?.name.clone()));
            let stream = stream.flatten().ok_or("the stream is gone")?;
            let request = v1::MoveStreamletRequest {
                stream,
                streamlet: one.streamlet.0,
                to: one.to,
                epoch: Some(one.epoch.0),
                passed_on: false,
            };
            let moved = admin::cluster::move_streamlet(&shared, request).await;
            moved.map(|_| ()).map_err(|error| error.message)
        }
        .boxed()
    }
}

/// Stands for election until the broker stops, and decides while it is elected.
pub(crate) fn start(shared: &Arc<Shared>, clustered: &Arc<Clustered>) {
    let (store, membership) = (&clustered.store, &clustered.membership);
    let stopping = shared.stopping.subscribe();
    let elected = membership.campaign();
    let (suspects, suspected) = watch::channel(Suspects::new());
    let calls = [TlsListener::Native, TlsListener::Cluster];
    let tls = shared.tls.clone();
    let tls = tls.filter(|tls| calls.iter().any(|at| tls.for_brokers(*at).is_some()));
    let handshakes = tls.map(Handshakes::new);
    if let Some(handshakes) = &handshakes {
        let (clustered, stopping) = (Arc::downgrade(clustered), stopping.clone());
        tokio::spawn(publish(clustered, handshakes.clone(), stopping));
    }
    tokio::spawn(watch_over(
        shared.broker_id,
        store.living(),
        store.controller(),
        elected.clone(),
        stopping.clone(),
        handshakes,
        Arc::new(suspects),
    ));
    let weak = Arc::downgrade(shared);
    tokio::spawn(succeed(
        Arc::downgrade(clustered),
        suspected.clone(),
        store.controller(),
        store.living(),
        stopping.clone(),
    ));
    let fencing = Arc::downgrade(clustered);
    let controller = Controller::new(Tools {
        store: store.clone(),
        cluster_view: clustered.cluster_view.clone(),
        fence: Box::new(move || fencing.upgrade()?.membership.fence()),
        hand_overs: Arc::new(Askers(weak)),
        suspects: suspected,
        allow_same_host: shared.config.cluster.allow_same_host,
        timing: Timing {
            lost: shared.config.cluster.lost_after,
            ..Timing::default()
        },
        limits: Limits::default(),
        metrics: clustered.replicated.controller_metrics().clone(),
    });
    tokio::spawn(controller.run(elected, membership.valid(), stopping));
}

/// Takes the office of a controller that is suspected to be gone, or whose certificate the others refuse, so that nobody waits for its lease to
/// end. Until the broker stops.
async fn succeed(
    clustered: Weak<Clustered>,
    mut suspected: watch::Receiver<Suspects>,
    mut controller: watch::Receiver<Option<u32>>,
    mut living: watch::Receiver<Living>,
    mut stopping: watch::Receiver<bool>,
) {
    loop {
        let in_office = *controller.borrow_and_update();
        let gone = {
            let suspected = suspected.borrow_and_update();
            let refused = refused(&living.borrow_and_update());
            in_office.filter(|id| suspected.contains(id) || refused.contains_key(id))
        };
        if let Some(gone) = gone {
            let Some(clustered) = clustered.upgrade() else {
                return;
            };
            let taking = tokio::task::spawn_blocking(move || clustered.membership.succeed(gone));
            if taking.await.unwrap_or(false) {
                tracing::warn!(
                    broker = gone,
                    "the controller is gone, or nobody takes its certificate; this broker takes its office before its lease ends"
                );
            }
        }
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            changed = suspected.changed() => if changed.is_err() { return },
            changed = controller.changed() => if changed.is_err() { return },
            changed = living.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN), if gone.is_some() => {}
        }
    }
}
