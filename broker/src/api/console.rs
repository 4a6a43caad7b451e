//! The console: pages that browsers show of the API, from files in the binary. broker/console has their sources.

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::answer::{ServedApi, api_for};
use crate::http_listener::Peer;

/// What a page may do: use the broker that it came from, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, media type, content.
const FILES: [(&str, &str, &[u8]); 4] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_bytes!("../../console/dist/index.html"),
    ),
    (
        "/console.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../console/dist/console.js"),
    ),
    (
        "/console.css",
        "text/css; charset=utf-8",
        include_bytes!("../../console/dist/console.css"),
    ),
    (
        "/licenses.txt",
        "text/plain; charset=utf-8",
        include_bytes!("../../console/dist/licenses.txt"),
    ),
];

/// The paths of the console.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, ..)| *path)
}

pub(super) async fn file(
    State(served): State<ServedApi>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    if let Err(refused) = api_for(&served, peer, &headers).await {
        return *refused;
    }
    let found = FILES.iter().find(|(path, ..)| *path == uri.path());
    let Some((_, kind, content)) = found else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        // Another version of the broker has other files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, *content).into_response()
}
