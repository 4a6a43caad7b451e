//! The `Access` service: control calls to [`crate::access`].

use std::sync::Arc;

use kera_grpc::serve::Caller;
use kera_grpc::v1::access_server::Access;
use kera_metadata::Rule;
use kera_metadata::access::{Kind, Operation, Pattern, Permission};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::status;
use crate::access::{self, Alter, Filter, Seen, attempt};
use crate::audit::{Attempt, Change, members_texts};
use crate::shared::Shared;

/// What a filter has for "every pattern that the name fits".
const MATCH: u32 = 2;

/// Serves the rules of access.
pub(super) struct AccessService {
    shared: Arc<Shared>,
}

impl AccessService {
    /// A service over the broker's metadata store.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl Access for AccessService {
    async fn list_rules(
        &self,
        request: Request<v1::ListRulesRequest>,
    ) -> Result<Response<v1::ListRulesResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let filter = filter_of(filter).map_err(status)?;
        let rules = access::list(&self.shared, filter).await.map_err(status)?;
        Ok(Response::new(v1::ListRulesResponse {
            rules: rules.into_iter().map(message_of).collect(),
            enforced: self.shared.access.is_enforced(),
        }))
    }

    async fn add_rules(
        &self,
        request: Request<v1::AddRulesRequest>,
    ) -> Result<Response<v1::AddRulesResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let rules = request.into_inner().rules.into_iter().map(rule_of);
        let rules = rules.collect::<Result<Vec<_>, _>>().map_err(status)?;
        let attempts: Vec<Attempt> = rules
            .iter()
            .filter_map(|rule| {
                let change = Change::new("add_rule", "rule", rule.to_string(), "");
                attempt(&self.shared, caller.as_ref(), change)
            })
            .collect();
        let added = access::add(&self.shared, &rules).await;
        for attempt in attempts {
            attempt.end(added.as_ref());
        }
        let added = added.map_err(status)?;
        Ok(Response::new(v1::AddRulesResponse {
            added: u32::try_from(added).unwrap_or(u32::MAX),
        }))
    }

    async fn remove_rules(
        &self,
        request: Request<v1::RemoveRulesRequest>,
    ) -> Result<Response<v1::RemoveRulesResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let filters = request.into_inner().filters.into_iter().map(filter_of);
        let filters = filters.collect::<Result<Vec<_>, _>>().map_err(status)?;
        let texts: Vec<String> = filters.iter().map(Filter::to_string).collect();
        let change = Change::new("remove_rule", "rule", texts.join("; "), "");
        let attempt = attempt(&self.shared, caller.as_ref(), change);
        let removed = access::remove(&self.shared, &filters).await;
        if let Some(attempt) = attempt {
            match &removed {
                Ok(removed) => attempt.made_each(removed.iter().flatten().map(Rule::to_string)),
                Err(error) => attempt.end(Err::<&(), _>(error)),
            }
        }
        let removed = removed.map_err(status)?.into_iter().flatten();
        Ok(Response::new(v1::RemoveRulesResponse {
            rules: removed.map(message_of).collect(),
        }))
    }

    async fn list_roles(
        &self,
        _request: Request<v1::ListRolesRequest>,
    ) -> Result<Response<v1::ListRolesResponse>, Status> {
        let roles = access::list_roles(&self.shared).await.map_err(status)?;
        Ok(Response::new(v1::ListRolesResponse {
            roles: roles.into_iter().map(role_of).collect(),
        }))
    }

    async fn alter_role(
        &self,
        request: Request<v1::AlterRoleRequest>,
    ) -> Result<Response<v1::AlterRoleResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let attempts: Vec<Attempt> = members_texts(&request)
            .iter()
            .filter_map(|text| {
                let change = Change::new("alter_role", "role", &request.name, text);
                attempt(&self.shared, caller.as_ref(), change)
            })
            .collect();
        let alter = Alter {
            name: request.name,
            only_new: request.only_new,
            only_known: request.only_known,
            add: request.add,
            remove: request.remove,
        };
        let altered = access::alter_role(&self.shared, &alter).await;
        for attempt in attempts {
            attempt.end(altered.as_ref());
        }
        let altered = altered.map_err(status)?;
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        Ok(Response::new(v1::AlterRoleResponse {
            added: count(altered.added),
            removed: count(altered.removed),
            role: Some(role_of(altered.seen)),
        }))
    }

    async fn delete_role(
        &self,
        request: Request<v1::DeleteRoleRequest>,
    ) -> Result<Response<v1::DeleteRoleResponse>, Status> {
        let v1::DeleteRoleRequest { name, with_rules } = request.into_inner();
        let deleted = access::delete_role(&self.shared, &name, with_rules).await;
        let (role, rules) = deleted.map_err(status)?;
        let seen = Seen {
            rules: rules.len(),
            role,
        };
        Ok(Response::new(v1::DeleteRoleResponse {
            role: Some(role_of(seen)),
            rules: rules.into_iter().map(message_of).collect(),
        }))
    }
}

fn role_of(seen: Seen) -> v1::AccessRole {
    v1::AccessRole {
        name: seen.role.name,
        members: seen.role.members,
        rules: u32::try_from(seen.rules).unwrap_or(u32::MAX),
    }
}

fn message_of(rule: Rule) -> v1::AccessRule {
    v1::AccessRule {
        kind: rule.kind.number().into(),
        name: rule.name,
        pattern: rule.pattern.number().into(),
        principal: rule.principal,
        host: rule.host,
        operation: rule.operation.number().into(),
        permission: rule.permission.number().into(),
    }
}

fn rule_of(message: v1::AccessRule) -> Result<Rule, WireError> {
    Ok(Rule {
        kind: known("kind", message.kind, Kind::of_number)?,
        name: message.name,
        pattern: known("pattern", message.pattern, Pattern::of_number)?,
        principal: message.principal,
        host: message.host,
        operation: known("operation", message.operation, Operation::of_number)?,
        permission: known("permission", message.permission, Permission::of_number)?,
    })
}

fn filter_of(message: v1::RuleFilter) -> Result<Filter, WireError> {
    fn if_any<T>(
        what: &str,
        number: u32,
        of: impl Fn(u32) -> Option<T>,
    ) -> Result<Option<T>, WireError> {
        match number {
            0 => Ok(None),
            number => known(what, number, of).map(Some),
        }
    }
    let matching = message.pattern == MATCH;
    let pattern = if matching { 0 } else { message.pattern };
    Ok(Filter {
        kind: if_any("kind", message.kind, Kind::of_number)?,
        name: message.name,
        pattern: if_any("pattern", pattern, Pattern::of_number)?,
        matching,
        principal: message.principal,
        host: message.host,
        operation: if_any("operation", message.operation, Operation::of_number)?,
        permission: if_any("permission", message.permission, Permission::of_number)?,
    })
}

fn known<T>(what: &str, number: u32, of: impl Fn(u32) -> Option<T>) -> Result<T, WireError> {
    of(number).ok_or_else(|| {
        let text = format!("a rule's {what} is {number}, which this broker does not know");
        WireError::new(ErrorCode::InvalidArgument, text)
    })
}
