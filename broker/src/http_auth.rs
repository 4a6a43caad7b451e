//! Who asks at `http.listen`, where `auth.listeners` has `http`.

use std::time::Instant;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use kera_grpc::serve::Caller;
use kera_protocol::error::{ErrorCode, WireError};

use crate::api::refusal;
use crate::auth::{Asker, Auth, NotProved};
use crate::http_listener::Peer;

/// How a client is to say who it is; browsers ask for name and password then.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"Kera\", charset=\"UTF-8\"");
/// The same with tokens.
const TOKEN_CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"Kera\"");
/// Seconds after which a request may be tried again for which too many passwords were being checked.
const AGAIN_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Who asks.
pub(crate) struct Asking {
    /// The client.
    pub(crate) caller: Caller,
    /// When it has to show another token, if it has shown one.
    pub(crate) until: Option<Instant>,
}

/// The user that a request comes from.
///
/// # Errors
/// The answer to a request of nobody.
pub(crate) async fn asking(
    auth: &Auth,
    peer: Peer,
    headers: &HeaderMap,
) -> Result<Asking, Box<Response>> {
    let address = peer.0.ip();
    match auth.prove_http(address, headers).await {
        Ok(Asker { user, until }) => {
            let caller = Caller {
                address,
                user: Some(user),
                listener: None,
            };
            Ok(Asking { caller, until })
        }
        Err(NotProved::Wrong(why)) => {
            let mut answer = refusal(&WireError::new(ErrorCode::NotAuthorized, why));
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            let headers = answer.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
            if auth.takes_tokens() {
                headers.append(header::WWW_AUTHENTICATE, TOKEN_CHALLENGE);
            }
            Err(Box::new(answer))
        }
        Err(NotProved::Busy(why)) => {
            let mut answer = refusal(&WireError::new(ErrorCode::Overloaded, why));
            answer
                .headers_mut()
                .insert(header::RETRY_AFTER, AGAIN_AFTER);
            Err(Box::new(answer))
        }
    }
}
