//! Lists of addresses, and what the listeners of Kafka's clients need of them together.

use super::keys::{BrokerConfig, KafkaConfig};
use super::kinds::{Kind, Limits};
use super::units;

/// Reads addresses that stand between commas; an empty list if the text is empty or `none`.
fn parse_list(text: &str, none: &str) -> Result<Vec<String>, String> {
    let text = text.trim();
    if text.is_empty() || text == none {
        return Ok(Vec::new());
    }
    text.split(',').map(|part| parse_one(part.trim())).collect()
}

fn parse_one(text: &str) -> Result<String, String> {
    if matches!(text, "auto" | "off") {
        return Err(format!(
            "`{text}` stands alone, for the whole list; beside others write an address in its place"
        ));
    }
    // The form of Kafka's own `listeners`, which people bring along.
    if let Some((protocol, address)) = text.split_once("://") {
        return Err(match protocol.to_ascii_uppercase().as_str() {
            "PLAINTEXT" | "TCP" | "KAFKA" => {
                format!(
                    "`{text}` is not an address; leave out `{protocol}://` and write `{address}`"
                )
            }
            _ => format!(
                "`{text}` is not an address; write `{address}` without `{protocol}://`. For TLS set tls.listeners; there is no SASL"
            ),
        });
    }
    units::check_address(text).map_err(|error| match text.rsplit_once(':') {
        None if !text.is_empty() => format!("`{text}` has no port; write `{text}:9092`"),
        _ => error,
    })
}

fn show_list(value: &[String], none: &str) -> String {
    if value.is_empty() {
        none.into()
    } else {
        value.join(",")
    }
}

/// Addresses to listen on: `Vec<String>`, empty for `off`.
pub(super) enum AddressesOrOff {}

impl Kind for AddressesOrOff {
    type Value = Vec<String>;
    const FORM: &'static str = "`host:port`, or several with commas between them (in a file also a list), or `off`; port 0 lets the system choose";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<String>, String> {
        parse_list(text, "off")
    }

    fn show(value: &Vec<String>) -> String {
        show_list(value, "off")
    }
}

/// Addresses that are derived unless given: `Vec<String>`, empty for `auto`.
pub(super) enum AddressesOrAuto {}

impl Kind for AddressesOrAuto {
    type Value = Vec<String>;
    const FORM: &'static str =
        "`host:port`, or several with commas between them (in a file also a list), or `auto`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<String>, String> {
        parse_list(text, "auto")
    }

    fn show(value: &Vec<String>) -> String {
        show_list(value, "auto")
    }
}

impl KafkaConfig {
    /// Each address to listen on with the address to tell clients, if one was given.
    pub fn listeners(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let advertised = |index: usize| self.advertise.get(index).map(String::as_str);
        let addresses = self.listen.iter().enumerate();
        addresses.map(move |(index, address)| (address.as_str(), advertised(index)))
    }
}

/// What is wrong between the keys of Kafka's listeners: the key and what to do, one at a time.
pub(super) fn check_kafka(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let kafka = &config.kafka;
    let (listen, advertise) = (kafka.listen.len(), kafka.advertise.len());
    if listen == 0 && advertise > 0 {
        return Err((
            "kafka.advertise",
            "is set but kafka.listen is off; set kafka.listen, such as 127.0.0.1:9092".into(),
        ));
    }
    if advertise > 0 && advertise != listen {
        return Err((
            "kafka.advertise",
            format!(
                "has {advertise} addresses and kafka.listen has {listen}; write one for each, in the same order"
            ),
        ));
    }
    for (index, address) in kafka.listen.iter().enumerate() {
        if address.ends_with(":0") {
            continue;
        }
        if *address == config.server.listen {
            return Err((
                "kafka.listen",
                format!("{address} is server.listen already; take another port, such as 9092"),
            ));
        }
        if config.http.listen.as_ref() == Some(address) {
            return Err((
                "kafka.listen",
                format!("{address} is http.listen already; take another port, such as 9092"),
            ));
        }
        if kafka.listen[..index].contains(address) {
            return Err((
                "kafka.listen",
                format!("names {address} twice; leave one out"),
            ));
        }
    }
    check_sessions(config)
}

