//! Seeing and changing roles: users that rules name together.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_metadata::access::{ROLE, Role, USER, check_role_name};
use kera_metadata::user::check_user_name;
use kera_metadata::{Feature, Rule, RulesRecord};
use kera_protocol::error::{ErrorCode, WireError};

use crate::replaced_record::{change_record, read_record};
use crate::shared::Shared;

/// A role, and how many rules name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) role: Role,
    pub(crate) rules: usize,
}

impl Seen {
    fn of(role: &Role, rules: &[Rule]) -> Self {
        let naming = rules.iter().filter(|rule| names(rule, &role.name));
        Self {
            role: role.clone(),
            rules: naming.count(),
        }
    }
}

fn names(rule: &Rule, role: &str) -> bool {
    rule.role() == Some(role)
}

/// A change of one role.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alter {
    pub(crate) name: String,
    /// Only where there is none of that name.
    pub(crate) only_new: bool,
    /// Only where there is one.
    pub(crate) only_known: bool,
    /// Names of users, with or without [`USER`].
    pub(crate) add: Vec<String>,
    /// Likewise; those that are no members are passed over.
    pub(crate) remove: Vec<String>,
}

/// What a change came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Altered {
    pub(crate) seen: Seen,
    pub(crate) added: usize,
    pub(crate) removed: usize,
}

impl Alter {
    /// Changes the roles of `record`; whether there is anything to write.
    fn make(&self, record: &mut RulesRecord) -> Result<(Altered, bool), WireError> {
        check_role_name(&self.name).map_err(invalid)?;
        let users = |of: &[String]| -> Result<BTreeSet<String>, WireError> {
            let names = of.iter().map(|one| user_of(one));
            let names = names.collect::<Result<BTreeSet<String>, _>>()?;
            for name in &names {
                check_user_name(name).map_err(invalid)?;
            }
            Ok(names)
        };
        let (add, remove) = (users(&self.add)?, users(&self.remove)?);
        if let Some(both) = add.intersection(&remove).next() {
            return Err(invalid(format!(
                "User:{both} is to be added to role {0} and removed from it; say one of the two",
                self.name
            )));
        }
        let found = record
            .roles
            .binary_search_by(|role| role.name.cmp(&self.name));
        let at = match found {
            Ok(_) if self.only_new => {
                let text = format!(
                    "there is a role {0}; `kera role add {0}` gives it members",
                    self.name
                );
                return Err(WireError::new(ErrorCode::InvalidArgument, text));
            }
            Err(_) if self.only_known => return Err(unknown(&self.name)),
            Ok(at) => at,
            Err(at) => {
                let role = Role {
                    name: self.name.clone(),
                    members: Vec::new(),
                };
                record.roles.insert(at, role);
                at
            }
        };
        let role = &mut record.roles[at];
        let before: BTreeSet<String> = role.members.iter().cloned().collect();
        let after: BTreeSet<String> = before.union(&add).cloned().collect();
        role.members = after.difference(&remove).cloned().collect();
        let altered = Altered {
            added: add.difference(&before).count(),
            removed: remove.intersection(&before).count(),
            seen: Seen::of(role, &record.rules),
        };
        let is_other = found.is_err() || altered.added + altered.removed > 0;
        Ok((altered, is_other))
    }
}

/// The name of the user that somebody names, with or without [`USER`].
fn user_of(named: &str) -> Result<String, WireError> {
    match named.strip_prefix(USER) {
        Some(name) => Ok(name.to_owned()),
        // An operator who writes this means the role's members, and would believe that they are members here.
        None if named.starts_with(ROLE) => {
            let named: String = named.chars().take(64).collect();
            Err(invalid(format!(
                "{named:?} is no user, and a role has users and no roles: name its users; a user with that name is `{USER}{named}`"
            )))
        }
        None => Ok(named.to_owned()),
    }
}

/// The first of these rules that is about a role which is not there: it would be about nobody, also one that denies.
pub(super) fn about_nobody<'a>(rules: &'a [Rule], record: &RulesRecord) -> Option<&'a str> {
    let named = rules.iter().filter_map(Rule::role);
    let mut unknown = named.filter(|name| record.roles.iter().all(|role| role.name != *name));
    unknown.next()
}

/// Takes a role, and with `with_rules` those that name it, out of `record`.
fn take_out(
    record: &mut RulesRecord,
    name: &str,
    with_rules: bool,
) -> Result<(Role, Vec<Rule>), WireError> {
    let found = record.roles.iter().position(|role| role.name == name);
    let at = found.ok_or_else(|| unknown(name))?;
    let (naming, others): (Vec<_>, Vec<_>) = std::mem::take(&mut record.rules)
        .into_iter()
        .partition(|rule| names(rule, name));
    if !naming.is_empty() && !with_rules {
        return Err(invalid(format!(
            "{} rules name role {name}, and would be about nobody; `kera role delete {name} --with-rules` removes them too, `kera acl list --principal Role:{name}` shows them",
            naming.len()
        )));
    }
    record.rules = others;
    Ok((record.roles.remove(at), naming))
}

pub(super) fn unknown(name: &str) -> WireError {
    let name: String = name.chars().take(64).collect();
    invalid(format!(
        "there is no role {name:?}; `kera role list` shows those that there are, `kera role create` makes one"
    ))
}

fn invalid(text: impl Into<String>) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

/// All roles, by name.
///
/// # Errors
/// What the metadata store answers.
pub(crate) async fn list_roles(shared: &Arc<Shared>) -> Result<Vec<Seen>, WireError> {
    let recorded = read_record(&shared.metadata, |store| store.rules()).await?;
    let roles = recorded.roles.iter();
    Ok(roles.map(|role| Seen::of(role, &recorded.rules)).collect())
}

