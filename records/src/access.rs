//! Who may do what: rules as Kafka's access control lists have them.

use std::fmt;
use std::net::IpAddr;

use crate::numbered::numbered;
use crate::user::{MAX_USER_NAME, check_user_name};

/// Most rules of a store, and most bytes of their principals, hosts and names: they are one record, and etcd takes no
/// larger one.
pub const MAX_RULES: usize = 8192;
/// See [`MAX_RULES`].
pub const MAX_RULES_BYTES: usize = 768 << 10;
/// Most bytes of a principal, or of the name of what a rule is about.
pub const MAX_RULE_TEXT: usize = 512;
/// Most roles of a store. Their names and those of their members count against [`MAX_RULES_BYTES`].
pub const MAX_ROLES: usize = 1024;
/// Bytes in front of a name in a role as it is stored, at most.
const NAME_LENGTH_BYTES: usize = 8;
/// What a principal begins with that is a user, and one that is a role.
pub const USER: &str = "User:";
/// See [`USER`].
pub const ROLE: &str = "Role:";

/// The name that stands for all of a kind, all hosts, and in `User:*` for all users.
pub const ANY: &str = "*";
/// The name of the cluster among things of its kind.
pub const CLUSTER_NAME: &str = "kafka-cluster";

numbered! {
    /// What a rule is about.
    Kind {
        /// A stream; a topic to Kafka's clients.
        Stream = 2 "stream",
        /// A consumer group.
        Group = 3 "group",
        /// The cluster, whose only name is [`CLUSTER_NAME`].
        Cluster = 4 "cluster",
        /// A transactional id.
        TransactionalId = 5 "transactional-id",
        /// A delegation token: Kera has none, and keeps rules about them.
        DelegationToken = 6 "delegation-token",
        /// A user, for rules about delegation tokens.
        User = 7 "user",
    }
}

numbered! {
    /// What is done.
    Operation {
        /// All of them.
        All = 2 "all",
        /// Reading records, or being a member of a group.
        Read = 3 "read",
        /// Appending records.
        Write = 4 "write",
        /// Making it.
        Create = 5 "create",
        /// Deleting it, or a stream's records.
        Delete = 6 "delete",
        /// Changing it.
        Alter = 7 "alter",
        /// Seeing that it is there, and where.
        Describe = 8 "describe",
        /// What brokers do among themselves.
        ClusterAction = 9 "cluster-action",
        /// Seeing its settings.
        DescribeConfigs = 10 "describe-configs",
        /// Changing its settings.
        AlterConfigs = 11 "alter-configs",
        /// Producing with sequence numbers. Whoever may write to any stream may.
        IdempotentWrite = 12 "idempotent-write",
        /// Making delegation tokens.
        CreateTokens = 13 "create-tokens",
        /// Seeing delegation tokens.
        DescribeTokens = 14 "describe-tokens",
        /// Preparing transactions, which then have no timeout.
        TwoPhaseCommit = 15 "two-phase-commit",
    }
}

numbered! {
    /// How a rule's name is compared.
    Pattern {
        /// It is the name, or [`ANY`].
        Literal = 3 "literal",
        /// Names begin with it.
        Prefixed = 4 "prefixed",
    }
}

numbered! {
    /// Whether a rule allows or denies. One that denies comes before all that allow.
    Permission {
        /// It denies.
        Deny = 2 "deny",
        /// It allows.
        Allow = 3 "allow",
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// What it is about.
    pub kind: Kind,
    /// The name, or what names begin with.
    pub name: String,
    /// Which of the two it is.
    pub pattern: Pattern,
    /// Who, such as `User:ann`; `User:*` for everybody, and `Role:analysts` for the members of a [`Role`].
    pub principal: String,
    /// From which address; `*` for all.
    pub host: String,
    /// What they do.
    pub operation: Operation,
    /// Whether they may.
    pub permission: Permission,
}

impl Rule {
    /// Checks a rule by itself.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if let Some(role) = self.role() {
            check_role_name(role)?;
        } else if self.principal.strip_prefix(USER).is_none_or(str::is_empty) {
            return Err(format!(
                "the principal {:?} is not of the form `User:NAME` or `Role:NAME`; everybody is `User:*`",
                shown(&self.principal)
            ));
        }
        if self.host != ANY && self.host.parse::<IpAddr>().is_err() {
            return Err(format!(
                "the host {:?} is no IP address; names and networks are not taken, and `*` stands for all",
                shown(&self.host)
            ));
        }
        for (what, text) in [("principal", &self.principal), ("name", &self.name)] {
            if text.is_empty() || text.len() > MAX_RULE_TEXT || text.contains(char::is_control) {
                return Err(format!(
                    "the {what} {:?} has {} bytes; 1 to {MAX_RULE_TEXT} without control characters are taken",
                    shown(text),
                    text.len()
                ));
            }
        }
        if self.kind == Kind::Cluster
            && (self.name != CLUSTER_NAME || self.pattern != Pattern::Literal)
        {
            return Err(format!(
                "a rule about the cluster has the literal name `{CLUSTER_NAME}`, not {:?}",
                shown(&self.name)
            ));
        }
        Ok(())
    }

    /// The role whose members it is about; `None` if it is about users.
    pub fn role(&self) -> Option<&str> {
        self.principal.strip_prefix(ROLE)
    }

    /// Bytes that count against [`MAX_RULES_BYTES`].
    pub fn text_bytes(&self) -> usize {
        self.name.len() + self.principal.len() + self.host.len()
    }
}

