use std::net::Ipv4Addr;

use kera_metadata::access::Role;
use proptest::prelude::*;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn asker(user: &str) -> Asker<'_> {
    Asker { user, host: HERE }
}

fn rule(
    permission: Permission,
    user: &str,
    operation: Operation,
    (pattern, name): (Pattern, &str),
) -> Rule {
    Rule {
        kind: Kind::Stream,
        name: name.to_owned(),
        pattern,
        principal: format!("User:{user}"),
        host: ANY.to_owned(),
        operation,
        permission,
    }
}

fn rules(of: Vec<Rule>) -> Rules {
    Rules::of(&RulesRecord {
        rules: of,
        roles: Vec::new(),
        revision: 7,
    })
}

use Operation::{All, AlterConfigs, Describe, DescribeConfigs, Read, Write};
use Pattern::{Literal, Prefixed};
use Permission::{Allow, Deny};

fn may(rules: &Rules, user: &str, operation: Operation, name: &str) -> bool {
    rules.allow(asker(user), operation, (Kind::Stream, name), false)
}

#[test]
fn who_is_allowed_by_name_may_and_nobody_else() {
    let rules = rules(vec![rule(Allow, "ann", Read, (Literal, "clicks"))]);
    assert!(may(&rules, "ann", Read, "clicks"));
    assert!(!may(&rules, "ann", Write, "clicks"));
    assert!(!may(&rules, "ann", Read, "click"));
    assert!(!may(&rules, "ann", Read, "clicks2"));
    assert!(!may(&rules, "bob", Read, "clicks"));
    let group = (Kind::Group, "clicks");
    assert!(!rules.allow(asker("ann"), Read, group, false));
}

#[test]
fn reading_lets_see_and_changing_settings_lets_see_them() {
    let rules = rules(vec![
        rule(Allow, "ann", Read, (Literal, "clicks")),
        rule(Allow, "bob", AlterConfigs, (Literal, "clicks")),
    ]);
    assert!(may(&rules, "ann", Describe, "clicks"));
    assert!(!may(&rules, "ann", DescribeConfigs, "clicks"));
    assert!(may(&rules, "bob", DescribeConfigs, "clicks"));
    assert!(!may(&rules, "bob", Describe, "clicks"));
}

#[test]
fn a_rule_about_a_role_is_about_its_members_and_nobody_else() {
    let about = |permission, role: &str, operation, name| Rule {
        principal: format!("Role:{role}"),
        ..rule(permission, "", operation, name)
    };
    let role = |name: &str, members: &[&str]| Role {
        name: name.to_owned(),
        members: members.iter().map(|one| (*one).to_owned()).collect(),
    };
    let record = |roles| RulesRecord {
        rules: vec![
            about(Allow, "readers", Read, (Prefixed, "sales.")),
            about(Deny, "guests", Read, (Literal, "sales.prices")),
            about(Allow, "nobody", All, (Literal, "*")),
            rule(Allow, "zoe", Read, (Literal, "sales.prices")),
        ],
        roles,
        revision: 7,
    };
    let roles = vec![
        role("guests", &["bob", "zoe"]),
        role("readers", &["ann", "bob"]),
    ];
    let rules = Rules::of(&record(roles));
    assert!(may(&rules, "ann", Read, "sales.prices"));
    assert!(may(&rules, "bob", Read, "sales.orders"));
    // A denial counts for members as for users that are named, and before what names them.
    assert!(!may(&rules, "bob", Read, "sales.prices"));
    assert!(!may(&rules, "zoe", Read, "sales.prices"));
    // Neither a role's name nor one that looks like a rule's principal is a user's.
    for user in ["readers", "Role:readers", "nobody", "", ANY, "cy"] {
        assert!(!may(&rules, user, Read, "sales.orders"), "{user}");
    }
    assert!(rules.allow_any(asker("ann"), Read, Kind::Stream, false));
    assert!(!rules.allow_any(asker("zoe"), Write, Kind::Stream, false));
    // Without members the same rules are about nobody.
    let rules = Rules::of(&record(vec![role("readers", &[])]));
    assert!(!may(&rules, "ann", Read, "sales.orders"));
    assert!(may(&rules, "zoe", Read, "sales.prices"));
}

#[test]
fn a_denial_comes_before_all_that_allow() {
    let rules = rules(vec![
        rule(Allow, "*", All, (Prefixed, "")),
        rule(Allow, "ann", All, (Literal, "*")),
        rule(Allow, "ann", All, (Literal, "pay.roll")),
        rule(Deny, "ann", Write, (Prefixed, "pay.")),
    ]);
    assert!(!may(&rules, "ann", Write, "pay.roll"));
    assert!(
        may(&rules, "ann", Read, "pay.roll"),
        "only writing is denied"
    );
    // Denying one thing denies nothing that comes with it: seeing is not writing.
    assert!(may(&rules, "ann", Describe, "pay.roll"));
    assert!(may(&rules, "bob", Write, "pay.roll"));
    assert!(may(&rules, "ann", Write, "pay"));
}

