//! What listeners need of their addresses together.

use std::net::IpAddr;

use kera_metadata::MAX_MEMBER_TEXT;

use super::keys::{BrokerConfig, KafkaConfig, ServerConfig};
use super::named::{ListenerName, NamedAddress, with_advertised};

impl KafkaConfig {
    /// Each address to listen on with the address to tell clients, if one was given.
    pub fn listeners(&self) -> impl Iterator<Item = (&NamedAddress, Option<&str>)> {
        with_advertised(self.listen.iter(), &self.advertise)
    }
}

impl ServerConfig {
    /// The same of the native addresses.
    pub fn listeners(&self) -> impl Iterator<Item = (&NamedAddress, Option<&str>)> {
        with_advertised(self.listen.iter(), &self.advertise)
    }

    /// What the first address is told as, if that was given.
    pub fn first_advertised(&self) -> Option<&str> {
        self.listeners().next().and_then(|(_, told)| told)
    }
}

/// What is wrong between the keys of the listeners: the key and what to do, one at a time.
pub(super) fn check_kafka(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    const NATIVE: [&str; 2] = ["server.listen", "server.advertise"];
    const KAFKA: [&str; 2] = ["kafka.listen", "kafka.advertise"];
    let (kafka, server) = (&config.kafka, &config.server);
    if kafka.listen.is_empty() && !kafka.advertise.is_empty() {
        return Err((
            "kafka.advertise",
            "is set but kafka.listen is off; set kafka.listen, such as 127.0.0.1:9092".into(),
        ));
    }
    let native: Vec<_> = server.listen.iter().collect();
    let of_kafka: Vec<_> = kafka.listen.iter().collect();
    check_advertised(NATIVE, &native, &server.advertise)?;
    let mut further = server.listen.more.iter();
    if let Some(NamedAddress { address, .. }) = further.find(|one| one.name.is_none()) {
        let problem = format!(
            "{address} is not the first and has no name, and whoever comes in there would be told the first; write NAME={address}"
        );
        return Err(("server.listen", problem));
    }
    check_advertised(KAFKA, &of_kafka, &kafka.advertise)?;
    for ([key, _], listen) in [(NATIVE, &native), (KAFKA, &of_kafka)] {
        for (index, NamedAddress { name, address }) in listen.iter().enumerate() {
            let before = &listen[..index];
            if let Some(name) = name
                && before.iter().any(|one| one.name.as_ref() == Some(name))
            {
                return Err((
                    key,
                    format!("has two addresses with the name {name}; give each its own"),
                ));
            }
            if address.ends_with(":0") {
                continue;
            }
            if key == "kafka.listen" && native.iter().any(|one| one.address == *address) {
                return Err((
                    key,
                    format!("{address} is server.listen already; take another port, such as 9092"),
                ));
            }
            if config.http.listen.as_ref() == Some(address) {
                return Err((
                    key,
                    format!("{address} is http.listen already; take another port"),
                ));
            }
            if before.iter().any(|one| one.address == *address) {
                return Err((key, format!("names {address} twice; leave one out")));
            }
        }
    }
    check_names(native.iter().chain(&of_kafka).copied())?;
    check_reachable(config)?;
    check_told(config)?;
    check_sessions(config)
}

/// Names that people take for one are refused: an address may let in other clients than the other.
fn check_names<'a>(
    all: impl Iterator<Item = &'a NamedAddress> + Clone,
) -> Result<(), (&'static str, String)> {
    let names = all.filter_map(|one| one.name.as_ref());
    for (index, name) in names.clone().enumerate() {
        let is_alike =
            |one: &&ListenerName| *one != name && one.as_str().eq_ignore_ascii_case(name.as_str());
        if let Some(before) = names.clone().take(index).find(is_alike) {
            let problem = format!(
                "addresses have the names {before} and {name}, which are two here and differ in case alone; write both as {before}, or take another name for one"
            );
            return Err(("kafka.listen", problem));
        }
    }
    Ok(())
}

