//! Asks a broker's HTTP address.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kera_rpc::stream::Stream;
use kera_rpc::tls::reason_in;
use kera_rpc::{ClientTls, token_of_file};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::IdentityArgs;
use crate::failure::Failure;

/// Without an answer within this time the broker counts as away.
const WITHIN: Duration = Duration::from_secs(5);
/// No answer of the API is longer than half of this.
const MOST_BYTES: u64 = 2 << 20;

/// A broker's HTTP address, and who asks there.
pub(super) struct Place {
    /// HOST:PORT.
    pub(super) address: String,
    tls: Option<ClientTls>,
    proof: Proof,
}

/// What a request says of who asks.
enum Proof {
    Nothing,
    /// A user's name and password, as the header has them.
    Basic(String),
    /// A token, which is read anew for each request.
    TokenFile(PathBuf),
}

impl Proof {
    /// The line of the request; empty for nobody.
    async fn line(&self) -> Result<String, String> {
        Ok(match self {
            Self::Nothing => String::new(),
            Self::Basic(both) => format!("Authorization: Basic {both}\r\n"),
            Self::TokenFile(file) => {
                let token = token_of_file(file.clone()).await?;
                format!("Authorization: Bearer {token}\r\n")
            }
        })
    }
}

impl Place {
    /// As `http` names it, `https://HOST:PORT`, `http://HOST:PORT`, or HOST:PORT, which has TLS if an authority is named.
    ///
    /// # Errors
    /// What does not go together.
    pub(super) fn new(http: &str, identity: &IdentityArgs) -> Result<Self, Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let (address, tls) = match http.split_once("://") {
            None => (http, identity.tls()?),
            Some(("http", address)) => (address, None),
            Some(("https", address)) => match identity.tls()? {
                Some(tls) => (address, Some(tls)),
                None => {
                    return usage(format!(
                        "{http} has TLS; name the authority that signed its certificate (--tls-ca FILE or KERA_TLS_CA)"
                    ));
                }
            },
            Some(_) => return usage(format!("{http} is neither https://HOST:PORT nor HOST:PORT")),
        };
        let address = address.trim_end_matches('/').to_owned();
        let is_open = tls.is_none() && !is_loopback(&address);
        if let Some(file) = &identity.token_file {
            if is_open {
                return usage(format!(
                    "a token is sent to {address} as it is, and without TLS everybody on the way could read and use it; use TLS (--tls-ca FILE)"
                ));
            }
            let proof = Proof::TokenFile(file.clone());
            return Ok(Self {
                address,
                tls,
                proof,
            });
        }
        let proof = match identity.password()? {
            None => Proof::Nothing,
            Some((user, _)) if user.contains(':') => {
                return usage(format!(
                    "the user {user} cannot be named over HTTP, where a colon ends a name; take another user"
                ));
            }
            Some(_) if is_open => {
                return usage(format!(
                    "to ask {address} as a user sends the password itself, and without TLS everybody on the way could read it; use TLS (--tls-ca FILE)"
                ));
            }
            Some((user, password)) => Proof::Basic(STANDARD.encode(format!("{user}:{password}"))),
        };
        Ok(Self {
            address,
            tls,
            proof,
        })
    }

    /// The answer to a path of `/api/v1`.
    ///
    /// # Errors
    /// What happened, and what to do, for people.
    pub(super) async fn get(&self, path: &str) -> Result<Value, String> {
        let address = &self.address;
        let failed = |what: &str| {
            format!(
                "the broker's HTTP address {address} {what}; see http.listen of the broker, and name it with --http"
            )
        };
        let proof = self.proof.line().await?;
        let answer = match timeout(WITHIN, self.exchange(path, &proof)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => return Err(failed("does not answer within 5 s")),
        };
        let answer = String::from_utf8_lossy(&answer);
        let parts = answer.split_once("\r\n\r\n");
        let status = answer
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3));
        let (Some((_, body)), Some(status)) = (parts, status) else {
            return Err(failed(
                "answers with something else than HTTP; if it has TLS, name the authority that signed its certificate (--tls-ca FILE)",
            ));
        };
        let body: Option<Value> = serde_json::from_str(body).ok();
        match (status, body) {
            ("200", Some(body)) => Ok(body),
            ("401", _) if proof.is_empty() => Err(format!(
                "the broker's HTTP address {address} asks who you are; name a user (--user NAME) and a file with the password (--user-password-file FILE), or a file with a token (--token-file FILE)"
            )),
            ("401", Some(body)) if body["message"].is_string() => Err(format!(
                "the broker's HTTP address {address} does not let you in: {}; check the user's name and password, or the token",
                body["message"].as_str().unwrap_or_default()
            )),
            (_, Some(body)) if body["message"].is_string() => {
                Err(body["message"].as_str().unwrap_or_default().to_owned())
            }
            ("404", _) => Err(failed(
                "has no /api/v1: the broker is of an earlier version",
            )),
            _ => Err(failed(&format!("answers with status {status}"))),
        }
    }

    fn unreachable(&self, error: &std::io::Error) -> String {
        let address = &self.address;
        let why = reason_in(error).unwrap_or_else(|| error.to_string());
        let hint = match self.tls {
            Some(_) => {
                format!("; if it has no TLS, say so with --http http://{address}")
            }
            None => String::new(),
        };
        format!(
            "the broker's HTTP address {address} does not answer: {why}; see http.listen of the broker, and name it with --http{hint}"
        )
    }

    async fn exchange(&self, path: &str, proof: &str) -> std::io::Result<Vec<u8>> {
        let address = &self.address;
        let socket = TcpStream::connect(address).await?;
        let mut stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => tls.pages(socket, address).await?,
        };
        let request = format!(
            "GET /api/v1/{path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n{proof}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

/// Whether what is sent there stays on this machine.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip: Option<IpAddr> = host.parse().ok();
    host == "localhost" || ip.is_some_and(|ip| ip.is_loopback())
}
