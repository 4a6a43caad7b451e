//! The `Quotas` service: control calls to [`crate::quotas`].

use std::sync::Arc;

use kera_grpc::serve::Caller;
use kera_grpc::v1::quotas_server::Quotas;
use kera_metadata::Quota;
use kera_metadata::quota::{QuotaEntity, Whom};
use kera_protocol::error::WireError;
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::status;
use crate::access::attempt;
use crate::audit;
use crate::quotas::{self, Change};
use crate::shared::Shared;

/// Serves quotas.
pub(super) struct QuotasService {
    shared: Arc<Shared>,
}

impl QuotasService {
    /// A service over the broker's metadata store.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl Quotas for QuotasService {
    async fn list_quotas(
        &self,
        _request: Request<v1::ListQuotasRequest>,
    ) -> Result<Response<v1::ListQuotasResponse>, Status> {
        let quotas = quotas::list(&self.shared).await.map_err(status)?;
        Ok(Response::new(v1::ListQuotasResponse {
            quotas: quotas.into_iter().map(message_of).collect(),
        }))
    }

    async fn alter_quota(
        &self,
        request: Request<v1::AlterQuotaRequest>,
    ) -> Result<Response<v1::AlterQuotaResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let set = request.set.into_iter();
        let set = set.map(|(name, value)| (name, Some(value)));
        let removed = request.remove.into_iter().map(|name| (name, None));
        let change = Change {
            entity: entity_of(request.entity.unwrap_or_default()),
            limits: removed.chain(set).collect(),
        };
        let what = audit::Change::new(
            "alter_quota",
            "quota",
            change.entity.to_string(),
            change.limits_text(),
        );
        let attempt = attempt(&self.shared, caller.as_ref(), what);
        let made = quotas::alter(&self.shared, std::slice::from_ref(&change), false).await;
        let made: Result<(), WireError> = made.and_then(|made| made.into_iter().collect());
        if let Some(attempt) = attempt {
            attempt.end(made.as_ref());
        }
        made.map_err(status)?;
        Ok(Response::new(v1::AlterQuotaResponse {}))
    }
}

fn message_of(quota: Quota) -> v1::QuotaInfo {
    let whom = |whom: Option<Whom>| {
        whom.map(|whom| v1::Whom {
            name: match whom {
                Whom::Default => None,
                Whom::Name(name) => Some(name),
            },
        })
    };
    let limits = quota.limits.iter();
    v1::QuotaInfo {
        entity: Some(v1::QuotaEntity {
            user: whom(quota.entity.user),
            client_id: whom(quota.entity.client),
            address: whom(quota.entity.ip),
        }),
        limits: limits
            .map(|(kind, limit)| (kind.name().to_owned(), limit.value()))
            .collect(),
    }
}

fn entity_of(entity: v1::QuotaEntity) -> QuotaEntity {
    let whom =
        |whom: Option<v1::Whom>| whom.map(|whom| whom.name.map_or(Whom::Default, Whom::Name));
    QuotaEntity {
        user: whom(entity.user),
        client: whom(entity.client_id),
        ip: whom(entity.address),
    }
}
