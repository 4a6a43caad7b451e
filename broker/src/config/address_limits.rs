//! A kind of key that gives addresses limits of their own.

use std::net::IpAddr;

use super::kinds::{Kind, Limits};

/// Most connections, and no limit beside `server.max_connections`.
const MOST: u32 = 1_000_000;

/// The limit of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// Whose limit it is.
    pub address: IpAddr,
    /// The most that it may have.
    pub most: u32,
}

/// Such limits: `Vec<AddressLimit>`, empty for `off`.
pub(super) enum AddressLimits {}

impl Kind for AddressLimits {
    type Value = Vec<AddressLimit>;
    const FORM: &'static str =
        "`ADDRESS:NUMBER`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<AddressLimit>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let mut limits: Vec<AddressLimit> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let limit = one(part).ok_or_else(|| {
                format!(
                    "`{part}` is no limit of an address; write an IP address, a colon and a number of at most {MOST}, such as 10.0.0.7:500 or [2001:db8::7]:20"
                )
            })?;
            if limits.iter().any(|known| known.address == limit.address) {
                return Err(format!("{} has two limits; write one", limit.address));
            }
            limits.push(limit);
        }
        Ok(limits)
    }

    fn show(value: &Vec<AddressLimit>) -> String {
        let show = |one: &AddressLimit| match one.address {
            IpAddr::V4(address) => format!("{address}:{}", one.most),
            IpAddr::V6(address) => format!("[{address}]:{}", one.most),
        };
        match value.is_empty() {
            true => "off".to_owned(),
            false => value.iter().map(show).collect::<Vec<_>>().join(","),
        }
    }
}

fn one(text: &str) -> Option<AddressLimit> {
    let (address, most) = text.rsplit_once(':')?;
    let bracketed = address.strip_prefix('[');
    let address = match bracketed.and_then(|address| address.strip_suffix(']')) {
        Some(address) => IpAddr::V6(address.parse().ok()?),
        // Without brackets nobody could say where an address of IPv6 ends.
        None => IpAddr::V4(address.parse().ok()?),
    };
    let most = most.parse().ok().filter(|most| *most <= MOST)?;
    Some(AddressLimit {
        address: address.to_canonical(),
        most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_back_and_what_is_none_is_refused() {
        let parse = |text| AddressLimits::parse(text, &Limits::NONE);
        let both = parse(" 10.0.0.7:500 ,[2001:db8::7]:0").expect("two limits");
        assert_eq!((both[0].most, both[1].most), (500, 0));
        assert_eq!(both[1].address, "2001:db8::7".parse::<IpAddr>().unwrap());
        assert_eq!(AddressLimits::show(&both), "10.0.0.7:500,[2001:db8::7]:0");
        assert!(parse("off").unwrap().is_empty());
        for wrong in [
            "10.0.0.7",
            "10.0.0.7:",
            "10.0.0.7:-1",
            "10.0.0.7:1000001",
            "example.com:5",
            "2001:db8::7:5",
            "[10.0.0.7]:5",
            "10.0.0.7:5,",
            "10.0.0.7:5,10.0.0.7:6",
            "[::ffff:10.0.0.7]:5,10.0.0.7:6",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
