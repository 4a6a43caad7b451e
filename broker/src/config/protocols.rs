//! Kinds of keys about what addresses with a name protect.

use kera_rpc::SaslMechanism;

use super::kinds::{ClientAuth, ClientAuthKind, Count, Kind, Limits};
use super::named::ListenerName;

/// What an address speaks below its own protocol, as Kafka calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityProtocol {
    /// Neither TLS nor logins.
    Plaintext,
    /// TLS.
    Ssl,
    /// Logins without TLS.
    SaslPlaintext,
    /// Logins over TLS.
    SaslSsl,
}

impl SecurityProtocol {
    const ALL: [Self; 4] = [
        Self::Plaintext,
        Self::Ssl,
        Self::SaslPlaintext,
        Self::SaslSsl,
    ];

    /// That of a listener.
    pub fn of(has_tls: bool, asks: bool) -> Self {
        match (has_tls, asks) {
            (false, false) => Self::Plaintext,
            (true, false) => Self::Ssl,
            (false, true) => Self::SaslPlaintext,
            (true, true) => Self::SaslSsl,
        }
    }

    /// Kafka's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }

    /// True if connections begin with a TLS handshake.
    pub fn has_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    /// True if clients have to log in.
    pub fn asks(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

/// Reads `NAME=VALUE` between commas; an empty list if the text is empty or `off`. A name may have several values if
/// `several`.
fn parse_list<V: PartialEq>(
    text: &str,
    several: bool,
    example: &str,
    parse: impl Fn(&str) -> Result<V, String>,
) -> Result<Vec<(ListenerName, V)>, String> {
    let text = text.trim();
    let mut list: Vec<(ListenerName, V)> = Vec::new();
    if text.is_empty() || text == "off" {
        return Ok(list);
    }
    for part in text.split(',').map(str::trim) {
        // Kafka's form is `NAME:VALUE`.
        let (name, value) = part.split_once(['=', ':']).ok_or_else(|| {
            format!("`{part}` has no name of addresses; write NAME=VALUE, such as {example}")
        })?;
        let one = (ListenerName::new(name)?, parse(value.trim())?);
        if !several && list.iter().any(|(name, _)| *name == one.0) {
            return Err(format!("has {} twice; leave one out", one.0));
        }
        if !list.contains(&one) {
            list.push(one);
        }
    }
    Ok(list)
}

fn show_list<V>(value: &[(ListenerName, V)], show: impl Fn(&V) -> String) -> String {
    if value.is_empty() {
        return "off".to_owned();
    }
    let texts = value.iter();
    let texts: Vec<_> = texts
        .map(|(name, one)| format!("{name}={}", show(one)))
        .collect();
    texts.join(",")
}

/// What names speak.
pub(super) enum NamedProtocols {}

impl Kind for NamedProtocols {
    type Value = Vec<(ListenerName, SecurityProtocol)>;
    const FORM: &'static str = "`NAME=PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Self::Value, String> {
        parse_list(text, false, "external=SASL_SSL", |value| {
            let mut all = SecurityProtocol::ALL.into_iter();
            let known = all.find(|one| one.name().eq_ignore_ascii_case(value));
            known.ok_or_else(|| {
                format!("`{value}` is nothing that addresses speak; write PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
            })
        })
    }

    fn show(value: &Self::Value) -> String {
        show_list(value, |one| one.name().to_owned())
    }
}

/// Whether clients must have a certificate, by name.
pub(super) enum NamedClientAuth {}

impl Kind for NamedClientAuth {
    type Value = Vec<(ListenerName, ClientAuth)>;
    const FORM: &'static str = "`NAME=none`, `requested` or `required`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, limits: &Limits) -> Result<Self::Value, String> {
        parse_list(text, false, "partners=required", |value| {
            ClientAuthKind::parse(value, limits)
        })
    }

    fn show(value: &Self::Value) -> String {
        show_list(value, ClientAuthKind::show)
    }
}

/// Mechanisms of logins, by name.
pub(super) enum NamedMechanisms {}

impl Kind for NamedMechanisms {
    type Value = Vec<(ListenerName, SaslMechanism)>;
    const FORM: &'static str =
        "`NAME=MECHANISM`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Self::Value, String> {
        parse_list(text, true, "external=SCRAM-SHA-512", |value| {
            SaslMechanism::named(value).ok_or_else(|| {
                format!("`{value}` is no mechanism; write SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or OAUTHBEARER")
            })
        })
    }

    fn show(value: &Self::Value) -> String {
        show_list(value, |one| one.name().to_owned())
    }
}

/// Most connections, by name.
pub(super) enum NamedCounts {}

impl Kind for NamedCounts {
    type Value = Vec<(ListenerName, u32)>;
    const FORM: &'static str =
        "`NAME=NUMBER`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, limits: &Limits) -> Result<Self::Value, String> {
        parse_list(text, false, "external=500", |value| {
            Count::parse(value, limits)
        })
    }

    fn show(value: &Self::Value) -> String {
        show_list(value, Count::show)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_protect_reads_back_and_what_is_wrong_is_told() {
        let read = |text| NamedProtocols::parse(text, &Limits::NONE);
        let both = read(" inner=plaintext, outer:SASL_SSL ").expect("two names");
        assert_eq!(
            NamedProtocols::show(&both),
            "inner=PLAINTEXT,outer=SASL_SSL"
        );
        assert_eq!(read("off"), Ok(Vec::new()));
        for (wrong, told) in [
            ("SASL_SSL", "has no name of addresses"),
            ("outer=TLS", "`TLS` is nothing that addresses speak"),
            ("outer=SSL,outer=SSL", "has outer twice"),
            ("kafka=SSL", "`kafka` is no name of addresses"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
        let ways = "outer=PLAIN,outer=SCRAM-SHA-512,inner=PLAIN";
        let read = |text| NamedMechanisms::parse(text, &Limits::NONE);
        assert_eq!(NamedMechanisms::show(&read(ways).expect("three")), ways);
        assert!(
            read("outer=GSSAPI")
                .unwrap_err()
                .contains("is no mechanism")
        );
        let read = |text| NamedClientAuth::parse(text, &Limits::NONE);
        let shown = NamedClientAuth::show(&read("outer=required").expect("one"));
        assert_eq!(shown, "outer=required");
        assert!(read("outer=maybe").is_err());
        for protocol in SecurityProtocol::ALL {
            let again = SecurityProtocol::of(protocol.has_tls(), protocol.asks());
            assert_eq!(again, protocol);
        }
    }
}
