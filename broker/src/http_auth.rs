//! Who asks at `http.listen`, where `auth.listeners` has `http`.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::serve::Caller;

use crate::api::refusal;
use crate::auth::{Auth, NotProved};
use crate::http_listener::Peer;

/// How a client is to say who it is; browsers ask for name and password then.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"Kera\", charset=\"UTF-8\"");
/// Seconds after which a request may be tried again for which too many passwords were being checked.
const AGAIN_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The user that a request comes from.
///
/// # Errors
/// The answer to a request of nobody.
pub(crate) async fn caller(
    auth: &Auth,
    peer: Peer,
    headers: &HeaderMap,
) -> Result<Caller, Box<Response>> {
    let address = peer.0.ip();
    match auth.prove_basic(address, headers).await {
        Ok(user) => Ok(Caller {
            address,
            user: Some(user),
        }),
        Err(NotProved::Wrong(why)) => {
            let mut answer = refusal(&WireError::new(ErrorCode::NotAuthorized, why));
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            let headers = answer.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
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
