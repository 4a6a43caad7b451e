//! Who is who among several brokers, as configurations write it: numbers, hosts, peers.

use std::net::IpAddr;
use std::path::PathBuf;

use super::keys::BrokerConfig;
use super::kinds::{Directory, Kind, Limits};
use super::units;

/// Peers that one broker may name.
const MAX_PEERS: usize = 255;

/// Another broker, as `cluster.peers` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number, the `cluster.broker_id` of its own configuration.
    pub id: u32,
    /// Where it listens for other brokers: its `cluster.listen` as it is reached from here.
    pub address: String,
    /// The machine it runs on, if that is told.
    pub host: Option<String>,
}

impl Peer {
    /// The machine it runs on: what was told, or this one for a loopback address, or the address
    /// without its port.
    ///
    /// ```
    /// use kera_broker::config::Peer;
    /// let peer: Peer = "2@127.0.0.1:7701".parse().unwrap();
    /// assert_eq!(peer.host_seen_from("alpha"), "alpha");
    /// let peer: Peer = "2@10.0.0.2:7601@beta".parse().unwrap();
    /// assert_eq!(peer.host_seen_from("alpha"), "beta");
    /// ```
    pub fn host_seen_from<'a>(&'a self, here: &'a str) -> &'a str {
        match &self.host {
            Some(host) => host,
            None if is_loopback(&self.address) => here,
            None => host_of(&self.address),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.id, self.address)?;
        match &self.host {
            Some(host) => write!(f, "@{host}"),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Peer {
    type Err = String;

    /// Reads `id@host:port`, or `id@host:port@machine`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let mut parts = text.split('@');
        let (id, address) = match (parts.next(), parts.next()) {
            (Some(id), Some(address)) => (id, address),
            _ => {
                return Err(format!(
                    "`{text}` is not a peer; write id@host:port, such as 2@10.0.0.2:7601, or id@host:port@machine"
                ));
            }
        };
        let host = parts.next();
        if parts.next().is_some() || host.is_some_and(|host| !is_name(host)) {
            return Err(format!(
                "`{text}` is not a peer; after the address stands the machine's name alone, as in 2@10.0.0.2:7601@hostb"
            ));
        }
        let id = id.parse().ok().filter(|id| *id > 0);
        let id = id.ok_or_else(|| {
            format!("`{text}` begins with no broker's number; write id@host:port with an id from 1")
        })?;
        let address = units::check_address(address)
            .map_err(|error| format!("`{text}` is not a peer: {error}"))?;
        if address.ends_with(":0") {
            return Err(format!(
                "`{text}` names port 0; write the port that the peer listens on, its cluster.listen"
            ));
        }
        Ok(Self {
            id,
            address,
            host: host.map(str::to_owned),
        })
    }
}

/// The host of `host:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn is_loopback(address: &str) -> bool {
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

/// Other brokers: `Vec<Peer>`, empty for `none`.
pub(super) enum PeerList {}

impl Kind for PeerList {
    type Value = Vec<Peer>;
    const FORM: &'static str = "`id@host:port` or `id@host:port@machine`, several with commas between them (in a file also a list), or `none`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<Peer>, String> {
        let text = text.trim();
        if text.is_empty() || text == "none" {
            return Ok(Vec::new());
        }
        text.split(',').map(str::parse).collect()
    }

    fn show(value: &Vec<Peer>) -> String {
        if value.is_empty() {
            return "none".into();
        }
        let shown: Vec<_> = value.iter().map(Peer::to_string).collect();
        shown.join(",")
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
    let peers = &cluster.peers;
    let wrong = |message: String| Err(("cluster.peers", message));
    if cluster.store.is_some() && cluster.broker_id.is_none() {
        return Err((
            "cluster.store",
            "is set but cluster.broker_id is off; set cluster.broker_id, such as with --broker-id 1, another for each broker".into(),
        ));
    }
    if cluster.store.is_some() && !peers.is_empty() {
        return wrong(
            "is set and so is cluster.store, which tells who the other brokers are; leave one of them out".into(),
        );
    }
    let Some(me) = cluster.broker_id else {
        if peers.is_empty() {
            return Ok(());
        }
        return wrong(
            "is set but cluster.broker_id is off; set cluster.broker_id, such as 1, to say which broker this is".into(),
        );
    };
    if peers.len() > MAX_PEERS {
        return wrong(format!(
            "names {} brokers; name at most {MAX_PEERS}",
            peers.len()
        ));
    }
    for (index, peer) in peers.iter().enumerate() {
        let before = &peers[..index];
        if peer.id == me {
            return wrong(format!(
                "`{peer}` has the number of this broker, cluster.broker_id = {me}; name the other brokers only"
            ));
        }
        if before.iter().any(|other| other.id == peer.id) {
            return wrong(format!(
                "names broker {} twice; each broker has a number of its own",
                peer.id
            ));
        }
        if let Some(other) = before.iter().find(|other| other.address == peer.address) {
            return wrong(format!(
                "brokers {} and {} have the same address {}; leave one out",
                other.id, peer.id, peer.address
            ));
        }
        if peer.address == cluster.listen {
            return wrong(format!(
                "`{peer}` has the address that this broker listens on, cluster.listen; name the other brokers only"
            ));
        }
    }
    let listen = &cluster.listen;
    if !listen.ends_with(":0") {
        let taken = [
            (
                "server.listen",
                std::slice::from_ref(&config.server.listen).iter(),
            ),
            ("http.listen", config.http.listen.as_slice().iter()),
            ("kafka.listen", config.kafka.listen.iter()),
        ];
        for (key, mut addresses) in taken {
            if addresses.any(|address| address == listen) {
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
pub(super) fn doubts(config: &BrokerConfig) -> Vec<String> {
    let going = (!config.cluster.peers.is_empty()).then(|| {
        "cluster.peers goes with a later version: brokers with replicas then share an etcd; `kera cluster import` takes this broker there (docs/operations.md#from-a-broker-alone-to-a-cluster)".to_owned()
    });
    unreachable_addresses(config)
        .into_iter()
        .chain(going)
        .collect()
}

fn unreachable_addresses(config: &BrokerConfig) -> Option<String> {
    let cluster = &config.cluster;
    cluster.broker_id?;
    if let Some(store) = &cluster.store {
        return doubt_of_addresses(config, store);
    }
    let far = cluster
        .peers
        .iter()
        .find(|peer| !is_loopback(&peer.address))?;
    is_loopback(&cluster.listen).then(|| {
        format!(
            "cluster.listen is {}, which broker {} at {} cannot reach; listen on an address of the network between the brokers",
            cluster.listen, far.id, far.address
        )
    })
}

/// A store on another machine is most likely shared with brokers on other machines.
fn doubt_of_addresses(config: &BrokerConfig, store: &str) -> Option<String> {
    let members = store.trim_start_matches(ETCD).split('/').next()?;
    if members.split(',').all(is_loopback) {
        return None;
    }
    let (server, cluster) = (&config.server, &config.cluster);
    let told = [
        (
            "cluster.listen",
            &cluster.listen,
            &cluster.advertise,
            "cluster.advertise",
        ),
        (
            "server.listen",
            &server.listen,
            &server.advertise,
            "server.advertise",
        ),
    ];
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
