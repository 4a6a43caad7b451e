//! The counts that are kept in the repository.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use toml::{Table, Value};

/// Counts may differ by this share of what is recorded.
pub(crate) const TOLERANCE: f64 = 0.01;

/// What changes counts although the code is the same: the compiler, and the C library, whose copying
/// is part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub rustc: String,
    /// The processor.
    pub target: String,
    pub libc: String,
}

impl Toolchain {
    /// That of this machine; the compiler is the one on the PATH.
    pub(crate) fn look() -> Self {
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = Command::new(compiler).arg("--version").output();
        let version = version.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).into_owned()
        });
        let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
        let libc = libc.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).trim().to_owned()
        });
        Self {
            rustc: version.split(' ').nth(1).unwrap_or("unknown").to_owned(),
            target: processor().to_owned(),
            libc: if libc.is_empty() {
                "another C library".to_owned()
            } else {
                libc
            },
        }
    }
}

/// What callgrind's processor can do as far as the machine's can: its vectors decide how bytes are
/// copied and checksums computed.
fn processor() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        return "x86_64 with AVX2";
    }
    std::env::consts::ARCH
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rustc {}, {}, {}", self.rustc, self.target, self.libc)
    }
}

/// The file of counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    pub tolerance: f64,
    pub toolchain: Toolchain,
    pub counts: BTreeMap<String, u64>,
}

impl Recorded {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is odd", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse()?;
        let string = |name: &str| {
            let value = table.get(name).and_then(Value::as_str);
            value
                .map(str::to_owned)
                .with_context(|| format!("it lacks {name}"))
        };
        let counts = table.get("instructions").and_then(Value::as_table);
        let counts = counts.context("it lacks [instructions]")?.iter();
        let counts = counts.map(|(name, count)| {
            let count = count
                .as_integer()
                .and_then(|count| u64::try_from(count).ok());
            Ok((
                name.clone(),
                count.with_context(|| format!("{name} is no count"))?,
            ))
        });
        let tolerance = table.get("tolerance").and_then(Value::as_float);
        Ok(Self {
            tolerance: tolerance.context("it lacks tolerance")?,
            toolchain: Toolchain {
                rustc: string("rustc")?,
                target: string("target")?,
                libc: string("libc")?,
            },
            counts: counts.collect::<Result<_>>()?,
        })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let written = std::fs::write(path, self.render());
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    fn render(&self) -> String {
        let mut text = String::from(
            "# Instructions of the data path, counted under callgrind; `make instructions` compares,\n\
             # `make regenerate` records anew. Callgrind has a processor of its own (AVX2, no AVX-512), so\n\
             # the machine should not matter; another compiler or C library does.\n\n",
        );
        let _ = writeln!(
            text,
            "# Share of a count by which it may differ.\ntolerance = {:?}\n\
             rustc = {:?}\ntarget = {:?}\nlibc = {:?}\n\n[instructions]",
            self.tolerance, self.toolchain.rustc, self.toolchain.target, self.toolchain.libc
        );
        for (name, count) in &self.counts {
            let unit = crate::CASES.iter().find(|case| case.name == name);
            let unit = unit.map_or("", |case| case.unit);
            let _ = writeln!(text, "{name} = {count} # {unit}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let recorded = Recorded {
            tolerance: 0.05,
            toolchain: Toolchain::look(),
            counts: [("encode".to_owned(), 70)].into(),
        };
        assert_eq!(Recorded::parse(&recorded.render()).unwrap(), recorded);
        assert!(Recorded::parse("tolerance = 0.05").is_err());
    }

    #[test]
    fn every_case_is_recorded_and_nothing_else() {
        let recorded = Recorded::read(&crate::file()).unwrap();
        let mut names: Vec<_> = crate::CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        assert_eq!(recorded.counts.keys().collect::<Vec<_>>(), names);
    }
}
