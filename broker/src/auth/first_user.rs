//! The first user, whom the configuration names: without it nobody could log in to make others.

use std::path::Path;
use std::sync::Arc;

use kera_protocol::error::WireError;
use kera_rpc::login::{self, MOST_PASSWORD_BYTES, PasswordError};
use kera_rpc::scram::Mechanism;

use super::alter::{Change, NewCredential, alter_if, list};
use crate::error::BrokerError;
use crate::shared::Shared;

/// Makes `auth.first_user` if there are no users yet. Where several brokers start together, one of them does.
///
/// # Errors
/// [`BrokerError::FirstUser`] says what stands in the way.
pub(crate) async fn make_first_user(shared: &Arc<Shared>) -> Result<(), BrokerError> {
    let auth = &shared.config.auth;
    if !shared.config.asks_clients() || !list(shared).await.map_err(refused)?.is_empty() {
        return Ok(());
    }
    let (Some(name), Some(file)) = (&auth.first_user, &auth.first_user_password_file) else {
        if shared.config.takes_tokens() {
            // Those who have tokens get in.
            return Ok(());
        }
        tracing::warn!(
            "a listener asks clients for passwords, and there is no user: nobody gets in there but who has a certificate; name a user in auth.first_user with auth.first_user_password_file and start again, or make one with a certificate (`kera user create NAME`)"
        );
        return Ok(());
    };
    let password = password_in(file).map_err(BrokerError::FirstUser)?;
    let changes = Mechanism::ALL.map(|mechanism| {
        let made = NewCredential::of_password(mechanism, &password);
        made.map(|made| (name.clone(), Change::Put(made)))
    });
    let changes: Result<Vec<_>, _> = changes.into_iter().collect();
    let changes = changes.map_err(|error| BrokerError::FirstUser(error.to_string()))?;
    let made = alter_if(shared, &changes, <[_]>::is_empty).await;
    let made: Result<Vec<()>, _> = made.map_err(refused)?.into_iter().collect();
    if !made.map_err(refused)?.is_empty() {
        tracing::info!(
            user = name,
            "the first user was made, as auth.first_user says"
        );
    }
    Ok(())
}

fn refused(error: WireError) -> BrokerError {
    BrokerError::FirstUser(error.to_string())
}

fn password_in(file: &Path) -> Result<String, String> {
    let shown = file.display();
    login::password_in_file(file).map_err(|error| match error {
        PasswordError::Length(bytes) => format!(
            "auth.first_user_password_file: the first line of {shown} is the password, and has {bytes} bytes; 1 to {MOST_PASSWORD_BYTES} are taken"
        ),
        error => format!(
            "auth.first_user_password_file: {shown} cannot be read: {error}; check the path and its permissions"
        ),
    })
}