/// Users that rules name together. A rule about `Role:NAME` is about each member, as if it named that user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name, without [`ROLE`].
    pub name: String,
    /// The names of its users, in order, each once. They need not have a password here: those of certificates and
    /// tokens are members as well.
    pub members: Vec<String>,
}

impl Role {
    /// Checks a role by itself.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn check(&self) -> Result<(), String> {
        check_role_name(&self.name)?;
        if !self.members.is_sorted_by(|one, next| one < next) {
            return Err(format!(
                "the members of role {} are not in order, each once",
                self.name
            ));
        }
        self.members.iter().try_for_each(|one| check_user_name(one))
    }

    /// Bytes that count against [`MAX_RULES_BYTES`], with those in front of each name.
    pub fn text_bytes(&self) -> usize {
        let names = self.members.iter().chain([&self.name]);
        names.map(|name| name.len() + NAME_LENGTH_BYTES).sum()
    }
}

/// Checks the name of a role: 1 to 255 bytes without control characters, and without spaces at an end. It is not `*`: everybody
/// is `User:*`. It does not begin with [`ROLE`] or [`USER`], as a principal does: rules about `Role:NAME` would be about another role
/// than the one meant.
///
/// # Errors
/// What is wrong with it.
pub fn check_role_name(name: &str) -> Result<(), String> {
    let is_long = name.is_empty() || name.len() > MAX_USER_NAME;
    if is_long || name.contains(char::is_control) || name.trim() != name || name == ANY {
        return Err(format!(
            "a role cannot be named {:?}; names have 1 to {MAX_USER_NAME} bytes without control characters or spaces at their ends, and everybody is `User:*`",
            shown(name)
        ));
    }
    if [ROLE, USER].iter().any(|kind| name.starts_with(kind)) {
        return Err(format!(
            "a role cannot be named {:?}: say its name alone, without `{ROLE}` or `{USER}` in front",
            shown(name)
        ));
    }
    Ok(())
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            name,
            pattern,
            principal,
            host,
            operation,
            permission,
        } = self;
        write!(
            f,
            "{permission} {principal} from {host} to {operation} {kind} {name:?} ({pattern})"
        )
    }
}

/// The beginning of a text that may be long.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// All rules of a store, and the roles that they name. A rule about a role that is not there is about nobody; brokers take none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesRecord {
    /// In order, each once.
    pub rules: Vec<Rule>,
    /// In the order of their names, each once.
    pub roles: Vec<Role>,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Rule {
        Rule {
            kind: Kind::Stream,
            name: "clicks".to_owned(),
            pattern: Pattern::Literal,
            principal: "User:ann".to_owned(),
            host: ANY.to_owned(),
            operation: Operation::Read,
            permission: Permission::Allow,
        }
    }

    #[test]
    fn numbers_and_texts_are_found_again() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_number(kind.number().into()), Some(*kind));
            assert_eq!(Kind::of_text(kind.text()), Some(*kind));
        }
        for operation in Operation::ALL {
            let number = operation.number().into();
            assert_eq!(Operation::of_number(number), Some(*operation));
            assert_eq!(Operation::of_text(operation.text()), Some(*operation));
        }
        assert_eq!(
            Operation::of_text("DescribeConfigs"),
            Some(Operation::DescribeConfigs)
        );
        assert_eq!(
            Operation::of_text("describe_configs"),
            Some(Operation::DescribeConfigs)
        );
        // Kafka's numbers for "unknown" and "any".
        assert_eq!((Kind::of_number(0), Kind::of_number(1)), (None, None));
        assert_eq!(Permission::of_number(1), None);
    }

    #[test]
    fn what_nobody_could_match_is_refused() {
        rule().check().unwrap();
        type Change = fn(&mut Rule);
        let broken: [(&str, Change); 13] = [
            ("not of the form", |r| r.principal = "ann".to_owned()),
            ("not of the form", |r| r.principal = "User:".to_owned()),
            ("not of the form", |r| r.principal = "Group:x".to_owned()),
            ("cannot be named", |r| r.principal = "Role:".to_owned()),
            ("cannot be named", |r| r.principal = "Role:*".to_owned()),
            ("its name alone", |r| r.principal = "Role:Role:x".to_owned()),
            ("its name alone", |r| r.principal = "Role:User:x".to_owned()),
            ("no IP address", |r| r.host = "10.0.0.0/8".to_owned()),
            ("no IP address", |r| r.host = String::new()),
            ("bytes", |r| r.name = String::new()),
            ("bytes", |r| r.name = "x".repeat(MAX_RULE_TEXT + 1)),
            ("bytes", |r| r.name = "a\nb".to_owned()),
            ("about the cluster", |r| r.kind = Kind::Cluster),
        ];
        for (reason, change) in broken {
            let mut rule = rule();
            change(&mut rule);
            let error = rule.check().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn roles_have_users_in_order_each_once() {
        let role = |members: &[&str]| Role {
            name: "analysts".to_owned(),
            members: members.iter().map(|one| (*one).to_owned()).collect(),
        };
        role(&[]).check().unwrap();
        role(&["ann", "bob"]).check().unwrap();
        for members in [&["bob", "ann"][..], &["ann", "ann"], &["*"], &["ANONYMOUS"]] {
            assert!(role(members).check().is_err(), "{members:?}");
        }
        let mut about_role = rule();
        about_role.principal = "Role:analysts".to_owned();
        about_role.check().unwrap();
        assert_eq!((about_role.role(), rule().role()), (Some("analysts"), None));
    }
}
