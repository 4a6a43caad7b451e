//! DescribeAcls, CreateAcls and DeleteAcls: the rules of access by Kafka's names.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::delete_acls_response::{
    DeleteAclsFilterResult, DeleteAclsMatchingAcl,
};
use kafka_protocol::messages::describe_acls_response::{AclDescription, DescribeAclsResource};
use kafka_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsRequest, DescribeAclsResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::access::{self, Filter};
use kera_broker::audit::Change;
use kera_metadata::Rule;
use kera_metadata::access::{Kind, Operation, Pattern, Permission};

use crate::context::Ctx;
use crate::refusal::{Refusal, text};

/// What stands for all in a filter.
const ANY: i8 = 1;
/// The pattern of a filter that finds every rule about a name.
const MATCH: i8 = 2;

/// The rules that a filter finds.
pub(crate) async fn describe_acls(
    ctx: &Ctx,
    version: i16,
    request: DescribeAclsRequest,
) -> DescribeAclsResponse {
    let response = DescribeAclsResponse::default().with_error_message(None);
    let refused = |refusal: Refusal| {
        DescribeAclsResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text()))
    };
    if let Err(refusal) = ctx.check_cluster() {
        return refused(refusal);
    }
    let filter = filter_of(
        (request.resource_type_filter, request.pattern_type_filter),
        request.resource_name_filter.as_ref(),
        [
            request.principal_filter.as_ref(),
            request.host_filter.as_ref(),
        ],
        (request.operation, request.permission_type),
    );
    let found = match filter {
        Ok(filter) => access::list(&ctx.shared, filter).await,
        Err(refusal) => return refused(refusal),
    };
    let rules = match found {
        Ok(rules) => rules,
        Err(error) => return refused(error.into()),
    };
    let mut resources: Vec<DescribeAclsResource> = Vec::new();
    // In order, so that rules about the same stand together.
    for same in
        rules.chunk_by(|a, b| a.kind == b.kind && a.name == b.name && a.pattern == b.pattern)
    {
        let acls = same.iter().map(|rule| {
            AclDescription::default()
                .with_principal(text(rule.principal.as_str()))
                .with_host(text(rule.host.as_str()))
                .with_operation(rule.operation.number() as i8)
                .with_permission_type(rule.permission.number() as i8)
        });
        let resource = DescribeAclsResource::default()
            .with_resource_type(same[0].kind.number() as i8)
            .with_resource_name(text(same[0].name.as_str()))
            .with_pattern_type(same[0].pattern.number() as i8)
            .with_acls(acls.collect());
        if !ctx.has_room_for_item(&resource, version).await {
            return refused(Refusal::too_long());
        }
        resources.push(resource);
    }
    response.with_resources(resources)
}

/// Adds rules. What is wrong with one keeps none of the others from being added.
pub(crate) async fn create_acls(
    ctx: &Ctx,
    _version: i16,
    request: CreateAclsRequest,
) -> CreateAclsResponse {
    let denied = ctx.check_cluster().err();
    let mut rules: Vec<Result<Rule, Refusal>> = request
        .creations
        .iter()
        .map(|creation| match &denied {
            Some(refusal) => Err(refusal.clone()),
            None => rule_of(creation),
        })
        .collect();
    let sound: Vec<Rule> = rules.iter().flatten().cloned().collect();
    // What cannot be told here is told of all when they are added.
    if let Ok(refused) = access::refused_roles(&ctx.shared, &sound).await {
        for (rule, refused) in rules.iter_mut().filter(|rule| rule.is_ok()).zip(refused) {
            if let Some(error) = refused {
                *rule = Err(Refusal::from(error));
            }
        }
    }
    let whole: Vec<Rule> = rules.iter().flatten().cloned().collect();
    let attempts = whole.iter();
    let attempts =
        attempts.map(|rule| ctx.attempt(Change::new("add_rule", "rule", rule.to_string(), "")));
    let attempts: Vec<_> = attempts.collect();
    let added = match whole.is_empty() {
        true => Ok(0),
        false => access::add(&ctx.shared, &whole).await,
    };
    for attempt in attempts {
        attempt.end(added.as_ref());
    }
    let refused = added.err().map(Refusal::from);
    let results = rules.into_iter().map(|rule| {
        let result = AclCreationResult::default().with_error_message(None);
        match rule.err().or_else(|| refused.clone()) {
            None => result,
            Some(refusal) => result
                .with_error_code(refusal.code)
                .with_error_message(Some(refusal.text())),
        }
    });
    CreateAclsResponse::default().with_results(results.collect())
}

