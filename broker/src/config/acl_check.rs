//! What the keys about rules of access need of others.

use std::time::Duration;

use super::keys::BrokerConfig;
use super::kinds::ClientAuth;

/// A new leader of etcd, or one lost packet, takes seconds.
const SHORTEST_AGE: Duration = Duration::from_secs(10);

/// What is wrong between the keys of `[acl]` and others: the key and what to do, one at a time.
pub(super) fn check_acl(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let acl = &config.acl;
    let users = !acl.super_users.is_empty();
    if !acl.enabled {
        let unused = [
            ("acl.super_users", users),
            ("acl.allow_without_rule", acl.allow_without_rule),
            ("acl.max_age", !acl.max_age.is_zero()),
        ];
        return match unused.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err((
                key,
                "is set but acl.enabled is false, so everybody may do everything; set acl.enabled to true, or remove this".to_owned(),
            )),
            None => Ok(()),
        };
    }
    if !users {
        let problem = "is true but acl.super_users is off, so nobody could make the first rule; name a user there, such as User:admin";
        return Err(("acl.enabled", problem.to_owned()));
    }
    if !acl.max_age.is_zero() {
        if config.cluster.store.is_none() {
            let problem = "is set but cluster.store is off, so the rules are this broker's own and never out of date; remove it";
            return Err(("acl.max_age", problem.to_owned()));
        }
        if acl.max_age < SHORTEST_AGE {
            let problem = "is shorter than 10s, so a pause of etcd would keep everybody out; make it longer, or 0 for no limit";
            return Err(("acl.max_age", problem.to_owned()));
        }
    }
    let proven = config.security_of_brokers().client_auth != ClientAuth::None;
    if config.cluster.store.is_some() && !proven {
        let to_do = match config.asks_by_name(&config.server.listen.first) {
            Some(name) => format!(
                "write {name}=SSL in listeners.protocols, for the first address of server.listen, and {name}=requested or {name}=required in listeners.client_auth"
            ),
            None => "add native to tls.listeners, set tls.client_auth to requested or required"
                .to_owned(),
        };
        let problem = format!(
            "is true but the brokers of the cluster cannot prove to each other who they are; {to_do}, and name the brokers' certificates in acl.super_users"
        );
        return Err(("acl.enabled", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tls::TlsListener;
    use super::*;

    #[test]
    fn keys_that_do_not_go_together_are_told() {
        let mut config = BrokerConfig::default();
        assert_eq!(check_acl(&config), Ok(()));
        config.acl.super_users = vec!["User:admin".to_owned()];
        assert_eq!(check_acl(&config).unwrap_err().0, "acl.super_users");
        config.acl.enabled = true;
        assert_eq!(check_acl(&config), Ok(()));
        config.acl.max_age = Duration::from_secs(60);
        assert!(check_acl(&config).unwrap_err().1.contains("never out of"));
        config.cluster.store = Some("etcd://127.0.0.1:2379".to_owned());
        config.acl.max_age = Duration::from_secs(9);
        assert!(check_acl(&config).unwrap_err().1.contains("shorter than"));
        config.acl.max_age = Duration::from_secs(10);
        assert!(check_acl(&config).unwrap_err().1.contains("prove"));
        config.tls.listeners = vec![TlsListener::Native];
        config.tls.client_auth = ClientAuth::Requested;
        assert_eq!(check_acl(&config), Ok(()));
        config.acl.super_users.clear();
        assert!(check_acl(&config).unwrap_err().1.contains("first rule"));
    }
}
