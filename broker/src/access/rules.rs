//! What rules say, found by name.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use kera_metadata::access::{ANY, Kind, Operation, Pattern, Permission, USER};
use kera_metadata::{Rule, RulesRecord};

/// The members of a role.
type Members = Arc<HashSet<String>>;

/// Whom a rule is about.
#[derive(Clone, Debug)]
enum Whom {
    Everybody,
    User(Box<str>),
    Role(Members),
}

impl Whom {
    /// A role that is not there has nobody.
    fn of(rule: &Rule, roles: &HashMap<&str, Members>) -> Self {
        if let Some(role) = rule.role() {
            return Self::Role(roles.get(role).cloned().unwrap_or_default());
        }
        match rule.principal.strip_prefix(USER).unwrap_or_default() {
            ANY => Self::Everybody,
            user => Self::User(user.into()),
        }
    }

    fn is(&self, user: &str) -> bool {
        match self {
            Self::Everybody => true,
            Self::User(known) => **known == *user,
            Self::Role(members) => members.contains(user),
        }
    }
}

/// Whom a rule is about, and what of the thing it stands at.
#[derive(Clone, Debug)]
struct Entry {
    whom: Whom,
    /// From where; `None`: from everywhere.
    host: Option<IpAddr>,
    operation: Operation,
    permission: Permission,
}

impl Entry {
    fn of(rule: &Rule, roles: &HashMap<&str, Members>) -> Self {
        Self {
            whom: Whom::of(rule, roles),
            // A host is `*` or an address: see `Rule::check`.
            host: rule
                .host
                .parse()
                .ok()
                .map(|host: IpAddr| host.to_canonical()),
            operation: rule.operation,
            permission: rule.permission,
        }
    }

    fn is_about(&self, user: &str, host: IpAddr) -> bool {
        self.whom.is(user) && self.host.is_none_or(|known| known == host)
    }
}

/// True if who may do `allowed` may do `wanted` as well, as at Kafka.
fn implies(allowed: Operation, wanted: Operation) -> bool {
    use Operation as O;
    if allowed == wanted || allowed == O::All {
        return true;
    }
    match wanted {
        O::Describe => matches!(allowed, O::Read | O::Write | O::Delete | O::Alter),
        O::DescribeConfigs => allowed == O::AlterConfigs,
        _ => false,
    }
}

/// The rules about things of one kind.
#[derive(Clone, Debug, Default)]
struct OfKind {
    /// By name; [`ANY`] for all.
    literal: HashMap<String, Vec<Entry>>,
    /// By what names begin with.
    prefixed: HashMap<String, Vec<Entry>>,
    /// The lengths of these.
    lengths: BTreeSet<usize>,
}

impl OfKind {
    /// The rules whose name fits.
    fn fitting<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Entry> {
        let lengths = self.lengths.range(..=name.len());
        let prefixes = lengths.filter_map(|length| name.get(..*length));
        let prefixed = prefixes.filter_map(|prefix| self.prefixed.get(prefix));
        let literal = [name, ANY].into_iter();
        let literal = literal.filter_map(|name| self.literal.get(name));
        literal.chain(prefixed).flatten()
    }
}

/// All rules, as they are asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    kinds: HashMap<Kind, OfKind>,
    /// Addresses for which alone some rule counts.
    pub(super) hosts: HashSet<IpAddr>,
    pub(super) revision: u64,
}

/// Who asks: a user's name, and an address that is no IPv4 address in IPv6's clothes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) user: &'a str,
    pub(super) host: IpAddr,
}

impl Rules {
    pub(super) fn of(record: &RulesRecord) -> Self {
        let roles = record.roles.iter().map(|role| {
            let members: HashSet<_> = role.members.iter().cloned().collect();
            (&*role.name, Arc::new(members))
        });
        let roles: HashMap<&str, Members> = roles.collect();
        let mut kinds: HashMap<Kind, OfKind> = HashMap::new();
        for rule in &record.rules {
            let kind = kinds.entry(rule.kind).or_default();
            let names = match rule.pattern {
                Pattern::Literal => &mut kind.literal,
                Pattern::Prefixed => {
                    kind.lengths.insert(rule.name.len());
                    &mut kind.prefixed
                }
            };
            let entries = names.entry(rule.name.clone()).or_default();
            entries.push(Entry::of(rule, &roles));
        }
        let hosts = record
            .rules
            .iter()
            .filter_map(|rule| rule.host.parse().ok());
        let hosts = hosts.map(|host: IpAddr| host.to_canonical());
        Self {
            kinds,
            hosts: hosts.collect(),
            revision: record.revision,
        }
    }

    /// Whether the rules let somebody do something. `otherwise` is the answer where no rule is about the thing, whoever
    /// it names.
    pub(super) fn allow(
        &self,
        asker: Asker<'_>,
        operation: Operation,
        (kind, name): (Kind, &str),
        otherwise: bool,
    ) -> bool {
        let Some(rules) = self.kinds.get(&kind) else {
            return otherwise;
        };
        let (mut is_known, mut allowed) = (false, false);
        for entry in rules.fitting(name) {
            is_known = true;
            if !entry.is_about(asker.user, asker.host) {
                continue;
            }
            match entry.permission {
                Permission::Deny if denies(entry, operation) => return false,
                Permission::Deny => {}
                Permission::Allow => allowed |= implies(entry.operation, operation),
            }
        }
        if is_known { allowed } else { otherwise }
    }

    /// Whether somebody may do something to at least one thing of a kind, there or not.
    pub(super) fn allow_any(
        &self,
        asker: Asker<'_>,
        operation: Operation,
        kind: Kind,
        otherwise: bool,
    ) -> bool {
        let Some(rules) = self.kinds.get(&kind) else {
            return otherwise;
        };
        let about = |entry: &&Entry| entry.is_about(asker.user, asker.host);
        let denied = |entries: &[Entry]| {
            let mut entries = entries.iter().filter(about);
            entries.any(|entry| entry.permission == Permission::Deny && denies(entry, operation))
        };
        let allowed = |entries: &[Entry]| {
            let mut entries = entries.iter().filter(about);
            entries.any(|entry| {
                entry.permission == Permission::Allow && implies(entry.operation, operation)
            })
        };
        if rules.literal.get(ANY).is_some_and(|all| denied(all)) {
            return false;
        }
        if otherwise || rules.literal.get(ANY).is_some_and(|all| allowed(all)) {
            return true;
        }
        let mut names = rules.literal.iter();
        let named = names.any(|(name, entries)| {
            allowed(entries) && self.allow(asker, operation, (kind, name), false)
        });
        // What is denied by name leaves others that begin so.
        named
            || rules.prefixed.iter().any(|(prefix, entries)| {
                let shorter = rules.lengths.range(..=prefix.len());
                let mut shorter = shorter.filter_map(|length| prefix.get(..*length));
                let is_denied =
                    shorter.any(|one| rules.prefixed.get(one).is_some_and(|e| denied(e)));
                allowed(entries) && !is_denied
            })
    }
}

/// What is denied is exactly that: a rule that denies writing lets see.
fn denies(entry: &Entry, operation: Operation) -> bool {
    entry.operation == operation || entry.operation == Operation::All
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
