//! PLAIN, RFC 4616: whose rights, who, and the password.

use kera_rpc::scram::ScramError;

use super::{Auth, Proof};
use crate::audit::Peer;
use crate::config::SaslMechanism;

/// Most bytes of a name and a password.
pub(super) const MAX_PLAIN: usize = 4096;

/// What the client is told: nothing of whether there is such a user.
pub(super) fn told(error: &ScramError) -> String {
    format!("authentication failed: {error}")
}

impl Auth {
    /// Takes a message of PLAIN from a client: who it is, to be [let in](Self::let_in).
    ///
    /// # Errors
    /// What the client is told.
    pub async fn prove_plain(&self, peer: Peer, message: &[u8]) -> Result<Proof, String> {
        let mechanism = SaslMechanism::Plain;
        let name = mechanism.name();
        let malformed = || {
            let why = "authentication failed: the message is no PLAIN message".to_owned();
            self.refused(peer, name, "", why)
        };
        if message.len() > MAX_PLAIN {
            return Err(malformed());
        }
        let mut parts = message.split(|byte| *byte == 0);
        let (Some(other), Some(user), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned);
        let (Ok(other), Ok(user)) = (text(other), text(user)) else {
            return Err(malformed());
        };
        if user.is_empty() || password.is_empty() {
            return Err(malformed());
        }
        let checked = self.is_password(peer.host, &user, password).await;
        let is_right = checked.map_err(|busy| {
            self.refused(peer, name, &user, format!("authentication failed: {busy}"))
        })?;
        // Nobody has another's rights.
        if is_right && (other.is_empty() || other == user) {
            let user = user.into();
            return Ok(Proof::endless(user, mechanism));
        }
        self.count(name, false);
        Err(self.refused(peer, name, &user, told(&ScramError::WrongProof)))
    }
}
