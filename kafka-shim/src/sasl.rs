//! SaslHandshake and SaslAuthenticate: how a client proves who it is, before it may do anything else.

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    ApiKey, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse,
};
use kafka_protocol::protocol::{Decodable, StrBytes};
use kera_broker::audit::Peer;
use kera_broker::auth::Session;
use kera_broker::auth::scram::Exchange;
use kera_broker::config::SaslMechanism;

use crate::context::Ctx;
use crate::dispatch::{self, DispatchError};
use crate::refusal::text;
use crate::wire::walk;

/// Number of SaslHandshake.
pub(crate) const HANDSHAKE: i16 = 17;
/// Number of SaslAuthenticate.
pub(crate) const AUTHENTICATE: i16 = 36;
/// The version of SaslHandshake after which messages come in SaslAuthenticate.
const VERSION: i16 = 1;
/// Longest request of a client that has not proved who it is.
pub(crate) const MAX_REQUEST: usize = 64 << 10;

/// How far a client is.
#[derive(Debug)]
pub(crate) enum Step {
    /// It has to name a mechanism.
    Mechanism,
    /// It has to send its first message.
    First(SaslMechanism),
    /// It has to prove that it knows its password.
    Proof(Box<Exchange>),
    /// Its token proves nothing, which it knows: it has to send one more message, and learns why.
    Refused(String),
    /// It has proved who it is.
    Proved(Session),
    /// It has not, and the connection ends.
    Failed,
}

impl Step {
    /// About how many bytes wait with it for the client's next message.
    pub(crate) fn holds(&self) -> usize {
        match self {
            Self::Proof(exchange) => exchange.held(),
            Self::Refused(why) => why.len(),
            Self::Mechanism | Self::First(_) | Self::Proved(_) | Self::Failed => 0,
        }
    }
}

/// What has come of a request.
pub(crate) struct Answered {
    /// The whole reply.
    pub(crate) reply: Bytes,
    /// How far the client is now.
    pub(crate) step: Step,
}

/// Answers one of the two requests. With a session `before` a client proves anew who it is.
pub(crate) async fn answer(
    ctx: Ctx,
    step: Step,
    before: Option<Session>,
    (key, version, correlation): (i16, i16, i32),
    body: Bytes,
) -> Result<Answered, DispatchError> {
    let malformed = |reason: String| DispatchError::Malformed {
        key,
        version,
        reason,
    };
    walk::walk(key, version, &body, &walk::Limits::default())
        .map_err(|error| malformed(error.to_string()))?;
    let mut body = body;
    if key == HANDSHAKE {
        let request = SaslHandshakeRequest::decode(&mut body, version);
        let request = request.map_err(|error| malformed(error.to_string()))?;
        let (response, step) = handshake(&ctx, &step, version, &request.mechanism);
        let api = ApiKey::SaslHandshake;
        let reply = dispatch::encode(api, version, correlation, &response)?;
        return Ok(Answered { reply, step });
    }
    let request = SaslAuthenticateRequest::decode(&mut body, version);
    let request = request.map_err(|error| malformed(error.to_string()))?;
    let (response, step) = authenticate(&ctx, step, before.as_ref(), &request.auth_bytes).await;
    let api = ApiKey::SaslAuthenticate;
    let reply = dispatch::encode(api, version, correlation, &response)?;
    Ok(Answered { reply, step })
}

/// From where the client asks.
pub(crate) fn peer(ctx: &Ctx) -> Peer {
    Peer {
        via: ctx.via(),
        host: ctx.peer.ip(),
    }
}

fn handshake(ctx: &Ctx, step: &Step, version: i16, wanted: &str) -> (SaslHandshakeResponse, Step) {
    let auth = &ctx.shared.auth;
    let mechanisms = &ctx.listener.security.mechanisms;
    let names = mechanisms
        .iter()
        .map(|one| StrBytes::from_static_str(one.name()));
    let response = SaslHandshakeResponse::default().with_mechanisms(names.collect());
    let refused =
        |error: ResponseError| (response.clone().with_error_code(error.code()), Step::Failed);
    if !matches!(step, Step::Mechanism) {
        return refused(ResponseError::IllegalSaslState);
    }
    if version < VERSION {
        return refused(ResponseError::UnsupportedVersion);
    }
    match mechanisms.iter().find(|one| one.name() == wanted) {
        Some(mechanism) => (response, Step::First(*mechanism)),
        None => {
            let why = "the listener does not take this mechanism".to_owned();
            auth.refused(peer(ctx), wanted, "", why);
            refused(ResponseError::UnsupportedSaslMechanism)
        }
    }
}

async fn authenticate(
    ctx: &Ctx,
    step: Step,
    before: Option<&Session>,
    message: &[u8],
) -> (SaslAuthenticateResponse, Step) {
    let response = SaslAuthenticateResponse::default().with_error_message(None);
    let auth = &ctx.shared.auth;
    let outcome = match step {
        Step::First(SaslMechanism::Plain) => {
            let proved = auth.prove_plain(peer(ctx), message).await;
            proved.map(|proof| (proof, String::new()))
        }
        Step::First(SaslMechanism::Scram(scram)) => match auth.begin(peer(ctx), scram, message) {
            Ok((exchange, challenge)) => {
                let step = Step::Proof(Box::new(exchange));
                return (response.with_auth_bytes(challenge.into()), step);
            }
            Err(why) => Err(why),
        },
        Step::First(SaslMechanism::OauthBearer) => {
            match auth.prove_token(peer(ctx), message).await {
                Ok(proof) => Ok((proof, String::new())),
                Err(refusal) => {
                    let response = response.with_auth_bytes(refusal.challenge.into());
                    return (response, Step::Refused(refusal.why));
                }
            }
        }
        Step::Refused(why) => Err(why),
        Step::Proof(exchange) => auth.end(peer(ctx), *exchange, message),
        Step::Mechanism | Step::Proved(_) | Step::Failed => {
            let code = ResponseError::IllegalSaslState.code();
            let why = text("SaslHandshake comes first, and once for a proof");
            let response = response.with_error_code(code).with_error_message(Some(why));
            return (response, Step::Failed);
        }
    };
    let entered = outcome.and_then(|(proof, last)| {
        let session = auth.let_in(peer(ctx), proof, before)?;
        Ok((session, last))
    });
    match entered {
        Ok((session, last)) => {
            // Version 0 has no field for it: such a client loses its connection once the time is over, as with Kafka.
            let lifetime = session.lifetime.unwrap_or_default().as_millis();
            let response = response
                .with_auth_bytes(last.into_bytes().into())
                .with_session_lifetime_ms(i64::try_from(lifetime).unwrap_or(i64::MAX));
            (response, Step::Proved(session))
        }
        Err(why) => {
            let code = ResponseError::SaslAuthenticationFailed.code();
            let response = response
                .with_error_code(code)
                .with_error_message(Some(text(why)));
            (response, Step::Failed)
        }
    }
}
