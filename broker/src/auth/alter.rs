//! Seeing and changing users.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_metadata::user::check_user_name;
use kera_metadata::{
    Compare, MetadataError, Transaction, User, UserCredential, UsersRecord, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::scram::{self, Credential, ITERATIONS, Mechanism};

use super::rounds;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Attempts to change users that others change at the same time.
const ATTEMPTS: u32 = 16;
const SECRET_BYTES: usize = 32;
/// Fewest and most bytes of a salt.
const SALT: std::ops::RangeInclusive<usize> = 8..=64;

/// What was made of a new password.
#[derive(Clone)]
pub struct NewCredential {
    /// For this mechanism.
    pub mechanism: Mechanism,
    /// Rounds of the derivation.
    pub iterations: u32,
    /// Random bytes.
    pub salt: Vec<u8>,
    /// What was made of password, salt and rounds.
    pub salted: Vec<u8>,
}

/// A change of one user.
#[derive(Clone)]
pub enum Change {
    /// Gives the user a password, and makes the user if there is none.
    Put(NewCredential),
    /// Takes the password for one mechanism, or for all; without any the user is gone.
    Delete(Option<Mechanism>),
}

impl NewCredential {
    fn stored(&self) -> Result<UserCredential, WireError> {
        let invalid = |text: String| WireError::new(ErrorCode::InvalidArgument, text);
        if rounds(self.iterations).is_none() {
            return Err(invalid(format!(
                "{} iterations are not taken; {} to {} are",
                self.iterations,
                ITERATIONS.start(),
                ITERATIONS.end()
            )));
        }
        if !SALT.contains(&self.salt.len()) || self.salted.len() != self.mechanism.key_bytes() {
            return Err(invalid(format!(
                "a salt has {} to {} bytes, and a salted password {} for {}",
                SALT.start(),
                SALT.end(),
                self.mechanism.key_bytes(),
                self.mechanism
            )));
        }
        let salt = self.salt.clone();
        let made = Credential::of_salted(self.mechanism, &self.salted, salt, self.iterations);
        Ok(UserCredential {
            mechanism: self.mechanism.number(),
            salt: made.salt,
            iterations: made.iterations,
            stored_key: made.stored_key,
            server_key: made.server_key,
        })
    }
}

/// The users that are recorded, by name.
///
/// # Errors
/// What the metadata store answers.
pub async fn list(shared: &Arc<Shared>) -> Result<Vec<User>, WireError> {
    Ok(recorded(shared).await?.users)
}

async fn recorded(shared: &Arc<Shared>) -> Result<UsersRecord, WireError> {
    let shared = shared.clone();
    blocking(move || {
        shared
            .metadata
            .users()
            .map_err(|error| metadata_error(&error))
    })
    .await
}

/// Makes changes, in order and all at once; for each whether it was made, and if not, why.
///
/// # Errors
/// None was made: too many users, or what the metadata store answers.
pub async fn alter(
    shared: &Arc<Shared>,
    changes: &[(String, Change)],
) -> Result<Vec<Result<(), WireError>>, WireError> {
    for _ in 0..ATTEMPTS {
        let present = recorded(shared).await?;
        let users = present.users.iter();
        let mut users: BTreeMap<String, User> = users
            .map(|user| (user.name.clone(), user.clone()))
            .collect();
        let made = changes
            .iter()
            .map(|(name, change)| change.apply(name, &mut users));
        let made: Vec<_> = made.collect();
        let mut record = UsersRecord {
            users: users.into_values().collect(),
            ..present.clone()
        };
        if record.users == present.users {
            return Ok(made);
        }
        if record.secret.is_empty() {
            let secret = scram::random::<SECRET_BYTES>();
            let failed =
                |error: scram::ScramError| WireError::new(ErrorCode::Internal, error.to_string());
            record.secret = secret.map_err(failed)?.to_vec();
        }
        let (writing, wanted) = (shared.clone(), record.clone());
        let written = blocking(move || {
            let compare = Compare::UsersRevision {
                revision: wanted.revision,
            };
            let write = Write::PutUsers(wanted);
            let transaction = Transaction::new(vec![compare], vec![write]);
            match writing.metadata.commit(transaction) {
                Ok(committed) => Ok(Some(committed.revision)),
                Err(MetadataError::Conflict(_)) => Ok(None),
                Err(error) => Err(metadata_error(&error)),
            }
        });
        if let Some(revision) = written.await? {
            record.revision = revision;
            shared.auth.take(&record);
            return Ok(made);
        }
    }
    let text = "users were changed by others at the same time, again and again; try again";
    Err(WireError::new(ErrorCode::Overloaded, text))
}

impl Change {
    fn apply(&self, name: &str, users: &mut BTreeMap<String, User>) -> Result<(), WireError> {
        match self {
            Self::Put(credential) => {
                let invalid = |text| WireError::new(ErrorCode::InvalidArgument, text);
                check_user_name(name).map_err(invalid)?;
                let stored = credential.stored()?;
                let user = users.entry(name.to_owned()).or_insert_with(|| User {
                    name: name.to_owned(),
                    credentials: Vec::new(),
                });
                let credentials = &mut user.credentials;
                credentials.retain(|one| one.mechanism != stored.mechanism);
                credentials.push(stored);
                credentials.sort_by_key(|one| one.mechanism);
                Ok(())
            }
            Self::Delete(mechanism) => {
                let unknown = || {
                    let text = match mechanism {
                        None => "there is no such user; see `kera user list`".to_owned(),
                        Some(one) => format!("the user has no password for {one}"),
                    };
                    WireError::new(ErrorCode::UnknownUser, text)
                };
                let user = users.get_mut(name).ok_or_else(unknown)?;
                let before = user.credentials.len();
                let goes = |number: u8| mechanism.is_none_or(|one| one.number() == number);
                user.credentials.retain(|one| !goes(one.mechanism));
                if user.credentials.len() == before {
                    return Err(unknown());
                }
                if user.credentials.is_empty() {
                    users.remove(name);
                }
                Ok(())
            }
        }
    }
}