/// An address that clients are told has to lead to this broker.
fn check_reachable(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let of = |key: &'static str, all: &[NamedAddress]| {
        let all = all.iter().map(|one| one.address.clone());
        all.map(|address| (key, address)).collect::<Vec<_>>()
    };
    let cluster = config.cluster.advertise.iter().cloned();
    let told = of("server.advertise", &config.server.advertise).into_iter();
    let told = told.chain(of("kafka.advertise", &config.kafka.advertise));
    let told = told.chain(cluster.map(|address| ("cluster.advertise", address)));
    for (key, address) in told {
        let Some((host, port)) = address.rsplit_once(':') else {
            continue;
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if bare
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_unspecified())
        {
            let problem = format!(
                "{address} is every interface of a machine, and whoever is told it comes to itself; write a name or an address of this one, such as broker1.example.org:{port}"
            );
            return Err((key, problem));
        }
        // Of Kafka's addresses it stands for the port listened on.
        if key != "kafka.advertise" && port.parse() == Ok(0_u16) {
            let problem = format!(
                "{address} has port 0, where nobody listens; write the port at which {host} is reached, or auto for the one at which the broker listens"
            );
            return Err((key, problem));
        }
    }
    Ok(())
}

/// Other brokers are told all addresses for Kafka's clients in one text.
fn check_told(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let of_one = |(listen, told): (&NamedAddress, Option<&str>)| {
        let text = told.unwrap_or(&listen.address);
        // The system may choose the port, and the address of every interface is told as another one.
        text.len().max("255.255.255.255:65535".len())
    };
    let all = config.kafka.listeners().map(of_one);
    let bytes = all.map(|of_one| of_one + ",".len()).sum::<usize>();
    if config.cluster.store.is_none() || bytes <= MAX_MEMBER_TEXT {
        return Ok(());
    }
    let key = match config.kafka.advertise.is_empty() {
        true => "kafka.listen",
        false => "kafka.advertise",
    };
    let problem = format!(
        "takes about {bytes} bytes with commas, and other brokers can be told {MAX_MEMBER_TEXT}; write fewer addresses, or shorter names of hosts"
    );
    Err((key, problem))
}

