//! What of a stream other brokers own: they are asked for their part.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use kera_grpc::v1::streams_client::StreamsClient;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::cluster::shortage::not_served;
use crate::data::catalog::Stream;
use crate::others;
use crate::shared::Shared;

/// How long another owner is given: it may have to read its disk.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long another owner is given that compacts its lanes.
const COMPACTED_WITHIN: Duration = Duration::from_secs(3600);

/// How long another owner is given that carries out an operator's decision before it answers.
const DECIDED_WITHIN: Duration = Duration::from_secs(40);

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
    ask_within(shared, stream, ANSWER_WITHIN, call).await
}

async fn ask_within<T, F, Fut>(
    shared: &Shared,
    stream: &Stream,
    within: Duration,
    call: F,
) -> Vec<(u32, Result<T, WireError>)>
where
    F: Fn(StreamsClient<Channel>) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    ask_of(shared, shared.other_owners(stream), within, call).await
}

async fn ask_of<T, F, Fut>(
    shared: &Shared,
    owners: BTreeSet<u32>,
    within: Duration,
    call: F,
) -> Vec<(u32, Result<T, WireError>)>
where
    F: Fn(StreamsClient<Channel>) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let call = &call;
    let asked = owners.into_iter().map(|broker| async move {
        let answer = match others::streams(shared, broker) {
            Ok(stub) => others::answer(broker, within, call(stub)).await,
            Err(error) => Err(error),
        };
        (broker, answer)
    });
    futures::future::join_all(asked).await
}

/// What all have answered. An owner that has not heard of a stream yet does not say that there is none: who
/// asks knows it.
fn all<T>(stream: &str, answers: Vec<(u32, Result<T, WireError>)>) -> Result<Vec<T>, WireError> {
    let heard = |(broker, answer): (u32, Result<T, WireError>)| {
        answer.map_err(|error| match error.code {
            ErrorCode::UnknownStream => WireError::new(
                ErrorCode::NotOwner,
                format!(
                    "broker {broker} owns a part of stream \"{stream}\" and has not heard of it yet; ask again"
                ),
            ),
            _ => error,
        })
    };
    answers.into_iter().map(heard).collect()
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
    all(&stream.name(), answers.await)
}

/// As [`find`], of these owners alone, and each answer with its broker: of one that does not answer in time nothing is known.
pub(super) async fn find_at(
    shared: &Shared,
    owners: BTreeSet<u32>,
    request: &v1::FindOrdinalsRequest,
    within: Duration,
) -> Vec<(u32, Result<v1::FindOrdinalsResponse, WireError>)> {
    let call = |mut stub: StreamsClient<Channel>| {
        let mut request = request.clone();
        request.local = true;
        async move { stub.find_ordinals(request).await }
    };
    ask_of(shared, owners, within, call).await
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
    all(&stream.name(), answers.await)
}

/// Has other owners compact their lanes.
pub(super) async fn compact(
    shared: &Shared,
    stream: &Stream,
    request: &v1::CompactStreamRequest,
) -> Result<Vec<v1::CompactStreamResponse>, WireError> {
    let answers = ask_within(shared, stream, COMPACTED_WITHIN, |mut stub| {
        let mut request = request.clone();
        request.local = true;
        async move { stub.compact_stream(request).await }
    });
    all(&stream.name(), answers.await)
}

/// What streamlets of other owners wait for; they go on without what no replica of the groups to give up has. Those of an
/// owner that is not reached wait for it.
pub(super) async fn recover(
    shared: &Shared,
    stream: &Stream,
    request: &v1::RecoverStreamRequest,
) -> v1::RecoverStreamResponse {
    let within = match request.give_up.is_empty() {
        true => ANSWER_WITHIN,
        false => DECIDED_WITHIN,
    };
    let answers = ask_within(shared, stream, within, |mut stub| {
        let mut request = request.clone();
        request.local = true;
        async move { stub.recover_stream(request).await }
    });
    let mut found = v1::RecoverStreamResponse::default();
    for (broker, answer) in answers.await {
        match answer {
            Ok(answer) => {
                found.waiting.extend(answer.waiting);
                found.accepted.extend(answer.accepted);
            }
            Err(error) => found.waiting.extend(away(shared, stream, broker, &error)),
        }
    }
    found
}

/// The streamlets of an owner that is not reached.
fn away(
    shared: &Shared,
    stream: &Stream,
    broker: u32,
    error: &WireError,
) -> Vec<v1::UnrecoveredStreamlet> {
    let owners = shared.owners_of(stream).into_iter().zip(0..);
    let owned = owners.filter(|(owner, _)| *owner == broker);
    owned
        .map(|(_, streamlet)| not_served(streamlet, &error.message))
        .collect()
}

/// What other owners say of their parts of a stream. Streamlets whose owner is not reached are listed
/// among those that are not served.
pub(crate) async fn describe(
    shared: &Shared,
    stream: &Stream,
    within: Duration,
) -> Vec<v1::DescribeStreamResponse> {
    let name = stream.name();
    let answers = ask_within(shared, stream, within, |mut stub| {
        let name = name.clone();
        let request = v1::DescribeStreamRequest { name, local: true };
        async move { stub.describe_stream(request).await }
    });
    let part = |(broker, answer): (u32, Result<v1::DescribeStreamResponse, WireError>)| {
        answer.unwrap_or_else(|error| v1::DescribeStreamResponse {
            unrecovered: away(shared, stream, broker, &error),
            ..Default::default()
        })
    };
    answers.await.into_iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_has_not_heard_of_a_stream_is_asked_again() {
        let refused = |code| Err(WireError::new(code, "planted"));
        let answers = vec![(1, Ok(())), (2, refused(ErrorCode::UnknownStream))];
        let error = all("s", answers).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotOwner);
        assert!(error.code.is_retryable());
        assert!(error.message.contains("broker 2"), "{error}");
        let error = all(
            "s",
            vec![(1, Ok(())), (2, refused(ErrorCode::StorageError))],
        );
        assert_eq!(error.unwrap_err().code, ErrorCode::StorageError);
        assert_eq!(all("s", vec![(1, Ok(7)), (2, Ok(8))]), Ok(vec![7, 8]));
    }
}
