//! Users and what is kept of their passwords.

use std::fmt;

/// Most users of a store, and most bytes of what is kept of them: they are one record, and etcd takes no larger one.
pub const MAX_USERS: usize = 4096;
/// See [`MAX_USERS`].
pub const MAX_USERS_BYTES: usize = 768 << 10;
/// Most bytes of a user's name.
pub const MAX_USER_NAME: usize = 255;
/// Most bytes of a salt, and of a key.
const MAX_KEY: usize = 64;

/// What is kept of a user's password for one mechanism: enough to check a proof, and not enough to make one.
#[derive(Clone, PartialEq, Eq)]
pub struct UserCredential {
    /// Kafka's number of the mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
    pub mechanism: u8,
    /// Random bytes.
    pub salt: Vec<u8>,
    /// Rounds of the derivation.
    pub iterations: u32,
    /// The hash of the client's key.
    pub stored_key: Vec<u8>,
    /// The broker's key.
    pub server_key: Vec<u8>,
}

impl fmt::Debug for UserCredential {
    /// Without keys, which are not for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserCredential")
            .field("mechanism", &self.mechanism)
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// By mechanism, each once; at least one.
    pub credentials: Vec<UserCredential>,
}

impl User {
    /// Checks a user by itself.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        check_user_name(&self.name)?;
        let mut mechanisms: Vec<_> = self.credentials.iter().map(|one| one.mechanism).collect();
        mechanisms.dedup();
        if mechanisms.is_empty() || mechanisms.len() != self.credentials.len() {
            return Err("a user has one password for each mechanism, and at least one".to_owned());
        }
        let is_sound = |one: &UserCredential| {
            let keys = [&one.stored_key, &one.server_key, &one.salt];
            keys.iter().all(|key| (1..=MAX_KEY).contains(&key.len())) && one.iterations > 0
        };
        match self.credentials.iter().all(is_sound) {
            true => Ok(()),
            false => Err(format!("keys and salts have 1 to {MAX_KEY} bytes")),
        }
    }

    fn bytes(&self) -> usize {
        let of =
            |one: &UserCredential| one.salt.len() + one.stored_key.len() + one.server_key.len();
        self.name.len() + self.credentials.iter().map(of).sum::<usize>()
    }
}

/// Checks the name of a user: 1 to [`MAX_USER_NAME`] bytes without control characters, and without spaces at an end;
/// neither `ANONYMOUS`, who is everybody without a name, nor `*`.
///
/// # Errors
/// What is wrong with it.
pub fn check_user_name(name: &str) -> Result<(), String> {
    let shown: String = name.chars().take(64).collect();
    if name.is_empty() || name.len() > MAX_USER_NAME || name.contains(char::is_control) {
        return Err(format!(
            "the user's name {shown:?} has {} bytes; 1 to {MAX_USER_NAME} without control characters are taken",
            name.len()
        ));
    }
    if name.trim() != name || matches!(name, "ANONYMOUS" | "*") {
        return Err(format!(
            "a user cannot be named {shown:?}; take another name, without spaces at its ends"
        ));
    }
    Ok(())
}

/// All users of a store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UsersRecord {
    /// By name.
    pub users: Vec<User>,
    /// A random key, the same for all brokers: what unknown users are answered is made of it.
    pub secret: Vec<u8>,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

impl fmt::Debug for UsersRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsersRecord")
            .field("users", &self.users)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl UsersRecord {
    /// Checks the whole.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let bytes: usize = self.users.iter().map(User::bytes).sum();
        if self.users.len() > MAX_USERS || bytes > MAX_USERS_BYTES {
            return Err(format!(
                "there would be {} users of {bytes} bytes; at most {MAX_USERS} of {MAX_USERS_BYTES} bytes are kept; use certificates for programs",
                self.users.len()
            ));
        }
        if !self.users.is_sorted_by(|one, next| one.name < next.name) {
            return Err("users are not in order, each once".to_owned());
        }
        if self.secret.len() > MAX_KEY {
            return Err("the secret is too long".to_owned());
        }
        self.users.iter().try_for_each(User::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_show_in_debug_output() {
        let record = UsersRecord {
            users: vec![User {
                name: "ann".to_owned(),
                credentials: vec![UserCredential {
                    mechanism: 1,
                    salt: vec![201],
                    iterations: 4096,
                    stored_key: vec![202],
                    server_key: vec![203],
                }],
            }],
            secret: vec![204],
            revision: 1,
        };
        record.check().unwrap();
        let shown = format!("{record:?}");
        assert!(shown.contains("ann"));
        for secret in ["201", "202", "203", "204"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn names_that_mislead_are_refused() {
        check_user_name("J\u{fc}rgen of x").unwrap();
        let long = "x".repeat(MAX_USER_NAME + 1);
        for name in ["", " a", "a ", "a\nb", "*", "ANONYMOUS", long.as_str()] {
            assert!(check_user_name(name).is_err(), "{name:?}");
        }
    }
}
