//! What the keys about telemetry need of each other.

use super::keys::BrokerConfig;

/// What is wrong between the keys of `[telemetry]`: the key and what to do.
pub(super) fn check_telemetry(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let telemetry = &config.telemetry;
    let has_tls = telemetry
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.starts_with("https:"));
    if has_tls && telemetry.ca.is_none() {
        let problem = "begins with https but telemetry.ca is off: the broker would not know whom to trust; name a file of authorities there, such as /etc/ssl/certs/ca-certificates.crt";
        return Err(("telemetry.endpoint", problem.to_owned()));
    }
    if telemetry.ca.is_some() && !has_tls {
        let problem = "is set but telemetry.endpoint does not begin with https, so nothing would be encrypted; write https there, or remove this";
        return Err(("telemetry.ca", problem.to_owned()));
    }
    if telemetry.headers_file.is_some() && telemetry.endpoint.is_none() {
        let problem =
            "is set but telemetry.endpoint is off; name the collector there, or remove this";
        return Err(("telemetry.headers_file", problem.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn tls_needs_an_authority_and_an_authority_tls() {
        let mut config = BrokerConfig::default();
        let wrong = |config: &BrokerConfig| check_telemetry(config).err().map(|(key, _)| key);
        assert_eq!(wrong(&config), None);
        config.telemetry.headers_file = Some(PathBuf::from("/h"));
        assert_eq!(wrong(&config), Some("telemetry.headers_file"));
        config.telemetry.endpoint = Some("https://a:1".to_owned());
        assert_eq!(wrong(&config), Some("telemetry.endpoint"));
        config.telemetry.ca = Some(PathBuf::from("/ca"));
        assert_eq!(wrong(&config), None);
        config.telemetry.endpoint = Some("http://a:1".to_owned());
        assert_eq!(wrong(&config), Some("telemetry.ca"));
    }
}
