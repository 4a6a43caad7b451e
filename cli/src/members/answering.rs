//! Finding a broker that answers.

use std::time::Duration;

use kera_protocol::v1;

use crate::connect::{ConnectArgs, Control, control, refused};
use crate::failure::Failure;

/// What to type on a new broker's machine: with addresses, since by default only that machine reaches it. Without
/// certificates and passwords it has to be told to let everybody in.
pub(crate) fn how_to_start(broker: impl std::fmt::Display, store: &str) -> String {
    format!(
        "kera serve --cluster {store} --broker-id {broker} --listen HOST:7600 --replication-listen HOST:7601 --insecure native,cluster"
    )
}

/// How long a broker may take to describe its cluster.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The calls of the first broker that answers, and the cluster as it sees it. A process that stands still
/// accepts connections and says nothing: it is passed over.
pub(crate) async fn answering(
    connect: &ConnectArgs,
) -> Result<(Control, v1::DescribeClusterResponse), Failure> {
    let way = connect.way()?;
    let mut first = None;
    for address in connect.bootstrap.split(',') {
        let failure = match control(address, &way).await {
            Err(failure) => failure,
            Ok(mut control) => {
                let request = v1::DescribeClusterRequest {};
                let call = control.clusters.describe_cluster(request);
                let answer = tokio::time::timeout(ANSWER_WITHIN, call).await;
                match answer {
                    Ok(Ok(answer)) => return Ok((control, answer.into_inner())),
                    Ok(Err(status)) => refused(&status),
                    Err(_) => does_not_answer(address),
                }
            }
        };
        first = first.or(Some(failure));
    }
    Err(first.unwrap_or_else(|| Failure::Usage("no broker's address is given".into())))
}

pub(super) fn does_not_answer(address: &str) -> Failure {
    Failure::message(format!(
        "the broker at {address} does not answer within {} s; name another with --bootstrap",
        ANSWER_WITHIN.as_secs()
    ))
}