/// Whether there is a session that a member of a group may ask for.
pub(super) fn check_sessions(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    if config.kafka.session_min > config.kafka.session_max {
        return Err((
            "kafka.session_min",
            "is above kafka.session_max; lower it or raise the maximum".into(),
        ));
    }
    if config.kafka.consumer_heartbeat >= config.kafka.consumer_session {
        return Err((
            "kafka.consumer_heartbeat",
            "is not below kafka.consumer_session, so that members would be put out between two heartbeats; lower it or raise the session".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::resolve::Sources;
    use super::*;

    fn with(flags: &[(&str, &str)]) -> Result<KafkaConfig, String> {
        let sources = Sources {
            flags: flags
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Sources::default()
        };
        let resolved = sources.resolve().map_err(|error| error.to_string())?;
        Ok(resolved.config.kafka)
    }

    fn from_file(text: &str) -> Result<KafkaConfig, String> {
        Sources::default()
            .resolve_with(Some((Path::new("kera.toml"), text)))
            .map(|resolved| resolved.config.kafka)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn off_unless_told() {
        let kafka = with(&[]).unwrap();
        assert_eq!(kafka.listeners().count(), 0);
        assert!(kafka.auto_create_topics);
        assert_eq!(kafka.max_request_bytes, 100 << 20);
        assert_eq!(kafka.offsets_retention, Duration::from_secs(7 * 86_400));
        assert_eq!(with(&[("kafka.listen", "off")]).unwrap(), kafka);
    }

    #[test]
    fn several_listeners_pair_with_what_they_advertise() {
        let flags = [
            ("kafka.listen", "127.0.0.1:9092, [::1]:9093"),
            ("kafka.advertise", "a.example:19092,b.example:19093"),
        ];
        let expected = [
            ("127.0.0.1:9092", Some("a.example:19092")),
            ("[::1]:9093", Some("b.example:19093")),
        ];
        let kafka = with(&flags).unwrap();
        assert_eq!(kafka.listeners().collect::<Vec<_>>(), expected);
        let derived = with(&flags[..1]).unwrap();
        assert_eq!(derived.listeners().nth(1), Some(("[::1]:9093", None)));

        let listed = from_file(
            "[kafka]\nlisten = [\"127.0.0.1:9092\", \"[::1]:9093\"]\nadvertise = [\"a.example:19092\", \"b.example:19093\"]\n",
        );
        assert_eq!(listed.unwrap(), kafka);
        let one = from_file("[kafka]\nlisten = \"127.0.0.1:9092\"\n").unwrap();
        assert_eq!(one.listen, ["127.0.0.1:9092"]);
    }

    #[test]
    fn what_does_not_fit_together_says_what_to_do() {
        let problem = |flags: &[(&str, &str)]| with(flags).unwrap_err();
        let listen = ("kafka.listen", "127.0.0.1:9092");
        assert_eq!(
            problem(&[listen, ("kafka.advertise", "a:1,b:2")]),
            "flag --kafka-advertise: kafka.advertise: has 2 addresses and kafka.listen has 1; write one for each, in the same order"
        );
        assert!(problem(&[("kafka.advertise", "a:1")]).contains("kafka.listen is off"));
        assert!(problem(&[listen, ("server.listen", listen.1)]).contains("server.listen already"));
        assert!(problem(&[listen, ("http.listen", listen.1)]).contains("http.listen already"));
        assert!(problem(&[("kafka.listen", "a:9,a:9")]).contains("twice"));
        assert!(with(&[("kafka.listen", "a:0,a:0")]).is_ok());
        assert!(problem(&[("kafka.session_min", "1h")]).contains("kafka.session_max"));
    }

    #[test]
    fn an_address_of_another_form_gets_a_hint() {
        let problem = |text: &str| with(&[("kafka.listen", text)]).unwrap_err();
        let alone = problem("a:1,off");
        assert!(alone.contains("`off` stands alone"), "{alone}");
        assert!(problem("PLAINTEXT://:9092").contains("leave out `PLAINTEXT://`"));
        assert!(problem("SSL://h:9092").contains("For TLS set tls.listeners"));
        assert!(problem("localhost").contains("write `localhost:9092`"));
        assert!(problem("a:1,,b:2").contains("is not an address"));
        assert!(problem("::1:9092").contains("in brackets"));
        assert!(problem("a:99999").contains("is not a port"));
        let mixed = from_file("[kafka]\nlisten = [\"a:1\", 2]\n").unwrap_err();
        assert!(
            mixed.starts_with("kera.toml:2: kafka.listen: write"),
            "{mixed}"
        );
        let number = from_file("[kafka]\ndefault_partitions = [1]\n").unwrap_err();
        assert!(number.contains("wrong type of value"), "{number}");
    }
}
