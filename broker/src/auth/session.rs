//! What follows a proof: who the client is, and how long that counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Auth;
use crate::audit::Peer;
use crate::config::SaslMechanism;
use crate::principal::Principal;

/// What a client has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    pub(super) user: Arc<str>,
    pub(super) mechanism: SaslMechanism,
    /// How much longer it is one; `None`: no end.
    pub(super) remaining: Option<Duration>,
}

impl Proof {
    /// One that stays true.
    pub(super) fn endless(user: Arc<str>, mechanism: SaslMechanism) -> Self {
        Self {
            user,
            mechanism,
            remaining: None,
        }
    }
}

/// Who the client of a connection is, from its proof on.
#[derive(Clone, Debug)]
pub struct Session {
    /// The client.
    pub principal: Principal,
    /// How it has proved that; `None`: by its certificate, or nobody asked.
    mechanism: Option<SaslMechanism>,
    /// How long that counts; `None`: as long as the connection.
    pub lifetime: Option<Duration>,
    /// When it counts no more.
    pub until: Option<Instant>,
}

impl Session {
    /// One that lasts as long as its connection.
    pub(crate) fn endless(principal: Principal) -> Self {
        Self {
            principal,
            mechanism: None,
            lifetime: None,
            until: None,
        }
    }

    /// True if the client has to prove anew who it is.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

impl Auth {
    /// Lets a client in after its proof. With a session `before`, on the same connection, it has to be the same user by
    /// the same mechanism, as Kafka asks for.
    ///
    /// # Errors
    /// What the client is told.
    pub fn let_in(
        &self,
        peer: Peer,
        proof: Proof,
        before: Option<&Session>,
    ) -> Result<Session, String> {
        let Proof {
            user,
            mechanism,
            remaining,
        } = proof;
        let principal = Principal::User(user.clone());
        let changed = before.and_then(|before| match () {
            () if before.principal != principal => Some("user"),
            () if before.mechanism != Some(mechanism) => Some("mechanism"),
            () => None,
        });
        if let Some(changed) = changed {
            self.count(mechanism.name(), false);
            let why = format!(
                "authentication failed: a connection keeps its {changed}; open another connection"
            );
            return Err(self.refused(peer, mechanism.name(), &user, why));
        }
        self.note_proved(peer, mechanism.name(), &user);
        let lifetime = [self.max_reauth, remaining].into_iter().flatten().min();
        Ok(Session {
            principal,
            mechanism: Some(mechanism),
            lifetime,
            until: lifetime.map(|lifetime| Instant::now() + lifetime),
        })
    }
}
