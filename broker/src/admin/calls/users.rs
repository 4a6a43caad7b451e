//! The `Users` service: control calls to [`crate::auth`].

use std::sync::Arc;

use kera_grpc::v1::users_server::Users;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_rpc::scram::Mechanism;
use tonic::{Request, Response, Status};

use super::status;
use crate::auth::{self, Change, NewCredential};
use crate::shared::Shared;

/// Serves users.
pub(super) struct UsersService {
    shared: Arc<Shared>,
}

impl UsersService {
    /// A service over the broker's metadata store.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn alter(&self, changes: &[(String, Change)]) -> Result<(), Status> {
        let made = auth::alter(&self.shared, changes).await.map_err(status)?;
        let made: Result<(), WireError> = made.into_iter().collect();
        made.map_err(status)
    }
}

#[tonic::async_trait]
impl Users for UsersService {
    async fn list_users(
        &self,
        _request: Request<v1::ListUsersRequest>,
    ) -> Result<Response<v1::ListUsersResponse>, Status> {
        let users = auth::list(&self.shared).await.map_err(status)?;
        let users = users.into_iter().map(|user| v1::UserInfo {
            name: user.name,
            credentials: user
                .credentials
                .into_iter()
                .map(|one| v1::CredentialInfo {
                    mechanism: one.mechanism.into(),
                    iterations: one.iterations,
                })
                .collect(),
        });
        Ok(Response::new(v1::ListUsersResponse {
            users: users.collect(),
            required: self.shared.config.asks_clients(),
        }))
    }

    async fn put_user(
        &self,
        request: Request<v1::PutUserRequest>,
    ) -> Result<Response<v1::PutUserResponse>, Status> {
        let request = request.into_inner();
        let changes = request.passwords.into_iter().map(|password| {
            let number = password.mechanism;
            let mechanism = Mechanism::of_number(number).ok_or_else(|| {
                let text = format!("there is no mechanism {number}");
                WireError::new(ErrorCode::InvalidArgument, text)
            })?;
            let credential = NewCredential {
                mechanism,
                iterations: password.iterations,
                salt: password.salt.to_vec(),
                salted: password.salted.to_vec(),
            };
            Ok((request.name.clone(), Change::Put(credential)))
        });
        let changes: Vec<_> = changes.collect::<Result<_, WireError>>().map_err(status)?;
        if changes.is_empty() {
            let error = WireError::new(ErrorCode::InvalidArgument, "a user needs a password");
            return Err(status(error));
        }
        self.alter(&changes).await?;
        Ok(Response::new(v1::PutUserResponse {}))
    }

    async fn delete_user(
        &self,
        request: Request<v1::DeleteUserRequest>,
    ) -> Result<Response<v1::DeleteUserResponse>, Status> {
        let name = request.into_inner().name;
        self.alter(&[(name, Change::Delete(None))]).await?;
        Ok(Response::new(v1::DeleteUserResponse {}))
    }
}
