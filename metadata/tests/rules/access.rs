//! Rules of access.

use kera_metadata::access::{
    ANY, Kind, MAX_ROLES, MAX_RULES, Operation, Pattern, Permission, Role,
};
use kera_metadata::quota::{Limit, MAX_QUOTAS, QuotaEntity, QuotaKind, Whom};

use super::*;

fn rule(name: &str, permission: Permission) -> Rule {
    Rule {
        kind: Kind::Stream,
        name: name.to_owned(),
        pattern: Pattern::Prefixed,
        principal: "User:ann".to_owned(),
        host: ANY.to_owned(),
        operation: Operation::Read,
        permission,
    }
}

fn role(name: &str, members: &[&str]) -> Role {
    Role {
        name: name.to_owned(),
        members: members.iter().map(|one| (*one).to_owned()).collect(),
    }
}

fn put(store: &dyn MetadataStore, record: &RulesRecord) -> Result<Committed, MetadataError> {
    let compare = Compare::revision(Key::Rules, record.revision);
    let write = Write::PutRules(record.clone());
    store.commit(Transaction::new(vec![compare], vec![write]))
}

#[test]
fn rules_are_replaced_by_whoever_knows_them() {
    on_each_store(|store| {
        assert_eq!(store.rules().unwrap(), RulesRecord::default());
        assert_eq!(store.load().unwrap().rules, None);
        let mut record = RulesRecord {
            rules: vec![rule("a", Permission::Deny), rule("a", Permission::Allow)],
            roles: vec![role("readers", &["ann", "bob"]), role("writers", &[])],
            revision: 0,
        };
        record.revision = put(&*store, &record).unwrap().revision;
        assert_eq!(store.rules().unwrap(), record);
        assert_eq!(store.load().unwrap().rules, Some(record.clone()));
        let stale = RulesRecord {
            revision: 0,
            ..record.clone()
        };
        assert_conflict(put(&*store, &stale));
        let write = Write::PutRules(record.clone());
        let unguarded = Transaction::new(vec![], vec![write]);
        assert_invalid(store.commit(unguarded), "revision");

        let with = |rules: Vec<Rule>| RulesRecord {
            rules,
            roles: Vec::new(),
            revision: record.revision,
        };
        let with_roles = |roles: Vec<Role>| RulesRecord {
            roles,
            ..with(Vec::new())
        };
        for (roles, problem) in [
            (vec![role("b", &[]), role("a", &[])], "in order"),
            (vec![role("a", &[]), role("a", &[])], "in order"),
            (vec![role("a", &["bob", "ann"])], "in order"),
            (vec![role("*", &[])], "cannot be named"),
        ] {
            assert_invalid(put(&*store, &with_roles(roles)), problem);
        }
        let names = (0..=MAX_ROLES).map(|number| format!("{number:06}"));
        let many = names.map(|name| role(&name, &[])).collect();
        assert_invalid(put(&*store, &with_roles(many)), "at most");
        let (one, other) = (rule("a", Permission::Allow), rule("b", Permission::Allow));
        let unordered = [vec![other.clone(), one.clone()], vec![one.clone(), one]];
        for rules in unordered {
            assert_invalid(put(&*store, &with(rules)), "in order");
        }
        let names = (0..=MAX_RULES).map(|number| format!("{number:06}"));
        let many = names.map(|name| rule(&name, Permission::Allow)).collect();
        assert_invalid(put(&*store, &with(many)), "at most");
        let nobody = Rule {
            principal: "ann".to_owned(),
            ..other
        };
        assert_invalid(put(&*store, &with(vec![nobody])), "principal");
        assert_eq!(
            store.rules().unwrap(),
            record,
            "nothing of all that counted"
        );
        let revision = put(&*store, &with(Vec::new())).unwrap().revision;
        let none = RulesRecord {
            rules: Vec::new(),
            roles: Vec::new(),
            revision,
        };
        assert_eq!(store.rules().unwrap(), none);
    });
}

/// As many as there may be, as long as they may be: one record of them fits every store.
#[test]
fn the_most_rules_are_kept() {
    on_each_store(|store| {
        let names = (0..MAX_RULES).map(|number| format!("{number:080}"));
        let record = RulesRecord {
            rules: names.map(|name| rule(&name, Permission::Allow)).collect(),
            roles: Vec::new(),
            revision: 0,
        };
        put(&*store, &record).unwrap();
        assert_eq!(store.rules().unwrap().rules, record.rules);
    });
}

