//! Which transports this machine can use, and why not the others.

use std::fmt;
use std::str::FromStr;

/// What to set where the system lets a process lock too little memory.
#[cfg(any(feature = "rdma", test))]
pub(super) const MEMLOCK_ADVICE: &str = "set LimitMEMLOCK=infinity in its systemd unit, --ulimit memlock=-1:-1 for a container, or ulimit -l unlimited";

/// A way for data between brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransportKind {
    /// Sockets; everywhere.
    Tcp,
    /// Remote direct memory access, through network cards that can.
    Rdma,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        })
    }
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// The best that the machine can.
    #[default]
    Auto,
    /// This one, or an error.
    Only(TransportKind),
}

impl FromStr for Preference {
    type Err = String;

    /// `auto`, `tcp` or `rdma`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcp" => Ok(Self::Only(TransportKind::Tcp)),
            "rdma" => Ok(Self::Only(TransportKind::Rdma)),
            _ => Err(format!("\"{text}\" is no transport; use auto, tcp or rdma")),
        }
    }
}

impl Preference {
    /// The transport to use among `capabilities`.
    ///
    /// # Errors
    /// Why the only one asked for cannot be used.
    pub fn pick(self, capabilities: &[Capability]) -> Result<TransportKind, String> {
        let of = |kind| capabilities.iter().find(|c| c.kind == kind);
        match self {
            Self::Auto => {
                let usable = capabilities.iter().filter(|c| c.usable.is_ok());
                Ok(usable.map(|c| c.kind).max().unwrap_or(TransportKind::Tcp))
            }
            Self::Only(kind) => match of(kind).map(|c| &c.usable) {
                Some(Ok(_)) => Ok(kind),
                Some(Err(reason)) => Err(format!(
                    "transport {kind} cannot be used here: {reason}; or use auto"
                )),
                None => Err(format!("transport {kind} is not known here; use auto")),
            },
        }
    }
}

/// Whether a transport can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The transport.
    pub kind: TransportKind,
    /// By what means it can, or why it cannot and what to do.
    pub usable: Result<String, String>,
}

/// What this build can use on this machine, for a broker that registers `bytes` bytes of memory.
pub fn capabilities(bytes: u64) -> Vec<Capability> {
    vec![
        Capability {
            kind: TransportKind::Tcp,
            usable: Ok("sockets".into()),
        },
        Capability {
            kind: TransportKind::Rdma,
            usable: rdma(bytes),
        },
    ]
}

#[cfg(feature = "rdma")]
fn rdma(bytes: u64) -> Result<String, String> {
    let devices = super::rdma::devices()?;
    may_lock(lockable_bytes(), bytes)?;
    Ok(devices.join(", "))
}

#[cfg(not(feature = "rdma"))]
fn rdma(_: u64) -> Result<String, String> {
    Err("this build has it not; build with the feature rdma".into())
}

/// Registered memory is locked memory; `may` is what the process may lock, `None` without a limit.
#[cfg(any(feature = "rdma", test))]
fn may_lock(may: Option<u64>, bytes: u64) -> Result<(), String> {
    match may {
        Some(may) if may < bytes => Err(format!(
            "the process may lock {may} bytes of memory and needs {bytes}: {MEMLOCK_ADVICE}"
        )),
        _ => Ok(()),
    }
}

/// Bytes that this process may lock; `None` if there is no limit, or none for it.
#[cfg(feature = "rdma")]
fn lockable_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_privileged(&status) {
        return None;
    }
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// True if the capability to lock memory without a limit is effective.
#[cfg(any(feature = "rdma", test))]
fn is_privileged(status: &str) -> bool {
    /// `CAP_IPC_LOCK` of `linux/capability.h`.
    const IPC_LOCK: u32 = 14;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> IPC_LOCK) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(rdma: Result<String, String>) -> Vec<Capability> {
        let tcp = Ok("sockets".into());
        vec![
            Capability {
                kind: TransportKind::Tcp,
                usable: tcp,
            },
            Capability {
                kind: TransportKind::Rdma,
                usable: rdma,
            },
        ]
    }

    #[test]
    fn auto_takes_the_best_and_a_wish_is_an_order() {
        let (with, without) = (known(Ok("rxe0".into())), known(Err("no card".into())));
        let pick = |wish: &str, of| wish.parse::<Preference>().expect("a wish").pick(of);
        assert_eq!(pick("auto", &with), Ok(TransportKind::Rdma));
        assert_eq!(pick("auto", &without), Ok(TransportKind::Tcp));
        assert_eq!(pick("tcp", &with), Ok(TransportKind::Tcp));
        assert_eq!(pick("rdma", &with), Ok(TransportKind::Rdma));
        let error = pick("rdma", &without).expect_err("there is no card");
        assert!(error.contains("no card"), "{error}");
        assert!("udp".parse::<Preference>().is_err());
    }

    #[test]
    fn sockets_can_always_be_used_and_the_other_says_why_not() {
        let all = capabilities(1 << 20);
        assert_eq!(all[0].usable, Ok("sockets".into()));
        if let Err(reason) = &all[1].usable {
            assert!(reason.len() > 10, "{reason}");
        }
    }

    #[test]
    fn too_little_lockable_memory_says_what_to_set() {
        assert_eq!(may_lock(None, u64::MAX), Ok(()));
        assert_eq!(may_lock(Some(64), 64), Ok(()));
        let error = may_lock(Some(65_536), 1 << 30).expect_err("too little");
        assert!(error.contains("LimitMEMLOCK"), "{error}");
        assert!(is_privileged("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!is_privileged("CapEff:\t0000000000000000\n"));
        assert!(!is_privileged(""));
    }
}