/// What is wrong with the addresses that clients are told.
fn check_advertised(
    [listen_key, key]: [&'static str; 2],
    listen: &[&NamedAddress],
    advertise: &[NamedAddress],
) -> Result<(), (&'static str, String)> {
    if !advertise.iter().any(|one| one.name.is_some()) {
        let (told, all) = (advertise.len(), listen.len());
        return match told {
            0 => Ok(()),
            _ if told == all => Ok(()),
            _ => Err((
                key,
                format!(
                    "has {told} addresses and {listen_key} has {all}; write one for each, in the same order"
                ),
            )),
        };
    }
    for (index, one) in advertise.iter().enumerate() {
        let Some(name) = &one.name else {
            let address = &one.address;
            return Err((
                key,
                format!("{address} has no name, and others there have; write NAME={address}"),
            ));
        };
        if !listen.iter().any(|listen| listen.name == one.name) {
            return Err((
                key,
                format!("{name} is no name in {listen_key}; give an address there that name"),
            ));
        }
        if advertise[..index]
            .iter()
            .any(|before| before.name == one.name)
        {
            return Err((key, format!("has {name} twice; leave one out")));
        }
    }
    Ok(())
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
        let (first, second) = ("127.0.0.1:9092".into(), "[::1]:9093".into());
        let expected = [
            (&first, Some("a.example:19092")),
            (&second, Some("b.example:19093")),
        ];
        let kafka = with(&flags).unwrap();
        assert_eq!(kafka.listeners().collect::<Vec<_>>(), expected);
        let derived = with(&flags[..1]).unwrap();
        assert_eq!(derived.listeners().nth(1), Some((&second, None)));

        let listed = from_file(
            "[kafka]\nlisten = [\"127.0.0.1:9092\", \"[::1]:9093\"]\nadvertise = [\"a.example:19092\", \"b.example:19093\"]\n",
        );
        assert_eq!(listed.unwrap(), kafka);
        let one = from_file("[kafka]\nlisten = \"127.0.0.1:9092\"\n").unwrap();
        assert_eq!(one.listen, ["127.0.0.1:9092".into()]);
    }

    #[test]
    fn addresses_with_names_are_told_by_their_names() {
        let listen = (
            "kafka.listen",
            "inner=127.0.0.1:9092, outer=[::1]:9093,[::1]:9094",
        );
        let told = |advertise: &str| {
            let kafka = with(&[listen, ("kafka.advertise", advertise)]).unwrap();
            let told = kafka.listeners().map(|(_, told)| told.map(str::to_owned));
            told.collect::<Vec<_>>()
        };
        let text = |text: &str| Some(text.to_owned());
        // With names the order does not matter, and a name that is left out gets the address that it listens at. Without
        // names the order counts.
        assert_eq!(told("outer=b:2"), [None, text("b:2"), None]);
        assert_eq!(
            told("outer=b:2,inner=a:1"),
            [text("a:1"), text("b:2"), None]
        );
        assert_eq!(told("a:1,b:2,c:3"), [text("a:1"), text("b:2"), text("c:3")]);
        let kafka = with(&[listen]).unwrap();
        let names: Vec<_> = kafka.listen.iter().map(NamedAddress::to_string).collect();
        assert_eq!(
            names,
            ["inner=127.0.0.1:9092", "outer=[::1]:9093", "[::1]:9094"]
        );
        let problem =
            |advertise: &str| with(&[listen, ("kafka.advertise", advertise)]).unwrap_err();
        assert!(problem("other=a:1").contains("other is no name in kafka.listen"));
        assert!(problem("inner=a:1,b:2").contains("write NAME=b:2"));
        assert!(problem("inner=a:1,inner=b:2").contains("has inner twice"));
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
        assert!(problem(&[("kafka.listen", "x=a:9,y=a:9")]).contains("twice"));
        assert!(
            problem(&[("kafka.listen", "x=a:1,x=a:2")]).contains("two addresses with the name x")
        );
        assert!(with(&[("kafka.listen", "a:0,a:0")]).is_ok());
        assert!(problem(&[("kafka.session_min", "1h")]).contains("kafka.session_max"));
    }

    #[test]
    fn what_clients_are_told_leads_to_the_broker() {
        let listen = ("kafka.listen", "inner=127.0.0.1:9092,outer=[::1]:9093");
        for (key, told, expected) in [
            (
                "server.advertise",
                "0.0.0.0:7600",
                "such as broker1.example.org:7600",
            ),
            (
                "server.advertise",
                "[::]:7600",
                "[::]:7600 is every interface",
            ),
            (
                "kafka.advertise",
                "inner=a:1,outer=0.0.0.0:2",
                "0.0.0.0:2 is every interface",
            ),
            (
                "kafka.advertise",
                "inner=a:1,outer=[::ffff:0.0.0.0]:2",
                "is every interface",
            ),
            ("server.advertise", "b:0", "b:0 has port 0"),
            (
                "cluster.advertise",
                "0.0.0.0:7601",
                "cluster.advertise: 0.0.0.0:7601",
            ),
            (
                "cluster.advertise",
                "b:0",
                "write the port at which b is reached",
            ),
        ] {
            let refused = with(&[listen, (key, told)]).expect_err(told);
            assert!(refused.contains(expected), "{refused}");
        }
        for (key, told) in [
            ("server.advertise", "10.0.0.0:7600"),
            ("kafka.advertise", "a:1,[::1]:0"),
            ("cluster.advertise", "b:7601"),
        ] {
            assert!(with(&[listen, (key, told)]).is_ok(), "{told}");
        }
    }

    #[test]
    fn names_that_differ_in_case_alone_are_refused() {
        let refused = |listen: &[(&str, &str)]| with(listen).expect_err("they look the same");
        let expected =
            "the names Ext and ext, which are two here and differ in case alone; write both as Ext";
        let one = refused(&[("kafka.listen", "Ext=a:1,b=a:2,ext=a:3")]);
        assert!(one.contains(expected), "{one}");
        let native = ("server.listen", "Ext=127.0.0.1:7600");
        let across = refused(&[native, ("kafka.listen", "ext=127.0.0.1:9092")]);
        assert!(across.contains(expected), "{across}");
        assert!(with(&[native, ("kafka.listen", "Ext=127.0.0.1:9092")]).is_ok());
        let taken = refused(&[("kafka.listen", "Kafka=a:1")]);
        assert!(taken.contains("`Kafka` is no name"), "{taken}");
    }

    #[test]
    fn an_address_of_another_form_gets_a_hint() {
        let problem = |text: &str| with(&[("kafka.listen", text)]).unwrap_err();
        let alone = problem("a:1,off");
        assert!(alone.contains("`off` stands alone"), "{alone}");
        assert!(problem("PLAINTEXT://:9092").contains("leave out `PLAINTEXT://`"));
        assert!(problem("SSL://h:9092").contains("For TLS set tls.listeners"));
        assert!(problem("EXTERNAL://h:9092").contains("write `EXTERNAL=h:9092`"));
        for none in ["kafka", "true", "a b", "", "x.y"] {
            let refused = problem(&format!("{none}=h:9092"));
            assert!(refused.contains("is no name"), "{refused}");
        }
        assert!(problem("localhost").contains("or `localhost:9092` for Kafka's"));
        assert!(problem("7600").contains("no host; write `127.0.0.1:7600`"));
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
