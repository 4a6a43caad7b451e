//! Key sets from where they are: a file, or a server of the issuer.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use kera_rpc::small_file::{self, Takes};
use kera_rpc::stream::Stream;
use kera_rpc::tls::{ClientTls, TlsFiles};
use tokio::net::TcpStream;

use super::keys::{KeySet, MAX_KEY_SET};
use crate::config::KeySource;

/// A server has answered by then, or it is no use.
const WITHIN: Duration = Duration::from_secs(10);

/// Reads the keys that are there now.
///
/// # Errors
/// What is wrong, to follow where they should be.
pub(super) async fn key_set(source: &KeySource, ca: Option<&Path>) -> Result<KeySet, String> {
    let fetched = async {
        match source {
            KeySource::File(path) => {
                small_file::read_async(path.clone(), MAX_KEY_SET, Takes::Files)
                    .await
                    .map_err(|error| error.to_string())
            }
            KeySource::Server(uri) => server(uri, ca).await,
        }
    };
    let text = tokio::time::timeout(WITHIN, fetched).await;
    let text = text.map_err(|_| format!("no answer within {} s", WITHIN.as_secs()))??;
    KeySet::read(&text)
}

async fn server(uri: &Uri, ca: Option<&Path>) -> Result<Vec<u8>, String> {
    let said = |error: &dyn std::error::Error| error.to_string();
    let host = uri.host().unwrap_or_default();
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let address = format!("{host}:{port}");
    let socket = TcpStream::connect(&address)
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    let stream = match ca.filter(|_| is_tls) {
        Some(ca) => {
            let ca = ca.to_owned();
            let files = TlsFiles {
                ca,
                ..TlsFiles::default()
            };
            // A file of all of a system's authorities takes milliseconds.
            let tls = tokio::task::spawn_blocking(move || ClientTls::from_files(&files)).await;
            let tls = tls
                .map_err(|error| said(&error))?
                .map_err(|error| format!("oauth.keys_ca: {error}"))?;
            tls.pages(socket, &address)
                .await
                .map_err(|error| said(&error))?
        }
        None => Stream::from(socket),
    };
    let begun = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = begun.map_err(|error| said(&error))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(
            header::HOST,
            uri.authority().map_or(host, |all| all.as_str()),
        )
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close")
        .body(Body::empty())
        .map_err(|error| said(&error))?;
    let answered = async {
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| said(&error))?;
        if answer.status() != StatusCode::OK {
            return Err(format!("the server answers {}", answer.status()));
        }
        let body = axum::body::to_bytes(Body::new(answer.into_body()), MAX_KEY_SET).await;
        body.map(Vec::from)
            .map_err(|error| format!("the key set did not come whole: {error}"))
    };
    tokio::pin!(answered);
    // The connection works as long as it is polled: its end is no news before the answer is there.
    tokio::select! {
        answer = &mut answered => answer,
        _ = connection => answered.await,
    }
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