/// Removes the rules that filters find, and tells which they were.
pub(crate) async fn delete_acls(
    ctx: &Ctx,
    version: i16,
    request: DeleteAclsRequest,
) -> DeleteAclsResponse {
    let denied = ctx.check_cluster().err();
    let filters: Vec<Result<Filter, Refusal>> = request
        .filters
        .iter()
        .map(|filter| match &denied {
            Some(refusal) => Err(refusal.clone()),
            None => deletion(filter),
        })
        .collect();
    let whole: Vec<Filter> = filters.iter().flatten().cloned().collect();
    let attempts = whole
        .iter()
        .map(|filter| ctx.attempt(Change::new("remove_rule", "rule", filter.to_string(), "")));
    let attempts: Vec<_> = attempts.collect();
    let removed = match whole.is_empty() {
        true => Ok(Vec::new()),
        false => access::remove(&ctx.shared, &whole).await,
    };
    for (at, attempt) in attempts.into_iter().enumerate() {
        match &removed {
            Ok(removed) => attempt.made_each(removed[at].iter().map(Rule::to_string)),
            Err(error) => attempt.end(Err::<&(), _>(error)),
        }
    }
    let mut removed = removed.map(Vec::into_iter).map_err(Refusal::from);
    let mut results = Vec::with_capacity(filters.len());
    for filter in filters {
        let found = filter.and_then(|_| match &mut removed {
            Ok(found) => Ok(found.next().unwrap_or_default()),
            Err(refusal) => Err(refusal.clone()),
        });
        let mut result = DeleteAclsFilterResult::default().with_error_message(None);
        match found {
            Ok(rules) => {
                result.matching_acls = rules.into_iter().map(matching).collect();
            }
            Err(refusal) => {
                result.error_code = refusal.code;
                result.error_message = Some(refusal.text());
            }
        }
        if !ctx.has_room_for_item(&result, version).await {
            // They are removed all the same.
            result.matching_acls = Vec::new();
        }
        results.push(result);
    }
    DeleteAclsResponse::default().with_filter_results(results)
}

fn matching(rule: Rule) -> DeleteAclsMatchingAcl {
    DeleteAclsMatchingAcl::default()
        .with_error_message(None)
        .with_resource_type(rule.kind.number() as i8)
        .with_resource_name(text(rule.name))
        .with_pattern_type(rule.pattern.number() as i8)
        .with_principal(text(rule.principal))
        .with_host(text(rule.host))
        .with_operation(rule.operation.number() as i8)
        .with_permission_type(rule.permission.number() as i8)
}

fn rule_of(creation: &AclCreation) -> Result<Rule, Refusal> {
    let rule = Rule {
        kind: known("resource type", creation.resource_type, Kind::of_number)?,
        name: creation.resource_name.to_string(),
        pattern: known(
            "pattern type",
            creation.resource_pattern_type,
            Pattern::of_number,
        )?,
        principal: creation.principal.to_string(),
        host: creation.host.to_string(),
        operation: known("operation", creation.operation, Operation::of_number)?,
        permission: known(
            "permission type",
            creation.permission_type,
            Permission::of_number,
        )?,
    };
    let checked = rule.check();
    checked.map_err(|problem| Refusal::new(ResponseError::InvalidRequest, problem))?;
    Ok(rule)
}

fn deletion(filter: &DeleteAclsFilter) -> Result<Filter, Refusal> {
    filter_of(
        (filter.resource_type_filter, filter.pattern_type_filter),
        filter.resource_name_filter.as_ref(),
        [
            filter.principal_filter.as_ref(),
            filter.host_filter.as_ref(),
        ],
        (filter.operation, filter.permission_type),
    )
}

fn filter_of(
    (kind, pattern): (i8, i8),
    name: Option<&StrBytes>,
    [principal, host]: [Option<&StrBytes>; 2],
    (operation, permission): (i8, i8),
) -> Result<Filter, Refusal> {
    fn if_any<T>(
        what: &str,
        number: i8,
        of: impl Fn(u32) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        match number {
            ANY => Ok(None),
            number => known(what, number, of).map(Some),
        }
    }
    let matching = pattern == MATCH;
    let pattern = if matching { ANY } else { pattern };
    let owned = |text: Option<&StrBytes>| text.map(ToString::to_string);
    Ok(Filter {
        kind: if_any("resource type", kind, Kind::of_number)?,
        name: owned(name),
        pattern: if_any("pattern type", pattern, Pattern::of_number)?,
        matching,
        principal: owned(principal),
        host: owned(host),
        operation: if_any("operation", operation, Operation::of_number)?,
        permission: if_any("permission type", permission, Permission::of_number)?,
    })
}

fn known<T>(what: &str, number: i8, of: impl Fn(u32) -> Option<T>) -> Result<T, Refusal> {
    let known = u32::try_from(number).ok().and_then(of);
    known.ok_or_else(|| {
        let text = format!("there is no {what} {number}");
        Refusal::new(ResponseError::InvalidRequest, text)
    })
}