#[test]
fn where_no_rule_is_about_the_thing_the_default_counts() {
    let rules = rules(vec![rule(Allow, "ann", Read, (Literal, "clicks"))]);
    let ask = |name| rules.allow(asker("bob"), Read, (Kind::Stream, name), true);
    assert!(!ask("clicks"), "a rule is about it, for another");
    assert!(ask("views"));
}

#[test]
fn an_address_is_compared_and_not_a_text() {
    let mut of_host = rule(Allow, "ann", Read, (Literal, "clicks"));
    of_host.host = "::ffff:10.0.0.1".to_owned();
    let rules = rules(vec![of_host]);
    assert!(may(&rules, "ann", Read, "clicks"));
    let elsewhere = Asker {
        user: "ann",
        host: "10.0.0.2".parse().unwrap(),
    };
    assert!(!rules.allow(elsewhere, Read, (Kind::Stream, "clicks"), false));
}

#[test]
fn a_name_that_is_no_ascii_does_not_end_between_two_bytes() {
    let rules = rules(vec![rule(Allow, "ann", Read, (Prefixed, "a"))]);
    let group = |name| rules.allow(asker("ann"), Read, (Kind::Stream, name), false);
    assert!(group("a\u{fc}"));
    assert!(!group("\u{fc}a"));
}

fn entries() -> impl Strategy<Value = Rule> {
    let names = prop_oneof![Just("*"), Just("a"), Just("ab"), Just("abc"), Just("b")];
    let users = prop_oneof![Just("*"), Just("ann"), Just("bob")];
    let operations = prop_oneof![Just(All), Just(Read), Just(Write), Just(Describe)];
    let patterns = prop_oneof![Just(Literal), Just(Prefixed)];
    (names, users, operations, patterns, any::<bool>()).prop_map(
        |(name, user, operation, pattern, allow)| {
            let permission = if allow { Allow } else { Deny };
            rule(permission, user, operation, (pattern, name))
        },
    )
}

/// The same by looking at each rule.
fn one_by_one(rules: &[Rule], user: &str, operation: Operation, name: &str) -> Option<bool> {
    let fits = |rule: &&Rule| match rule.pattern {
        Literal => rule.name == ANY || rule.name == name,
        Prefixed => name.starts_with(&rule.name),
    };
    let fitting: Vec<_> = rules.iter().filter(fits).collect();
    if fitting.is_empty() {
        return None;
    }
    let mine =
        |rule: &&&Rule| rule.principal == "User:*" || rule.principal == format!("User:{user}");
    let of = |permission: Permission| {
        let all = fitting.iter().filter(mine);
        all.filter(move |rule| rule.permission == permission)
            .map(|rule| rule.operation)
    };
    if of(Deny).any(|denied| denied == All || denied == operation) {
        return Some(false);
    }
    Some(of(Allow).any(|allowed| implies(allowed, operation)))
}

proptest! {
    #[test]
    fn found_by_name_is_what_looking_at_each_finds(
        of in proptest::collection::vec(entries(), 0..12),
        otherwise: bool,
    ) {
        let found = rules(of.clone());
        for name in ["a", "ab", "abc", "abcd", "b", "c", "*"] {
            for user in ["ann", "bob", "cat"] {
                for operation in [Read, Write, Describe, DescribeConfigs] {
                    let thing = (Kind::Stream, name);
                    let by_name = found.allow(asker(user), operation, thing, otherwise);
                    let each = one_by_one(&of, user, operation, name).unwrap_or(otherwise);
                    prop_assert_eq!(by_name, each, "{} {} {}", user, operation, name);
                }
            }
        }
    }

    #[test]
    fn something_may_be_done_exactly_if_it_may_be_done_to_some_name(
        of in proptest::collection::vec(entries(), 0..12),
    ) {
        let found = rules(of.clone());
        // Every name that rules can tell apart: what they name, and what begins so and is named by none.
        let names = ["a", "ab", "abc", "b", "az", "abz", "abcz", "bz", "z", "*", "*z"];
        for user in ["ann", "bob", "cat"] {
            let some = names.iter().any(|name| may(&found, user, Write, name));
            let any = found.allow_any(asker(user), Write, Kind::Stream, false);
            prop_assert_eq!(any, some, "{}", user);
        }
    }
}
