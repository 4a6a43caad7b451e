//! DescribeUserScramCredentials and AlterUserScramCredentials: users and their passwords, as Kafka's tools see them.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use kafka_protocol::messages::describe_user_scram_credentials_response::{
    CredentialInfo, DescribeUserScramCredentialsResult,
};
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::audit;
use kera_broker::auth::scram::Mechanism;
use kera_broker::auth::{self, Change, NewCredential};
use kera_metadata::User;
use kera_protocol::error::{ErrorCode, WireError};

use crate::context::Ctx;
use crate::refusal::{Refusal, doubled, text};

/// Users with the mechanisms that they have passwords for; passwords are known to nobody.
pub(crate) async fn describe(
    ctx: &Ctx,
    version: i16,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let refused = |refusal: Refusal| {
        DescribeUserScramCredentialsResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text()))
    };
    if let Err(refusal) = ctx.check_cluster() {
        return refused(refusal);
    }
    let users = match auth::list(&ctx.shared).await {
        Ok(users) => users,
        Err(error) => return refused(error.into()),
    };
    let asked = request.users.unwrap_or_default();
    let twice = doubled(asked.iter().map(|user| user.name.as_str()));
    let found: Vec<_> = match asked.is_empty() {
        true => users.iter().map(described).collect(),
        false => {
            let mut seen = HashSet::new();
            let asked = asked.iter().filter(|user| seen.insert(user.name.clone()));
            let found = asked.map(|user| match twice.contains(user.name.as_str()) {
                true => missing(
                    &user.name,
                    ResponseError::DuplicateResource,
                    "it is named twice",
                ),
                false => {
                    let mut users = users.iter();
                    let known = users.find(|known| known.name == user.name.as_str());
                    let error = ResponseError::ResourceNotFound;
                    known.map_or_else(
                        || missing(&user.name, error, "there is no such user"),
                        described,
                    )
                }
            });
            found.collect()
        }
    };
    let mut results = Vec::with_capacity(found.len());
    for result in found {
        if !ctx.has_room_for_item(&result, version).await {
            return refused(Refusal::too_long());
        }
        results.push(result);
    }
    DescribeUserScramCredentialsResponse::default()
        .with_error_message(None)
        .with_results(results)
}

fn missing(
    name: &StrBytes,
    error: ResponseError,
    why: &'static str,
) -> DescribeUserScramCredentialsResult {
    DescribeUserScramCredentialsResult::default()
        .with_user(name.clone())
        .with_error_code(error.code())
        .with_error_message(Some(StrBytes::from_static_str(why)))
}

fn described(user: &User) -> DescribeUserScramCredentialsResult {
    let infos = user.credentials.iter().map(|one| {
        CredentialInfo::default()
            .with_mechanism(one.mechanism as i8)
            .with_iterations(i32::try_from(one.iterations).unwrap_or(i32::MAX))
    });
    DescribeUserScramCredentialsResult::default()
        .with_user(text(user.name.as_str()))
        .with_error_message(None)
        .with_credential_infos(infos.collect())
}

/// Gives passwords and takes them.
pub(crate) async fn alter(
    ctx: &Ctx,
    _version: i16,
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse {
    let denied = ctx.check_cluster().err();
    let mut wanted: Vec<(StrBytes, Result<Change, Refusal>)> = Vec::new();
    for deletion in request.deletions {
        let mechanism = known(deletion.mechanism);
        let change = mechanism.map(|mechanism| Change::Delete(Some(mechanism)));
        wanted.push((deletion.name, change));
    }
    for put in request.upsertions {
        let change = known(put.mechanism).map(|mechanism| {
            Change::Put(NewCredential {
                mechanism,
                iterations: u32::try_from(put.iterations).unwrap_or_default(),
                salt: put.salt.to_vec(),
                salted: put.salted_password.to_vec(),
            })
        });
        wanted.push((put.name, change));
    }
    // As at Kafka: one mechanism of a user changes once in a request, and each user has one result.
    let mut seen = HashSet::new();
    let number = |change: &Result<Change, Refusal>| match change {
        Ok(Change::Put(put)) => Some(put.mechanism),
        Ok(Change::Delete(mechanism)) => *mechanism,
        Err(_) => None,
    };
    for (name, change) in &mut wanted {
        if !seen.insert((name.clone(), number(change))) && change.is_ok() {
            let why = "a user's password for one mechanism is changed twice in one request";
            *change = Err(Refusal::new(ResponseError::DuplicateResource, why));
        }
        if let Some(refusal) = &denied {
            *change = Err(refusal.clone());
        }
    }
    let refused: HashSet<StrBytes> = wanted
        .iter()
        .filter(|(_, change)| change.is_err())
        .map(|(name, _)| name.clone())
        .collect();
    let whole: Vec<(String, Change)> = wanted
        .iter()
        .filter(|(name, _)| !refused.contains(name))
        .filter_map(|(name, change)| Some((name.to_string(), change.as_ref().ok()?.clone())))
        .collect();
    let attempts = whole.iter().map(|(name, change)| {
        let (action, mechanism) = match change {
            Change::Put(put) => ("put_user", Some(put.mechanism)),
            Change::Delete(mechanism) => ("delete_user", *mechanism),
        };
        let detail = mechanism.map_or(String::new(), |one| one.to_string());
        ctx.attempt(audit::Change::new(action, "user", name, detail))
    });
    let attempts: Vec<_> = attempts.collect();
    let made = match whole.is_empty() {
        true => Ok(Vec::new()),
        false => auth::alter(&ctx.shared, &whole).await,
    };
    for (at, attempt) in attempts.into_iter().enumerate() {
        let one = made.as_ref().map(|made| made.get(at));
        match one {
            Ok(Some(one)) => attempt.end(one.as_ref()),
            Ok(None) => attempt.may_be_made("nothing says what became of it"),
            Err(error) => attempt.end(Err::<&(), _>(error)),
        }
    }
    let mut made = made.map(Vec::into_iter);
    let mut results: Vec<(StrBytes, Option<Refusal>)> = Vec::new();
    for (name, change) in wanted {
        let refusal = match (change, &mut made) {
            (Err(refusal), _) => Some(refusal),
            (Ok(_), _) if refused.contains(&name) => None,
            (Ok(_), Ok(made)) => made.next().and_then(Result::err).map(of_user),
            (Ok(_), Err(error)) => Some(of_user(error.clone())),
        };
        match results.iter_mut().find(|(known, _)| *known == name) {
            Some((_, first)) => *first = first.take().or(refusal),
            None => results.push((name, refusal)),
        }
    }
    let results = results.into_iter().map(|(name, refusal)| {
        let result = AlterUserScramCredentialsResult::default().with_error_message(None);
        let result = match refusal {
            None => result,
            Some(refusal) => result
                .with_error_code(refusal.code)
                .with_error_message(Some(refusal.text())),
        };
        result.with_user(name)
    });
    AlterUserScramCredentialsResponse::default().with_results(results.collect())
}

fn of_user(error: WireError) -> Refusal {
    let kafka = match error.code {
        ErrorCode::UnknownUser => ResponseError::ResourceNotFound,
        ErrorCode::InvalidArgument => ResponseError::UnacceptableCredential,
        _ => return error.into(),
    };
    Refusal::new(kafka, error.message)
}

fn known(number: i8) -> Result<Mechanism, Refusal> {
    let known = u32::try_from(number).ok().and_then(Mechanism::of_number);
    known.ok_or_else(|| {
        let why = format!("there is no mechanism {number}; 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512");
        Refusal::new(ResponseError::UnsupportedSaslMechanism, why)
    })
}
