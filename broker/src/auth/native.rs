//! How clients of the native listener prove who they are, before the hello of frames or HTTP/2's preface.

use std::io;
use std::time::Duration;

use kera_protocol::login::{
    HEAD_BYTES, MAGIC, MAX_MESSAGE, Status, VERSION, max_first, read_head, read_length, reply,
};
use kera_rpc::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Auth, Proof, Session};
use crate::audit::Peer;
use crate::config::{SaslMechanism, Security};
use crate::counted::Counted;
use crate::principal::Principal;
use crate::tls::principal_of;

/// Longest pause between two looks at first bytes that are not all there.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Room for a message begins with this, and grows as it comes.
const FIRST_ROOM: usize = 2 << 10;
/// So often a message that has no room asks for it.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Who the client at the other end is, by its certificate or by a password; `None` if it has to prove it and does not
/// try. The caller bounds the time. Until then the connection, `counted`, holds no more than all such may.
///
/// # Errors
/// The stream's. `PermissionDenied` for a proof that is wrong, which the client was told.
pub(crate) async fn prove(
    (auth, security): (&Auth, &Security),
    stream: &mut Stream,
    counted: &Counted,
    peer: Peer,
) -> io::Result<Option<Session>> {
    let known = principal_of(stream);
    if !security.asks {
        return Ok(Some(Session::endless(known)));
    }
    stream.take_little(true);
    counted.holds(stream.held());
    let needed = (auth, &*security.mechanisms);
    let proved = prove_little(needed, stream, counted, peer, known).await;
    stream.take_little(false);
    proved
}

async fn prove_little(
    (auth, offered): (&Auth, &[SaslMechanism]),
    stream: &mut Stream,
    counted: &Counted,
    peer: Peer,
    known: Principal,
) -> io::Result<Option<Session>> {
    if !begins_with_proof(stream).await? {
        if known == Principal::Anonymous {
            let why = "the client has not proved who it is".to_owned();
            auth.refused(peer, "", "", why);
            return Ok(None);
        }
        return Ok(Some(Session::endless(known)));
    }
    let outcome = exchange((auth, offered), stream, counted, peer).await?;
    let entered = outcome.and_then(|(proof, last)| {
        let session = auth.let_in(peer, proof, None)?;
        Ok((session, last))
    });
    match entered {
        Ok((session, last)) => {
            stream.write_all(&reply(Status::Proved, &last)).await?;
            Ok(Some(session))
        }
        Err(why) => {
            tracing::debug!(peer = %peer.host, why, "a native client did not prove who it is");
            stream
                .write_all(&reply(Status::Refused, why.as_bytes()))
                .await?;
            stream.shutdown().await?;
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
    }
}

/// What the client has proved, and the last message to it; or what it is told.
type Outcome = Result<(Proof, Vec<u8>), String>;

async fn exchange(
    (auth, offered): (&Auth, &[SaslMechanism]),
    stream: &mut Stream,
    counted: &Counted,
    peer: Peer,
) -> io::Result<Outcome> {
    let refused = |mechanism: &str, why| auth.refused(peer, mechanism, "", why);
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let number = match read_head(&head) {
        Some((VERSION, number)) => Some(number),
        _ => None,
    };
    let mechanism = number.and_then(SaslMechanism::of_number);
    let mechanism = mechanism.filter(|one| offered.contains(one));
    let most = mechanism.map_or(MAX_MESSAGE, |one| max_first(one.number()));
    let message = match read_message(stream, counted, most, 0).await {
        Ok(message) => message,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Err(refused("", error.to_string())));
        }
        Err(error) => return Err(error),
    };
    if number.is_none() {
        let text = format!("the broker knows version {VERSION} of these messages");
        return Ok(Err(refused("", text)));
    }
    let Some(mechanism) = mechanism else {
        let names: Vec<_> = offered.iter().map(|one| one.name()).collect();
        let names = names.join(", ");
        let text = format!("the broker does not take this mechanism; it takes {names}");
        return Ok(Err(refused("", text)));
    };
    let scram = match mechanism {
        SaslMechanism::Scram(scram) => scram,
        SaslMechanism::Plain => {
            let proved = auth.prove_plain(peer, &message).await;
            return Ok(proved.map(|proof| (proof, Vec::new())));
        }
        SaslMechanism::OauthBearer => {
            let proved = auth.prove_token(peer, &message).await;
            let proved = proved.map_err(|refusal| refusal.why);
            return Ok(proved.map(|proof| (proof, Vec::new())));
        }
    };
    let (exchange, challenge) = match auth.begin(peer, scram, &message) {
        Ok(begun) => begun,
        Err(why) => return Ok(Err(why)),
    };
    drop(message);
    let challenge = reply(Status::GoesOn, challenge.as_bytes());
    stream.write_all(&challenge).await?;
    let proof = match read_message(stream, counted, MAX_MESSAGE, exchange.held()).await {
        Ok(message) => auth.end(peer, exchange, &message),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Err(refused(mechanism.name(), error.to_string())));
        }
        Err(error) => return Err(error),
    };
    Ok(proof.map(|(proof, last)| (proof, last.into_bytes())))
}

/// Reads a message of at most `most` bytes whose length comes first, into room that grows as it comes, beside `other` bytes
/// that the connection holds.
///
/// # Errors
/// The stream's; `InvalidData` for a message that is too long.
async fn read_message(
    stream: &mut Stream,
    counted: &Counted,
    most: usize,
    other: usize,
) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    counted.holds(stream.held() + other);
    stream.read_exact(&mut length).await?;
    let Some(length) = read_length(length, most) else {
        let text = format!("a message of a proof has at most {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    };
    let mut message = Vec::new();
    while message.len() < length {
        let there = message.len();
        let room = length.min((2 * there).max(FIRST_ROOM));
        while there > 0 && !counted.hold(stream.held() + other + room) {
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        message.reserve_exact(room - there);
        message.resize(room, 0);
        stream.read_exact(&mut message[there..]).await?;
    }
    Ok(message)
}

/// Looks at the first bytes without taking them, until they tell a proof from anything else.
pub(crate) async fn begins_with_proof(stream: &Stream) -> io::Result<bool> {
    let mut bytes = [0; MAGIC.len()];
    let decide = |there: &[u8]| match there.len() < MAGIC.len() && MAGIC.starts_with(there) {
        true => None,
        false => Some(there == MAGIC),
    };
    stream.look(&mut bytes, LOOK_PAUSE, decide).await
}
