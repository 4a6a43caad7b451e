//! What of a stream other brokers own: they are asked for their part.

use std::future::Future;
use std::time::Duration;

use kera_protocol::error::WireError;
use kera_protocol::v1;
use kera_rpc::v1::streams_client::StreamsClient;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::catalog::Stream;
use crate::cluster::shortage::not_served;
use crate::others;
use crate::start::Shared;

/// How long another owner is given: it may have to read its disk.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Asks every other owner of `stream`'s streamlets; each answer with its broker.
async fn ask<T, F, Fut>(
    shared: &Shared,
    stream: &Stream,
    call: F,
) -> Vec<(u32, Result<T, WireError>)>
where
    F: Fn(StreamsClient<Channel>) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let call = &call;
    let asked = shared
        .other_owners(stream)
        .into_iter()
        .map(|broker| async move {
            let answer = match others::streams(shared, broker) {
                Ok(stub) => others::answer(broker, ANSWER_WITHIN, call(stub)).await,
                Err(error) => Err(error),
            };
            (broker, answer)
        });
    futures::future::join_all(asked).await
}

fn all<T>(answers: Vec<(u32, Result<T, WireError>)>) -> Result<Vec<T>, WireError> {
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Where the place that `request` names is in lanes of other owners.
pub(super) async fn find(
    shared: &Shared,
    stream: &Stream,
    request: &v1::FindOrdinalsRequest,
) -> Result<Vec<v1::FindOrdinalsResponse>, WireError> {
    let answers = ask(shared, stream, |mut stub| {
        let mut request = request.clone();
        request.local = true;
        async move { stub.find_ordinals(request).await }
    });
    all(answers.await)
}

/// Has other owners trim their lanes.
pub(super) async fn trim(
    shared: &Shared,
    stream: &Stream,
    request: &v1::TrimStreamRequest,
) -> Result<Vec<v1::TrimStreamResponse>, WireError> {
    let answers = ask(shared, stream, |mut stub| {
        let mut request = request.clone();
        request.local = true;
        async move { stub.trim_stream(request).await }
    });
    all(answers.await)
}

/// What other owners say of their parts of a stream. Streamlets whose owner is not reached are listed
/// among those that are not served.
pub(crate) async fn describe(shared: &Shared, stream: &Stream) -> Vec<v1::DescribeStreamResponse> {
    let name = stream.name();
    let answers = ask(shared, stream, |mut stub| {
        let name = name.clone();
        let request = v1::DescribeStreamRequest { name, local: true };
        async move { stub.describe_stream(request).await }
    });
    let part = |(broker, answer): (u32, Result<v1::DescribeStreamResponse, WireError>)| {
        answer.unwrap_or_else(|error| {
            let owners = shared.owners_of(stream).into_iter().zip(0..);
            let owned = owners.filter(|(owner, _)| *owner == broker);
            let away = owned.map(|(_, streamlet)| not_served(streamlet, &error.message));
            v1::DescribeStreamResponse {
                unrecovered: away.collect(),
                ..Default::default()
            }
        })
    };
    answers.await.into_iter().map(part).collect()
}
