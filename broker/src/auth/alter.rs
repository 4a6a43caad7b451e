//! Seeing and changing users.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_metadata::user::check_user_name;
use kera_metadata::{User, UserCredential};
use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::scram::{self, Credential, ITERATIONS, Mechanism};

use super::rounds;
use crate::replaced_record::{change_record, read_record};
use crate::shared::Shared;

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
    /// What is made of `password` for `mechanism`, with a salt of its own. Takes milliseconds.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn of_password(
        mechanism: Mechanism,
        password: &str,
    ) -> Result<Self, scram::ScramError> {
        let iterations = *ITERATIONS.start();
        let (salt, salted) = mechanism.salted_anew(password, iterations)?;
        Ok(Self {
            mechanism,
            iterations,
            salt,
            salted,
        })
    }

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
    let recorded = read_record(&shared.metadata, |store| store.users());
    Ok(recorded.await?.users)
}

/// Makes changes, in order and all at once; for each whether it was made, and if not, why.
///
/// # Errors
/// None was made: too many users, or what the metadata store answers.
pub async fn alter(
    shared: &Arc<Shared>,
    changes: &[(String, Change)],
) -> Result<Vec<Result<(), WireError>>, WireError> {
    alter_if(shared, changes, |_| true).await
}

/// As [`alter`], but only while `wanted` says so of the users that there are; makes no change otherwise.
pub(super) async fn alter_if(
    shared: &Arc<Shared>,
    changes: &[(String, Change)],
    wanted: impl Fn(&[User]) -> bool,
) -> Result<Vec<Result<(), WireError>>, WireError> {
    let changed = change_record(
        &shared.metadata,
        |store| store.users(),
        |record| {
            if !wanted(&record.users) {
                return Ok((Vec::new(), false));
            }
            let users = record.users.iter();
            let mut users: BTreeMap<String, User> = users
                .map(|user| (user.name.clone(), user.clone()))
                .collect();
            let made = changes
                .iter()
                .map(|(name, change)| change.apply(name, &mut users));
            let made: Vec<_> = made.collect();
            let users: Vec<_> = users.into_values().collect();
            if users == record.users {
                return Ok((made, false));
            }
            record.users = users;
            if record.secret.is_empty() {
                let secret = scram::random::<SECRET_BYTES>();
                let failed = |error: scram::ScramError| {
                    WireError::new(ErrorCode::Internal, error.to_string())
                };
                record.secret = secret.map_err(failed)?.to_vec();
            }
            Ok((made, true))
        },
        |record| shared.auth.take(record),
    );
    Ok(changed.await?.1)
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
                        None => format!("there is no user {name}; see `kera user list`"),
                        Some(one) => format!("user {name} has no password for {one}"),
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
