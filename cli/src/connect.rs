//! How client commands find a broker and read its refusals.

use std::time::Duration;

use clap::Args;
use kera_protocol::error::ErrorCode;
use kera_rpc::v1::consumers_client::ConsumersClient;
use kera_rpc::v1::streams_client::StreamsClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::parse;

/// How long a broker may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The largest answer accepted from a broker: descriptions of streams with many lanes are long.
const LARGEST_ANSWER: usize = 256 << 20;

/// Which broker a client command talks to.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// A broker's address.
    #[arg(
        long,
        short = 'b',
        value_name = "HOST:PORT",
        env = "KERA_BOOTSTRAP",
        default_value = "127.0.0.1:7600",
        value_parser = parse::address
    )]
    pub bootstrap: String,
}

/// Control calls to one broker.
#[derive(Clone, Debug)]
pub struct Control {
    /// Streams, producers and the broker itself.
    pub streams: StreamsClient<Channel>,
    /// Consumer groups.
    pub consumers: ConsumersClient<Channel>,
}

impl ConnectArgs {
    /// Connects for control calls.
    pub async fn control(&self) -> Result<Control, Failure> {
        control(&self.bootstrap).await
    }
}

/// Connects to a broker for control calls.
pub async fn control(bootstrap: &str) -> Result<Control, Failure> {
    let endpoint = Endpoint::from_shared(format!("http://{bootstrap}"))
        .map_err(|error| Failure::Usage(format!("`{bootstrap}` is not an address: {error}")))?
        .connect_timeout(CONNECT_WITHIN)
        .tcp_nodelay(true);
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| unreachable_broker(bootstrap, &error))?;
    Ok(Control {
        streams: StreamsClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
        consumers: ConsumersClient::new(channel).max_decoding_message_size(LARGEST_ANSWER),
    })
}

fn unreachable_broker(bootstrap: &str, error: &dyn std::error::Error) -> Failure {
    // The innermost cause says what happened ("connection refused"); those around it do not.
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let cause = cause.to_string().to_lowercase();
    let cause = cause.split(" (os error").next().unwrap_or(&cause);
    Failure::message(format!(
        "no broker answers at {bootstrap}: {cause}; start one with `kera serve`, or name another with --bootstrap or KERA_BOOTSTRAP"
    ))
}

/// What a broker's refusal says to people: its own message and its code.
pub fn refused(status: &Status) -> Failure {
    let code = status
        .metadata()
        .get("kera-error")
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok())
        .and_then(ErrorCode::from_number);
    match code {
        Some(code) => Failure::message(format!("{} ({code})", status.message())),
        None if status.code() == Code::Unimplemented => Failure::message(
            "the broker does not know this call; use a `kera` of the broker's own version",
        ),
        None if status.code() == Code::Unavailable => Failure::message(format!(
            "lost the connection to the broker: {}; try again when it is back",
            status.message()
        )),
        None => Failure::message(format!(
            "{}; see the broker's log",
            status.message().to_lowercase()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_their_code() {
        let mut status =
            Status::not_found("no stream `x` exists; create it with `kera stream create x`");
        status
            .metadata_mut()
            .insert("kera-error", "1".parse().unwrap());
        assert_eq!(
            format!("{:?}", refused(&status)),
            "Failed(no stream `x` exists; create it with `kera stream create x` (UNKNOWN_STREAM))"
        );
        let plain = Status::internal("Boom");
        assert_eq!(
            format!("{:?}", refused(&plain)),
            "Failed(boom; see the broker's log)"
        );
    }

    #[tokio::test]
    async fn nobody_there_says_what_to_do() {
        // A port that was free a moment ago: nobody listens on it.
        let address = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let failure = control(&address).await.unwrap_err();
        let text = format!("{failure:?}");
        assert!(
            text.contains("connection refused; start one with `kera serve`"),
            "{text}"
        );
    }
}
