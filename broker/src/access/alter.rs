//! Seeing and changing the rules of access.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kera_metadata::access::{ANY, Kind, Operation, Pattern, Permission};
use kera_metadata::{Feature, Rule, RulesRecord};
use kera_protocol::error::{ErrorCode, WireError};

use super::roles::{about_nobody, unknown};
use crate::replaced_record::{change_record, read_record};
use crate::shared::Shared;

/// Which rules are meant. What is `None` fits all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// What the rule is about.
    pub kind: Option<Kind>,
    /// Its name.
    pub name: Option<String>,
    /// How the rule's name is compared.
    pub pattern: Option<Pattern>,
    /// With a name and without a pattern: every rule that is about a thing of this name, and not only those that have the
    /// name themselves.
    pub matching: bool,
    /// Whom it is about.
    pub principal: Option<String>,
    /// From where.
    pub host: Option<String>,
    /// What they do.
    pub operation: Option<Operation>,
    /// Whether they may.
    pub permission: Option<Permission>,
}

impl fmt::Display for Filter {
    /// What it asks for; nothing of it fits all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone();
        let pattern = match self.matching {
            true => Some("match".to_owned()),
            false => self.pattern.map(|one| one.to_string()),
        };
        let parts = [
            ("permission", self.permission.map(|one| one.to_string())),
            ("principal", text(&self.principal)),
            ("host", text(&self.host)),
            ("operation", self.operation.map(|one| one.to_string())),
            ("kind", self.kind.map(|one| one.to_string())),
            ("name", text(&self.name)),
            ("pattern", pattern),
        ];
        let named = parts.into_iter();
        let named = named.filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        let named: Vec<_> = named.collect();
        match named.is_empty() {
            true => f.write_str("all rules"),
            false => f.write_str(&named.join(" ")),
        }
    }
}

impl Filter {
    /// True if `rule` is meant.
    pub fn fits(&self, rule: &Rule) -> bool {
        fn is<T: PartialEq + ?Sized>(wanted: Option<&T>, found: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == found)
        }
        let name = match &self.name {
            None => true,
            Some(name) if self.matching && self.pattern.is_none() => match rule.pattern {
                Pattern::Literal => rule.name == *name || rule.name == ANY,
                Pattern::Prefixed => name.starts_with(&rule.name),
            },
            Some(name) => rule.name == *name,
        };
        name && is(self.kind.as_ref(), &rule.kind)
            && is(self.pattern.as_ref(), &rule.pattern)
            && is(self.principal.as_ref(), &rule.principal)
            && is(self.host.as_ref(), &rule.host)
            && is(self.operation.as_ref(), &rule.operation)
            && is(self.permission.as_ref(), &rule.permission)
    }
}

/// The rules that are recorded.
///
/// # Errors
/// What the metadata store answers.
pub async fn list(shared: &Arc<Shared>, filter: Filter) -> Result<Vec<Rule>, WireError> {
    let recorded = read_record(&shared.metadata, |store| store.rules());
    let mut rules = recorded.await?.rules;
    rules.retain(|rule| filter.fits(rule));
    Ok(rules)
}

/// Adds rules, all or none; how many were not there before.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a rule that nobody could match, too many of them, or one about a role that is not there or
/// before the cluster version has roles; or what the metadata store answers.
pub async fn add(shared: &Arc<Shared>, rules: &[Rule]) -> Result<usize, WireError> {
    for rule in rules {
        rule.check()
            .map_err(|problem| WireError::new(ErrorCode::InvalidArgument, problem))?;
    }
    if rules.iter().any(|rule| rule.role().is_some()) {
        shared.require(Feature::Roles)?;
    }
    change(shared, |record, known| {
        if let Some(role) = about_nobody(rules, record) {
            return Err(unknown(role));
        }
        let before = known.len();
        known.extend(rules.iter().cloned());
        Ok(known.len() - before)
    })
    .await
}

