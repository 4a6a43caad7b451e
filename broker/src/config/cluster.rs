//! Who is who among several brokers, as configurations write it: numbers, hosts, their store.

use std::net::IpAddr;
use std::path::PathBuf;

use super::keys::BrokerConfig;
use super::kinds::{Directory, Kind, Limits};
use super::units;

/// The host of `host:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

pub(super) fn is_loopback(address: &str) -> bool {
    let host = host_of(address);
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// True if every machine finds itself at the address: loopback, or no address in particular.
pub(crate) fn is_of_every_machine(address: &str) -> bool {
    let unspecified = |ip: IpAddr| ip.is_unspecified();
    is_loopback(address) || host_of(address).parse().is_ok_and(unspecified)
}

/// A machine's name: no blanks, commas or further signs that lists are made with.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    !text.is_empty() && text.len() <= 255 && text.chars().all(fits)
}

/// A broker's number, if there are several: `Option<u32>`.
pub(super) enum BrokerNumber {}

impl Kind for BrokerNumber {
    type Value = Option<u32>;
    const FORM: &'static str = "number, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<u32>, String> {
        match text.trim() {
            "off" => Ok(None),
            other => match other.parse::<u32>() {
                Ok(id) if id > 0 => Ok(Some(id)),
                _ => Err(format!(
                    "`{other}` is not a broker's number; write a whole number from 1, another for each broker, or `off`"
                )),
            },
        }
    }

    fn show(value: &Option<u32>) -> String {
        value.map_or_else(|| "off".into(), |id| id.to_string())
    }
}

/// The name of a machine, or the one that the system tells: `Option<String>`.
pub(super) enum HostName {}

impl Kind for HostName {
    type Value = Option<String>;
    const FORM: &'static str = "name, or `auto`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        match text.trim() {
            "auto" => Ok(None),
            other if is_name(other) => Ok(Some(other.to_owned())),
            other => Err(format!(
                "`{other}` is not a machine's name; write letters, digits, dots, dashes and underscores"
            )),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "auto".into())
    }
}

/// The name of a rack, if there is one: `Option<String>`.
pub(super) enum RackName {}

impl Kind for RackName {
    type Value = Option<String>;
    const FORM: &'static str = "name, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        match text.trim() {
            "off" => Ok(None),
            other if is_name(other) => Ok(Some(other.to_owned())),
            other => Err(format!(
                "`{other}` is not a rack's name; write letters, digits, dots, dashes and underscores"
            )),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}

/// What the address of a store begins with.
const ETCD: &str = "etcd://";

/// True if a member of the etcd at this address is not on this machine.
pub(super) fn members_beyond_loopback(store: &str) -> bool {
    let members = store.trim_start_matches(ETCD).split('/').next();
    let mut members = members.unwrap_or_default().split(',');
    !members.all(is_loopback)
}

/// A store that brokers share, if they do: `Option<String>`, as `etcd://host:port[,host:port]`.
pub(super) enum StoreAddress {}

impl Kind for StoreAddress {
    type Value = Option<String>;
    const FORM: &'static str = "`etcd://host:port`, several `host:port` with commas between them, with a `/prefix` for keys if one is wanted; or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(None);
        }
        let Some(members) = text.strip_prefix(ETCD) else {
            return Err(format!(
                "`{text}` is no store; write etcd://host:port, such as etcd://127.0.0.1:2379, or `off`"
            ));
        };
        let (members, prefix) = match members.split_once('/') {
            Some((members, prefix)) => (members, prefix.trim_matches('/')),
            None => (members, ""),
        };
        let mut checked = Vec::new();
        for member in members.split(',') {
            let address = units::check_address(member.trim())
                .map_err(|error| format!("`{text}` is no store: {error}"))?;
            checked.push(address);
        }
        let mut address = format!("{ETCD}{}", checked.join(","));
        if !prefix.is_empty() {
            address.push('/');
            address.push_str(prefix);
        }
        Ok(Some(address))
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}

/// A directory that is derived unless given: `Option<PathBuf>`.
pub(super) enum DirectoryOrAuto {}

impl Kind for DirectoryOrAuto {
    type Value = Option<PathBuf>;
    const FORM: &'static str = "directory, or `auto`; a leading `~/` is the home directory";

    fn parse(text: &str, limits: &Limits) -> Result<Option<PathBuf>, String> {
        match text.trim() {
            "auto" => Ok(None),
            other => Directory::parse(other, limits).map(Some),
        }
    }

    fn show(value: &Option<PathBuf>) -> String {
        match value {
            Some(path) => Directory::show(path),
            None => "auto".into(),
        }
    }
}

/// What is wrong between the keys of `[cluster]`: the key and what to do, one at a time.
pub(super) fn check_cluster(config: &BrokerConfig) -> Result<(), (&'static str, String)> {
    let cluster = &config.cluster;
    if cluster.store.is_none() {
        // Nobody listens there.
        return Ok(());
    }
    if cluster.broker_id.is_none() {
        return Err((
            "cluster.store",
            "is set but cluster.broker_id is off; set cluster.broker_id, such as with --broker-id 1, another for each broker".into(),
        ));
    }
    let listen = &cluster.listen;
    if !listen.ends_with(":0") {
        let kafka = config.kafka.listen.iter();
        let kafka = kafka.map(|one| ("kafka.listen", &one.address));
        let http = config.http.listen.iter().map(|one| ("http.listen", one));
        let native = config.server.listen.iter();
        let native = native.map(|one| ("server.listen", &one.address));
        for (key, address) in native.chain(http).chain(kafka) {
            if address == listen {
                return Err((
                    "cluster.listen",
                    format!("{listen} is {key} already; take another port, such as 7601"),
                ));
            }
        }
    }
    Ok(())
}

/// What is allowed between the keys of `[cluster]` and probably not meant.
pub(super) fn doubts(config: &BrokerConfig) -> Option<String> {
    match (&config.cluster.store, config.cluster.broker_id) {
        (Some(store), _) => doubt_of_addresses(config, store),
        (None, Some(id)) => Some(format!(
            "cluster.broker_id is {id} and cluster.store is off: this broker works alone, and forms no cluster with others; name the cluster's etcd in cluster.store (KERA_CLUSTER_STORE), or leave cluster.broker_id out"
        )),
        (None, None) => None,
    }
}

/// A store on another machine is most likely shared with brokers on other machines.
fn doubt_of_addresses(config: &BrokerConfig, store: &str) -> Option<String> {
    if !members_beyond_loopback(store) {
        return None;
    }
    let (server, cluster) = (&config.server, &config.cluster);
    let of_brokers = (
        "cluster.listen",
        cluster.listen.as_str(),
        cluster.advertise.as_deref(),
        "cluster.advertise",
    );
    let of_clients = server.listeners();
    let of_clients = of_clients.map(|(listen, told)| {
        let address = listen.address.as_str();
        ("server.listen", address, told, "server.advertise")
    });
    let told = std::iter::once(of_brokers).chain(of_clients);
    for (key, listen, advertise, advertise_key) in told {
        let (key, address) = match advertise {
            Some(address) => (advertise_key, address),
            // Every interface: then it is the host of `server.advertise`.
            None if key == "cluster.listen" && !is_loopback(listen) => continue,
            None => (key, listen),
        };
        if is_of_every_machine(address) {
            return Some(format!(
                "{key} is {address}, where brokers and clients on other machines do not find this one; set {advertise_key} to an address that they reach, unless all brokers run on this machine"
            ));
        }
    }
    None
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
