//! Asks a broker's HTTP address.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Without an answer within this time the broker counts as away.
const WITHIN: Duration = Duration::from_secs(5);
/// No answer of the API is longer than half of this.
const MOST_BYTES: u64 = 2 << 20;

/// The answer to a path of `/api/v1`.
///
/// # Errors
/// What happened, and what to do, for people.
pub(super) async fn get(address: &str, path: &str) -> Result<Value, String> {
    let failed = |what: &str| {
        format!(
            "the broker's HTTP address {address} {what}; see http.listen of the broker, and name it with --http"
        )
    };
    let answer = match timeout(WITHIN, exchange(address, path)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(failed(&format!("does not answer: {error}"))),
        Err(_) => return Err(failed("does not answer within 5 s")),
    };
    let answer = String::from_utf8_lossy(&answer);
    let parts = answer.split_once("\r\n\r\n");
    let status = answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let (Some((_, body)), Some(status)) = (parts, status) else {
        return Err(failed(
            "answers with something else than HTTP; one with TLS cannot be asked yet",
        ));
    };
    let body: Option<Value> = serde_json::from_str(body).ok();
    match (status, body) {
        ("200", Some(body)) => Ok(body),
        (_, Some(body)) if body["message"].is_string() => {
            Err(body["message"].as_str().unwrap_or_default().to_owned())
        }
        ("404", _) => Err(failed(
            "has no /api/v1: the broker is of an earlier version",
        )),
        _ => Err(failed(&format!("answers with status {status}"))),
    }
}

async fn exchange(address: &str, path: &str) -> std::io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!(
        "GET /api/v1/{path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(MOST_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}
