//! Calls of commands that go on for long: such a command outlives the broker that it asked first.

use std::time::{Duration, Instant};

use kera_grpc::v1::clusters_client::ClustersClient;
use kera_grpc::wire_error_of_status;
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use tonic::{Code, Response, Status};

use super::answering::{ANSWER_WITHIN, answering, does_not_answer};
use crate::connect::{ConnectArgs, Control, refused};
use crate::failure::Failure;
use crate::waits::Watched;

/// After so long without an answer of any broker the command ends.
const PATIENCE: Duration = Duration::from_secs(60);
/// Before brokers are asked once more.
const PAUSE: Duration = Duration::from_millis(500);

/// The broker that a command asks, until that one is gone and another is asked.
pub(crate) struct Asked {
    connect: ConnectArgs,
    control: Control,
}

impl Asked {
    /// Asks the broker of `control` first, and then any of `connect`.
    pub(crate) fn new(connect: &ConnectArgs, control: Control) -> Self {
        Self {
            connect: connect.clone(),
            control,
        }
    }

    /// Calls to the broker that was found last.
    pub(crate) fn clusters(&self) -> ClustersClient<Watched> {
        self.control.clusters.clone()
    }

    /// Looks for a broker that answers; stays with the one it has if there is none.
    pub(crate) async fn look_for_another(&mut self) {
        if let Ok((control, _)) = answering(&self.connect).await {
            self.control = control;
        }
    }

    /// The cluster as a broker sees it.
    pub(crate) async fn describe_cluster(
        &mut self,
    ) -> Result<v1::DescribeClusterResponse, Failure> {
        let request = v1::DescribeClusterRequest {};
        let answer = self.ask(async |mut clusters| clusters.describe_cluster(request).await);
        answer.await
    }

    /// The answer to `call`, which does no harm when it is made twice, of the first broker that gives one: one that is
    /// gone, starts again or does not know yet is left for another.
    pub(crate) async fn ask<T>(
        &mut self,
        call: impl AsyncFn(ClustersClient<Watched>) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            let answer = tokio::time::timeout(ANSWER_WITHIN, call(self.clusters())).await;
            let failure = match answer {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if !may_pass(&status) => return Err(refused(&status)),
                Ok(Err(status)) => refused(&status),
                Err(_) => does_not_answer(&self.control.address),
            };
            if begun.elapsed() > PATIENCE {
                return Err(failure);
            }
            tokio::time::sleep(PAUSE).await;
            self.look_for_another().await;
        }
    }
}

/// True if another broker, or the same a little later, may say something else.
pub(crate) fn may_pass(status: &Status) -> bool {
    match wire_error_of_status(status) {
        Some(error) => error.code.is_retryable() && error.code != ErrorCode::Timeout,
        // No broker said that, but a connection that is lost or an older version.
        None => status.code() != Code::Unimplemented,
    }
}

#[cfg(test)]
mod tests {
    use kera_grpc::status_of;
    use kera_protocol::error::WireError;

    use super::*;

    #[test]
    fn what_a_broker_has_decided_is_not_asked_again() {
        let said = |code| may_pass(&status_of(&WireError::new(code, "planted")));
        assert!(said(ErrorCode::Overloaded) && said(ErrorCode::NotOwner));
        assert!(said(ErrorCode::ShuttingDown));
        assert!(!said(ErrorCode::InvalidArgument) && !said(ErrorCode::UnknownStream));
        assert!(may_pass(&Status::unavailable("connection refused")));
        assert!(!may_pass(&Status::unimplemented("an older version")));
    }
}
