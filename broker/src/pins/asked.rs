//! Asks other owners what they hold back for the pins of a stream; see [`HeldElsewhere`] for what counts of that.
//!
//! [`HeldElsewhere`]: super::remembered::HeldElsewhere

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kera_grpc::v1::streams_client::StreamsClient;
use kera_metadata::PinRecord;
use kera_protocol::error::WireError;
use kera_protocol::v1;
use tonic::transport::Channel;

use super::remembered::Told;
use crate::data::catalog::Stream;
use crate::others;
use crate::shared::Shared;

/// How long another owner is given.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Answers count so long, and no less than three rounds.
const FRESH: Duration = Duration::from_secs(60);

/// Asks every one of `owners` what it holds back, of one stream or of all; each answer with its broker.
pub(crate) async fn ask(
    shared: &Shared,
    owners: BTreeSet<u32>,
    request: &v1::ListPinsRequest,
) -> Vec<(u32, Result<v1::ListPinsResponse, WireError>)> {
    let asked = owners.into_iter().map(|broker| async move {
        let request = v1::ListPinsRequest {
            local: true,
            ..request.clone()
        };
        let call = |mut stub: StreamsClient<Channel>| async move { stub.list_pins(request).await };
        let answer = match others::streams(shared, broker) {
            Ok(stub) => others::answer(broker, ANSWER_WITHIN, call(stub)).await,
            Err(error) => Err(error),
        };
        (broker, answer)
    });
    futures::future::join_all(asked).await
}

/// Bytes that other owners hold back for each of these pins, as far as they have told lately.
pub(super) fn known(shared: &Shared, stream: &Stream, pins: &[PinRecord]) -> Vec<u64> {
    let fresh = FRESH.max(shared.live().retention.check_interval * 3);
    let (me, owners) = (shared.data.directory.me(), shared.owners_of(stream));
    let elsewhere = &shared.pins.elsewhere;
    elsewhere.known(stream.id(), pins, (me, &owners), fresh)
}

/// Asks the other owners of a stream, if there are any and they are not being asked; returns at once.
pub(super) fn ask_meanwhile(shared: &Arc<Shared>, stream: &Arc<Stream>) {
    let owners = shared.other_owners(stream);
    if owners.is_empty() {
        return;
    }
    let Some(runtime) = shared.pins.elsewhere.begin(stream.id()) else {
        return;
    };
    let (shared, stream) = (shared.clone(), stream.clone());
    runtime.spawn(async move {
        let request = v1::ListPinsRequest {
            stream: stream.name(),
            ..v1::ListPinsRequest::default()
        };
        let mut stopping = shared.stopping.subscribe();
        let answers = tokio::select! {
            answers = ask(&shared, owners, &request) => answers,
            _ = stopping.wait_for(|stop| *stop) => Vec::new(),
        };
        let mut told = Told::new();
        for (broker, answer) in answers {
            match answer {
                Ok(answer) => {
                    let pins = answer.pins.into_iter();
                    told.extend(pins.map(|pin| ((broker, pin.name), (pin.created_ms, pin.held))));
                }
                Err(error) => {
                    tracing::warn!(broker, %error, "a broker does not say what it holds back for pins: it counts as nothing, so that they may hold back more than their bounds");
                }
            }
        }
        shared.pins.elsewhere.heard(stream.id(), told);
    });
}
