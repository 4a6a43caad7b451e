//! Who may do what: the rules of the metadata store, as this broker knows them.
//!
//! The model is Kafka's. A rule allows or denies a principal an operation on a stream, a group or the cluster, by name
//! or by what names begin with. One that denies comes before all that allow; what no rule allows is denied. The users
//! of `acl.super_users` may do everything. A rule may be about a role, and so about its members. Rules are looked at once for each request and stream, never for a record.

mod age;
mod alter;
mod granted;
mod hidden_streams;
mod keep_confirmed;
mod native;
mod roles;
mod rules;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use kera_metadata::RulesRecord;
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};
use kera_replication::seldom::Seldom;
use parking_lot::Mutex;

use crate::audit::{Audit, Peer};
use crate::config::{AclConfig, Via};
use crate::data::catalog::{stream_id, unknown_id};
use crate::metrics::Counter;
use crate::principal::Principal;

use age::Age;
pub use alter::{Filter, add, list, refused_roles, remove};
pub(crate) use granted::Granted;
pub(crate) use hidden_streams::{hide_progress, hide_streams, may_read_all};
pub(crate) use keep_confirmed::keep_confirmed;
pub(crate) use native::{Guarded, Needs, attempt, may_do, may_see, via};
pub(crate) use roles::{Alter, Seen, alter_role, delete_role, list_roles};
use rules::{Asker, Rules};

/// The user that a client without a proof of who it is counts as.
pub const ANONYMOUS: &str = "ANONYMOUS";

/// Who asks for something, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// The principal.
    pub principal: &'a Principal,
    /// Its address.
    pub host: IpAddr,
    /// Where it asks.
    pub via: Via,
}

impl<'a> Who<'a> {
    pub(crate) fn user(self) -> &'a str {
        match self.principal {
            Principal::Anonymous => ANONYMOUS,
            Principal::User(name) => name,
        }
    }

    pub(crate) fn peer(self) -> Peer {
        Peer {
            via: self.via,
            host: self.host,
        }
    }

    fn asker(self) -> Asker<'a> {
        Asker {
            user: self.user(),
            host: self.host.to_canonical(),
        }
    }
}

/// Who may do what at this broker.
pub struct Access {
    /// `None`: everybody may do everything.
    enforced: Option<Enforced>,
    /// Requests that were denied.
    pub(crate) denied: Counter,
    /// How old the rules are, if they have a greatest age.
    age: Option<Age>,
    /// Requests that were refused because the rules are too old.
    pub(crate) outdated: Counter,
    told: Mutex<Seldom>,
    audit: Arc<Audit>,
}

struct Enforced {
    super_users: HashSet<String>,
    /// What is allowed that no rule is about.
    without_rule: bool,
    rules: ArcSwap<Rules>,
}

impl Enforced {
    /// Nobody becomes a super user by proving nothing.
    fn is_super(&self, who: Who<'_>) -> bool {
        matches!(who.principal, Principal::User(name) if self.super_users.contains(&**name))
    }
}

/// In a revision: the rules of that revision are too old.
const OUTDATED: u64 = 1 << 63;

impl Access {
    /// As configured, with the rules that are recorded.
    pub(crate) fn new(
        config: &AclConfig,
        recorded: Option<&RulesRecord>,
        audit: Arc<Audit>,
    ) -> Self {
        let enforced = config.enabled.then(|| {
            let users = config.super_users.iter();
            let users = users.filter_map(|user| user.strip_prefix("User:"));
            Enforced {
                super_users: users.map(str::to_owned).collect(),
                without_rule: config.allow_without_rule,
                rules: ArcSwap::from_pointee(recorded.map(Rules::of).unwrap_or_default()),
            }
        });
        Self {
            age: (enforced.is_some() && !config.max_age.is_zero())
                .then(|| Age::steady(config.max_age)),
            enforced,
            denied: Counter::default(),
            outdated: Counter::default(),
            told: Mutex::default(),
            audit,
        }
    }

    /// True if rules decide, and not everybody may do everything.
    pub fn is_enforced(&self) -> bool {
        self.enforced.is_some()
    }

    /// Another number whenever the rules have changed, or count no more; what was allowed before has to be asked again.
    pub fn revision(&self) -> u64 {
        let enforced = self.enforced.as_ref();
        let revision = enforced.map_or(0, |enforced| enforced.rules.load().revision);
        match self.age.as_ref().is_some_and(Age::is_over) {
            true => revision | OUTDATED,
            false => revision,
        }
    }

    /// Takes in what is recorded, as the store told it that was asked at `asked`, which [`Self::asks`] told.
    pub(crate) fn confirm(&self, record: &RulesRecord, asked: u64) {
        self.take(record);
        if let Some(age) = &self.age {
            age.confirm(asked);
        }
    }

    /// Now, for [`Self::confirm`].
    pub(crate) fn asks(&self) -> u64 {
        self.age.as_ref().map_or(0, Age::now)
    }