fn quota(user: &str, rate: f64) -> Quota {
    Quota {
        entity: QuotaEntity {
            user: Some(Whom::Name(user.to_owned())),
            client: Some(Whom::Default),
            ip: None,
        },
        limits: [(QuotaKind::ProducerByteRate, Limit::new(rate).unwrap())].into(),
    }
}

#[test]
fn quotas_are_replaced_by_whoever_knows_them() {
    on_each_store(|store| {
        assert_eq!(store.quotas().unwrap(), QuotasRecord::default());
        let put = |record: &QuotasRecord| {
            let compare = Compare::revision(Key::Quotas, record.revision);
            let write = Write::PutQuotas(record.clone());
            store.commit(Transaction::new(vec![compare], vec![write]))
        };
        let mut record = QuotasRecord {
            quotas: vec![quota("ann", 1e6), quota("bob", 1.0)],
            revision: 0,
        };
        record.revision = put(&record).unwrap().revision;
        assert_eq!(store.quotas().unwrap(), record);
        assert_eq!(store.load().unwrap().quotas, Some(record.clone()));
        assert_conflict(put(&QuotasRecord {
            revision: 0,
            ..record.clone()
        }));
        let unguarded = Transaction::new(vec![], vec![Write::PutQuotas(record.clone())]);
        assert_invalid(store.commit(unguarded), "revision");
        let with = |quotas: Vec<Quota>| QuotasRecord {
            quotas,
            ..record.clone()
        };
        let mut objective = quota("bob", 1.0);
        objective.entity.client = None;
        let parts = QuotaKind::OBJECTIVE.map(|kind| (kind, Limit::new(2.5).unwrap()));
        objective.limits.extend(parts);
        let promised = with(vec![quota("ann", 1e6), objective.clone()]);
        record.revision = put(&promised).unwrap().revision;
        record.quotas = promised.quotas;
        assert_eq!(store.quotas().unwrap(), record);
        let with = |quotas: Vec<Quota>| QuotasRecord {
            quotas,
            ..record.clone()
        };
        objective.limits.remove(&QuotaKind::ObjectiveLatency);
        assert_invalid(put(&with(vec![objective])), "lacks objective_latency_ms");
        let unordered = with(vec![quota("bob", 1.0), quota("ann", 1.0)]);
        assert_invalid(put(&unordered), "in order");
        assert_invalid(put(&with(vec![quota("ann", 1.5)])), "whole number");
        let names = (0..=MAX_QUOTAS).map(|number| format!("{number:06}"));
        let many = names.map(|name| quota(&name, 1.0)).collect();
        assert_invalid(put(&with(many)), "at most");
        let found = store.quotas().unwrap();
        assert_eq!(found, record, "nothing of all that counted");
    });
}

fn user(name: &str) -> User {
    User {
        name: name.to_owned(),
        credentials: vec![UserCredential {
            mechanism: 1,
            salt: vec![1; 16],
            iterations: 4096,
            stored_key: vec![2; 32],
            server_key: vec![3; 32],
        }],
    }
}

#[test]
fn users_are_replaced_by_whoever_knows_them() {
    on_each_store(|store| {
        assert_eq!(store.users().unwrap(), UsersRecord::default());
        let put = |record: &UsersRecord| {
            let compare = Compare::revision(Key::Users, record.revision);
            let write = Write::PutUsers(record.clone());
            store.commit(Transaction::new(vec![compare], vec![write]))
        };
        let mut record = UsersRecord {
            users: vec![user("ann"), user("bob")],
            secret: vec![9; 32],
            revision: 0,
        };
        record.revision = put(&record).unwrap().revision;
        assert_eq!(store.users().unwrap(), record);
        assert_eq!(store.load().unwrap().users, Some(record.clone()));
        assert_conflict(put(&UsersRecord {
            revision: 0,
            ..record.clone()
        }));
        let unguarded = vec![Write::PutUsers(record.clone())];
        let unguarded = Transaction::new(vec![], unguarded);
        assert_invalid(store.commit(unguarded), "revision");
        let with = |users: Vec<User>| UsersRecord {
            users,
            ..record.clone()
        };
        assert_invalid(put(&with(vec![user("bob"), user("ann")])), "in order");
        assert_invalid(put(&with(vec![user("*")])), "cannot be named");
        let names = (0..=user::MAX_USERS).map(|number| format!("{number:06}"));
        let many = names.map(|name| self::user(&name)).collect();
        assert_invalid(put(&with(many)), "at most");
        assert_eq!(
            store.users().unwrap(),
            record,
            "nothing of all that counted"
        );
    });
}
