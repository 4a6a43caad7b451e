//! Names of addresses, and lists of addresses that may have one.

use std::collections::BTreeSet;
use std::fmt;

use parking_lot::Mutex;

use super::kinds::{Kind, Limits};
use super::units;

/// The most bytes of a name.
const MOST_BYTES: usize = 64;
/// What keys about listeners mean by these words.
const TAKEN: [&str; 9] = [
    "native", "kafka", "http", "cluster", "etcd", "true", "false", "off", "auto",
];

/// A name of addresses, such as `external`: letters, digits, dashes and underscores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenerName(&'static str);

/// All names, so that whatever tells of a client says by which one it came in without a copy. They stay: configurations name few.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

fn kept(name: &str) -> &'static str {
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

impl ListenerName {
    /// The name as it is written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let text = text.trim();
        if text.is_empty() || text.len() > MOST_BYTES || !text.chars().all(fits) {
            return Err(format!(
                "`{text}` is no name of addresses; write at most {MOST_BYTES} letters, digits, dashes and underscores"
            ));
        }
        if TAKEN.iter().any(|taken| taken.eq_ignore_ascii_case(text)) {
            return Err(format!(
                "`{text}` is no name of addresses, it stands for something else; take another, such as internal or external"
            ));
        }
        Ok(Self(kept(text)))
    }

    /// The text.
    pub fn as_str(&self) -> &'static str {
        self.0
    }
}

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An address, and the name that it has among those of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAddress {
    /// The name, if it has one.
    pub name: Option<ListenerName>,
    /// `host:port`.
    pub address: String,
}

impl From<String> for NamedAddress {
    /// An address without a name.
    fn from(address: String) -> Self {
        Self {
            name: None,
            address,
        }
    }
}

impl From<&str> for NamedAddress {
    /// An address without a name.
    fn from(address: &str) -> Self {
        address.to_owned().into()
    }
}

impl fmt::Display for NamedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}={}", self.address),
            None => f.write_str(&self.address),
        }
    }
}

/// The native addresses to listen on. Other brokers, and programs on the broker's own machine, go to the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeAddresses {
    /// The first.
    pub first: NamedAddress,
    /// Those behind it.
    pub more: Vec<NamedAddress>,
}

impl NativeAddresses {
    /// All of them, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &NamedAddress> + Clone {
        std::iter::once(&self.first).chain(&self.more)
    }
}

impl From<String> for NativeAddresses {
    /// One address without a name.
    fn from(address: String) -> Self {
        Self {
            first: address.into(),
            more: Vec::new(),
        }
    }
}

impl From<&str> for NativeAddresses {
    /// One address without a name.
    fn from(address: &str) -> Self {
        address.to_owned().into()
    }
}

/// Each address to listen on with the address to tell clients, if one was given: by its name, or in the same order.
pub(super) fn with_advertised<'a>(
    listen: impl Iterator<Item = &'a NamedAddress>,
    advertise: &'a [NamedAddress],
) -> impl Iterator<Item = (&'a NamedAddress, Option<&'a str>)> {
    let by_name = advertise.iter().any(|one| one.name.is_some());
    listen.enumerate().map(move |(index, listen)| {
        let told = match by_name {
            true => advertise.iter().find(|one| one.name == listen.name),
            false => advertise.get(index),
        };
        (listen, told.map(|one| one.address.as_str()))
    })
}

/// Reads addresses that stand between commas; an empty list if the text is empty or `none`.
fn parse_list(text: &str, none: &str) -> Result<Vec<NamedAddress>, String> {
    let text = text.trim();
    if text.is_empty() || text == none {
        return Ok(Vec::new());
    }
    text.split(',').map(|part| parse_one(part.trim())).collect()
}

fn parse_one(text: &str) -> Result<NamedAddress, String> {
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
            "SSL" | "SASL_SSL" | "SASL_PLAINTEXT" => format!(
                "`{text}` is not an address; write `{address}` without `{protocol}://`. For TLS set tls.listeners, for logins auth.listeners"
            ),
            _ => format!(
                "`{text}` is not an address; write `{protocol}={address}`, and what it speaks in listeners.protocols"
            ),
        });
    }
    let (name, address) = match text.split_once('=') {
        Some((name, address)) => (Some(ListenerName::new(name)?), address.trim()),
        None => (None, text),
    };
    let checked = units::check_address(address).map_err(|error| match address.rsplit_once(':') {
        None if address.parse::<u16>().is_ok() => {
            format!("`{address}` has no host; write `127.0.0.1:{address}`")
        }
        None if !address.is_empty() => format!(
            "`{address}` has no port; write `{address}:7600` for native clients, or `{address}:9092` for Kafka's"
        ),
        _ => error,
    });
    checked.map(|address| NamedAddress { name, address })
}

fn show_list(value: &[NamedAddress], none: &str) -> String {
    if value.is_empty() {
        return none.into();
    }
    let texts: Vec<_> = value.iter().map(NamedAddress::to_string).collect();
    texts.join(",")
}

/// Addresses to listen on: `Vec<NamedAddress>`, empty for `off`.
pub(super) enum AddressesOrOff {}

impl Kind for AddressesOrOff {
    type Value = Vec<NamedAddress>;
    const FORM: &'static str = "`host:port`, or several with commas between them (in a file also a list), with names or without (`external=host:port`), or `off`; port 0 lets the system choose";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<NamedAddress>, String> {
        parse_list(text, "off")
    }

    fn show(value: &Vec<NamedAddress>) -> String {
        show_list(value, "off")
    }
}

/// Native addresses, one at least.
pub(super) enum NativeAddressList {}

impl Kind for NativeAddressList {
    type Value = NativeAddresses;
    const FORM: &'static str = "`host:port`, or several with commas between them (in a file also a list), with names or without (`external=host:port`); port 0 lets the system choose";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<NativeAddresses, String> {
        let mut all = parse_list(text, "")?.into_iter();
        let first = all
            .next()
            .ok_or_else(|| "it is empty; write host:port, such as 127.0.0.1:7600".to_owned())?;
        Ok(NativeAddresses {
            first,
            more: all.collect(),
        })
    }

    fn show(value: &NativeAddresses) -> String {
        let all: Vec<_> = value.iter().cloned().collect();
        show_list(&all, "")
    }
}

/// Addresses that are derived unless given: `Vec<NamedAddress>`, empty for `auto`.
pub(super) enum AddressesOrAuto {}

impl Kind for AddressesOrAuto {
    type Value = Vec<NamedAddress>;
    const FORM: &'static str = "`host:port`, or several with commas between them (in a file also a list), with names or without (`external=host:port`), or `auto`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<NamedAddress>, String> {
        parse_list(text, "auto")
    }

    fn show(value: &Vec<NamedAddress>) -> String {
        show_list(value, "auto")
    }
}