    /// How long ago the store confirmed the rules; `None` where that does not matter.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.age.as_ref().map(Age::age)
    }

    /// Checks that the rules are not too old to decide about a request. Super users need none.
    ///
    /// # Errors
    /// [`ErrorCode::Overloaded`], which may be tried again, says why.
    pub fn check_age(&self, who: Who<'_>) -> Result<(), WireError> {
        let Some(age) = self.age.as_ref().filter(|age| age.is_over()) else {
            return Ok(());
        };
        let enforced = self.enforced.as_ref();
        if enforced.is_some_and(|enforced| enforced.is_super(who)) {
            return Ok(());
        }
        self.outdated.inc();
        Err(age.refusal())
    }

    /// Takes in what is recorded, unless something newer is known.
    pub(crate) fn take(&self, record: &RulesRecord) {
        let Some(enforced) = &self.enforced else {
            return;
        };
        let rules = Rules::of(record);
        // Of two that come at once the newer one stays.
        enforced
            .rules
            .rcu(|known| match known.revision < rules.revision {
                true => Arc::new(rules.clone()),
                false => known.clone(),
            });
    }

    /// False if users may do the same from this address as from any that no rule names.
    pub(crate) fn host_matters(&self, host: IpAddr) -> bool {
        let enforced = self.enforced.as_ref();
        enforced.is_some_and(|enforced| enforced.rules.load().hosts.contains(&host.to_canonical()))
    }

    /// Whether somebody may do something, without a word if not: for lists that leave out what may not be seen.
    pub fn allows(&self, who: Who<'_>, operation: Operation, (kind, name): (Kind, &str)) -> bool {
        self.decides(who, |rules, otherwise| {
            rules.allow(who.asker(), operation, (kind, name), otherwise)
        })
    }

    fn decides(&self, who: Who<'_>, ask: impl FnOnce(&Rules, bool) -> bool) -> bool {
        let Some(enforced) = &self.enforced else {
            return true;
        };
        enforced.is_super(who) || ask(&enforced.rules.load(), enforced.without_rule)
    }

    /// Whether somebody may do something. Where not, it is counted, and told in the log from time to time.
    pub fn permits(&self, who: Who<'_>, operation: Operation, thing: (Kind, &str)) -> bool {
        let permitted = self.allows(who, operation, thing);
        if !permitted {
            self.note_denied(who, operation, thing);
        }
        permitted
    }

    /// Whether somebody may do something to at least one thing of a kind.
    pub fn permits_any(&self, who: Who<'_>, operation: Operation, kind: Kind) -> bool {
        let permitted = self.decides(who, |rules, otherwise| {
            rules.allow_any(who.asker(), operation, kind, otherwise)
        });
        if !permitted {
            self.note_denied(who, operation, (kind, "*"));
        }
        permitted
    }

    /// Checks that somebody may do something.
    ///
    /// # Errors
    /// [`ErrorCode::NotAuthorized`] says who may not do what, and what to do. As [`Self::check_age`].
    pub fn require(
        &self,
        who: Who<'_>,
        operation: Operation,
        thing: (Kind, &str),
    ) -> Result<(), WireError> {
        self.check_age(who)?;
        if self.permits(who, operation, thing) {
            return Ok(());
        }
        let (kind, name) = thing;
        let user = who.user();
        // The name is the client's own word, and may be long.
        let name: String = name.chars().take(249).collect();
        let (what, flag) = match kind {
            Kind::Cluster => ("the cluster".to_owned(), "--cluster".to_owned()),
            kind => (format!("{kind} \"{name}\""), format!("--{kind} {name}")),
        };
        let text = format!(
            "User:{user} may not {operation} {what}; who may change rules can allow it: kera acl add --allow User:{user} --operation {operation} {flag}"
        );
        Err(WireError::new(ErrorCode::NotAuthorized, text))
    }

    /// Checks that somebody may do something to a stream of which they name the id.
    ///
    /// # Errors
    /// As [`Self::require`]; [`ErrorCode::UnknownStream`], as of an id that no stream has, to who may not even see the stream: an
    /// id that somebody once knew tells no name.
    pub(crate) fn require_of_id(
        &self,
        who: Who<'_>,
        operation: Operation,
        id: &[u8],
        name: &str,
    ) -> Result<(), WireError> {
        let thing = (Kind::Stream, name);
        let required = self.require(who, operation, thing);
        let is_denied = |error: &WireError| error.code == ErrorCode::NotAuthorized;
        match required {
            Err(error) if is_denied(&error) && !self.allows(who, Operation::Describe, thing) => {
                Err(stream_id(id).map_or_else(|malformed| malformed, unknown_id))
            }
            required => required,
        }
    }

    fn note_denied(&self, who: Who<'_>, operation: Operation, (kind, name): (Kind, &str)) {
        self.denied.inc();
        self.audit.denied(who, operation, (kind, name));
        let (user, host) = (who.user(), who.host);
        let due = self.told.lock().due(Instant::now());
        match due {
            Some(others) => {
                tracing::info!(user, %host, %operation, %kind, name, others, "a request was denied by the rules of access");
            }
            None => {
                tracing::debug!(user, %host, %operation, %kind, name, "a request was denied by the rules of access");
            }
        }
    }
}
