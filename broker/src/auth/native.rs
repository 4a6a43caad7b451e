//! How clients of the native listener prove who they are, before the hello of frames or HTTP/2's preface.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kera_protocol::login::{HEAD_BYTES, MAGIC, Status, VERSION, read_head, reply};
use kera_rpc::login::read_message;
use kera_rpc::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Auth, told};
use crate::config::{Listener, SaslMechanism};
use crate::principal::Principal;
use crate::tls::principal_of;

/// Longest pause between two looks at first bytes that are not all there.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Who the client at the other end is, by its certificate or by a password; `None` if it has to prove it and does not
/// try. The caller bounds the time.
///
/// # Errors
/// The stream's. `PermissionDenied` for a proof that is wrong, which the client was told.
pub(crate) async fn prove(
    auth: &Auth,
    stream: &mut Stream,
    peer: SocketAddr,
) -> io::Result<Option<Principal>> {
    let known = principal_of(stream);
    if !auth.asks(Listener::Native) {
        return Ok(Some(known));
    }
    if !begins_with_proof(stream).await? {
        return Ok(Some(known).filter(|known| *known != Principal::Anonymous));
    }
    match exchange(auth, stream, peer).await? {
        Ok((principal, last)) => {
            stream.write_all(&reply(Status::Proved, &last)).await?;
            Ok(Some(principal))
        }
        Err(why) => {
            tracing::debug!(%peer, why, "a native client did not prove who it is");
            stream
                .write_all(&reply(Status::Refused, why.as_bytes()))
                .await?;
            stream.shutdown().await?;
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
    }
}

/// Who the client is, and the last message to it; or what it is told.
type Outcome = Result<(Principal, Vec<u8>), String>;

async fn exchange(auth: &Auth, stream: &mut Stream, peer: SocketAddr) -> io::Result<Outcome> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let message = match read_message(stream).await {
        Ok(message) => message,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Err(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let mechanism = match read_head(&head) {
        Some((VERSION, number)) => SaslMechanism::of_number(number),
        _ => {
            let text = format!("the broker knows version {VERSION} of these messages");
            return Ok(Err(text));
        }
    };
    let offered = auth.mechanisms();
    let Some(mechanism) = mechanism.filter(|one| offered.contains(one)) else {
        let names: Vec<_> = offered.iter().map(|one| one.name()).collect();
        let names = names.join(", ");
        return Ok(Err(format!(
            "the broker does not take this mechanism; it takes {names}"
        )));
    };
    let SaslMechanism::Scram(scram) = mechanism else {
        let proved = auth.prove_plain(peer.ip(), &message).await;
        return Ok(proved.map(|principal| (principal, Vec::new())));
    };
    let (exchange, challenge) = match auth.begin(scram, &message) {
        Ok(begun) => begun,
        Err(error) => return Ok(Err(told(&error))),
    };
    let challenge = reply(Status::GoesOn, challenge.as_bytes());
    stream.write_all(&challenge).await?;
    let proof = match read_message(stream).await {
        Ok(message) => exchange.end(&message),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Err(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    auth.note(mechanism, proof.is_ok());
    let outcome = proof.map_err(|error| told(&error));
    Ok(outcome.map(|(user, last)| (Principal::User(user.into()), last.into_bytes())))
}

/// Looks at the first bytes without taking them, until they tell a proof from anything else.
async fn begins_with_proof(stream: &Stream) -> io::Result<bool> {
    let mut bytes = [0; MAGIC.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        stream.readable().await?;
        let there = match stream.peek(&mut bytes).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            there => &bytes[..there],
        };
        if there.len() == MAGIC.len() || !MAGIC.starts_with(there) {
            return Ok(there == MAGIC);
        }
        // Peeking again at once would spin: the rest is on its way.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE);
    }
}