/// Makes a role, or changes its members, all at once.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] says what cannot be, or that the cluster version is too old for roles; or what the metadata
/// store answers.
pub(crate) async fn alter_role(shared: &Arc<Shared>, alter: &Alter) -> Result<Altered, WireError> {
    shared.require(Feature::Roles)?;
    let changed = change_record(
        &shared.metadata,
        |store| store.rules(),
        |record| alter.make(record),
        |record| shared.access.take(record),
    );
    Ok(changed.await?.1)
}

/// Deletes a role; answers it with the rules that were removed with it.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if there is none, or rules name it that are to stay; or what the metadata store answers.
pub(crate) async fn delete_role(
    shared: &Arc<Shared>,
    name: &str,
    with_rules: bool,
) -> Result<(Role, Vec<Rule>), WireError> {
    let changed = change_record(
        &shared.metadata,
        |store| store.rules(),
        |record| Ok((take_out(record, name, with_rules)?, true)),
        |record| shared.access.take(record),
    );
    Ok(changed.await?.1)
}

#[cfg(test)]
mod tests {
    use kera_metadata::access::{ANY, Kind, Operation, Pattern, Permission};

    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|one| (*one).to_owned()).collect()
    }

    fn alter(name: &str, add: &[&str], remove: &[&str]) -> Alter {
        Alter {
            name: name.to_owned(),
            add: owned(add),
            remove: owned(remove),
            ..Alter::default()
        }
    }

    fn about(role: &str) -> Rule {
        Rule {
            kind: Kind::Stream,
            name: "orders".to_owned(),
            pattern: Pattern::Literal,
            principal: format!("Role:{role}"),
            host: ANY.to_owned(),
            operation: Operation::Read,
            permission: Permission::Allow,
        }
    }

    #[test]
    fn a_role_is_made_and_its_members_come_and_go() {
        let mut record = RulesRecord::default();
        let (made, is_other) = alter("readers", &["User:bob", "ann", "ann"], &[])
            .make(&mut record)
            .unwrap();
        assert!(is_other);
        assert_eq!((made.added, made.removed), (2, 0));
        assert_eq!(record.roles[0].members, owned(&["ann", "bob"]));
        record.rules.push(about("readers"));
        let again = alter("readers", &["ann"], &["zoe"])
            .make(&mut record)
            .unwrap();
        assert!(!again.1, "nothing is to be written: {again:?}");
        assert_eq!(again.0.seen.rules, 1);
        let (left, _) = alter("readers", &["cy"], &["User:ann"])
            .make(&mut record)
            .unwrap();
        assert_eq!((left.added, left.removed), (1, 1));
        assert_eq!(record.roles[0].members, owned(&["bob", "cy"]));
        // Roles stay in the order of their names.
        alter("admins", &[], &[]).make(&mut record).unwrap();
        let names: Vec<_> = record.roles.iter().map(|role| &*role.name).collect();
        assert_eq!(names, ["admins", "readers"]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let mut record = RulesRecord::default();
        alter("readers", &["ann"], &[]).make(&mut record).unwrap();
        let before = record.clone();
        let new = Alter {
            only_new: true,
            ..alter("readers", &["bob"], &[])
        };
        let known = Alter {
            only_known: true,
            ..alter("writers", &["bob"], &[])
        };
        let refused = [
            (new, "there is a role readers"),
            (known, "there is no role"),
            (alter("*", &[], &[]), "cannot be named"),
            (alter("readers", &["*"], &[]), "a user cannot be named"),
            (alter("Role:readers", &["bob"], &[]), "its name alone"),
            (alter("User:bob", &[], &[]), "its name alone"),
            (alter("readers", &["Role:writers"], &[]), "no roles"),
            (alter("readers", &[], &["Role:writers"]), "no roles"),
            (
                alter("readers", &["bob"], &["User:bob"]),
                "say one of the two",
            ),
        ];
        for (alter, reason) in refused {
            let error = alter.make(&mut record).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(record, before);
        }
    }

    #[test]
    fn a_rule_about_a_role_that_is_not_there_is_found() {
        let mut record = RulesRecord::default();
        alter("readers", &["ann"], &[]).make(&mut record).unwrap();
        let of_user = Rule {
            principal: "User:readers".to_owned(),
            ..about("readers")
        };
        let rules = [of_user, about("readers"), about("raeders")];
        assert_eq!(about_nobody(&rules[..2], &record), None);
        assert_eq!(about_nobody(&rules, &record), Some("raeders"));
        // A user may have a name that begins so, if it is said to be a user's.
        alter("readers", &["User:Role:x"], &[])
            .make(&mut record)
            .unwrap();
        assert_eq!(record.roles[0].members, owned(&["Role:x", "ann"]));
    }

    #[test]
    fn a_role_that_rules_name_is_deleted_with_them_or_not_at_all() {
        let mut record = RulesRecord {
            rules: vec![about("readers"), about("writers")],
            ..RulesRecord::default()
        };
        alter("readers", &["ann"], &[]).make(&mut record).unwrap();
        let refused = take_out(&mut record.clone(), "readers", false).unwrap_err();
        assert!(refused.to_string().contains("--with-rules"), "{refused}");
        let (role, rules) = take_out(&mut record, "readers", true).unwrap();
        assert_eq!(
            (role.members, rules),
            (owned(&["ann"]), vec![about("readers")])
        );
        assert_eq!(record.rules, [about("writers")]);
        assert!(record.roles.is_empty());
        assert!(take_out(&mut record, "readers", true).is_err());
    }
}