/// Why the rule would be about nobody, of each of these that are: its role is not there.
///
/// # Errors
/// What the metadata store answers.
pub async fn refused_roles(
    shared: &Arc<Shared>,
    rules: &[Rule],
) -> Result<Vec<Option<WireError>>, WireError> {
    let is_any = rules.iter().any(|rule| rule.role().is_some());
    // Without roles the cluster version is what is to be told.
    if !is_any || shared.require(Feature::Roles).is_err() {
        return Ok(vec![None; rules.len()]);
    }
    let record = read_record(&shared.metadata, |store| store.rules()).await?;
    let each = rules.iter().map(std::slice::from_ref);
    Ok(each
        .map(|rule| about_nobody(rule, &record).map(unknown))
        .collect())
}

/// Removes the rules that fit one of the filters, all at once; for each filter those that it removed, each with the
/// first filter that it fits.
///
/// # Errors
/// What the metadata store answers.
pub async fn remove(shared: &Arc<Shared>, filters: &[Filter]) -> Result<Vec<Vec<Rule>>, WireError> {
    change(shared, |_, known| {
        let mut removed = vec![Vec::new(); filters.len()];
        known.retain(|rule| {
            let Some(at) = filters.iter().position(|filter| filter.fits(rule)) else {
                return true;
            };
            removed[at].push(rule.clone());
            false
        });
        Ok(removed)
    })
    .await
}

async fn change<T>(
    shared: &Arc<Shared>,
    change: impl Fn(&RulesRecord, &mut BTreeSet<Rule>) -> Result<T, WireError>,
) -> Result<T, WireError> {
    let changed = change_record(
        &shared.metadata,
        |store| store.rules(),
        |record| {
            let mut rules: BTreeSet<Rule> = record.rules.iter().cloned().collect();
            let answer = change(record, &mut rules)?;
            let rules: Vec<_> = rules.into_iter().collect();
            let is_other = rules != record.rules;
            record.rules = rules;
            Ok((answer, is_other))
        },
        |record| shared.access.take(record),
    );
    Ok(changed.await?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: Pattern, name: &str) -> Rule {
        Rule {
            kind: Kind::Stream,
            name: name.to_owned(),
            pattern,
            principal: "User:ann".to_owned(),
            host: ANY.to_owned(),
            operation: Operation::Read,
            permission: Permission::Allow,
        }
    }

    #[test]
    fn a_filter_without_a_word_fits_all_and_each_word_narrows_it() {
        let one = rule(Pattern::Literal, "clicks");
        assert!(Filter::default().fits(&one));
        type Change = fn(&mut Filter);
        let narrower: [(Change, bool); 7] = [
            (|f| f.kind = Some(Kind::Group), false),
            (|f| f.principal = Some("User:bob".to_owned()), false),
            (|f| f.host = Some("10.0.0.1".to_owned()), false),
            (|f| f.operation = Some(Operation::Write), false),
            (|f| f.permission = Some(Permission::Deny), false),
            (|f| f.pattern = Some(Pattern::Prefixed), false),
            (|f| f.name = Some("clicks".to_owned()), true),
        ];
        for (change, fits) in narrower {
            let mut filter = Filter::default();
            change(&mut filter);
            assert_eq!(filter.fits(&one), fits, "{filter:?}");
        }
    }

    #[test]
    fn matching_finds_what_is_about_the_name() {
        let rules = [
            rule(Pattern::Literal, "clicks"),
            rule(Pattern::Literal, ANY),
            rule(Pattern::Prefixed, "cl"),
            rule(Pattern::Prefixed, "x"),
        ];
        let mut filter = Filter {
            name: Some("clicks".to_owned()),
            matching: true,
            ..Filter::default()
        };
        let fitting = rules.each_ref().map(|rule| filter.fits(rule));
        assert_eq!(fitting, [true, true, true, false]);
        filter.matching = false;
        let fitting = rules.each_ref().map(|rule| filter.fits(rule));
        assert_eq!(fitting, [true, false, false, false]);
    }
}
