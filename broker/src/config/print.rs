//! A configuration as a commented file, and the reference document.

use std::fmt::Write as _;

use super::alterable::Alterable;
use super::key::Key;
use super::keys::{KEYS, SECTIONS};
use super::resolve::Resolved;

impl Resolved {
    /// The whole configuration as a TOML file: each key with what it means, its limits and where
    /// its value came from. Reading it back gives the same configuration.
    pub fn to_toml(&self) -> String {
        let mut out = String::from(
            "# Kera broker configuration. Flags come before environment variables, then this file.\n",
        );
        let mut section = "";
        for key in KEYS {
            out.push('\n');
            if key.section != section {
                section = key.section;
                if let Some((_, doc)) = SECTIONS.iter().find(|(name, _)| *name == section) {
                    for line in *doc {
                        let _ = writeln!(out, "# {}", line.trim());
                    }
                }
                let _ = writeln!(out, "[{section}]");
            }
            for line in key.doc {
                let _ = writeln!(out, "# {}", line.trim());
            }
            let limits = key.limits_text();
            let limits = if limits.is_empty() {
                String::new()
            } else {
                format!(", {limits}")
            };
            let _ = writeln!(out, "# {}{limits}; from: {}", key.form, self.origin(key));
            let _ = writeln!(out, "{} = {}", key.short_name(), self.toml_value(key));
        }
        out
    }

    fn toml_value(&self, key: &Key) -> String {
        let text = self.value(key);
        if key.bare {
            text
        } else {
            toml::Value::String(text).to_string()
        }
    }
}

/// The reference of every key, as Markdown: what `docs/configuration.md` holds.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         <!-- Generated from broker/src/config/keys.rs: `make regenerate` or `KERA_REGENERATE=1 cargo test -p kera-broker config`. -->\n\n\
         `kera serve` reads one TOML file (`--config FILE`, or `KERA_CONFIG`). Every key can also be set by an environment\n\
         variable and by a flag of `kera serve`. A flag comes before the environment, the environment before the file, the\n\
         file before the default. `kera config print` shows every value and where it came from; `kera config check FILE` checks\n\
         a file without starting anything. Unknown keys are refused.\n\n\
         Sizes: `B`, `KiB`, `MiB`, `GiB`, `TiB`, or decimal `kB`, `MB`, `GB`, `TB`; a plain number is bytes. Durations: `us`,\n\
         `ms`, `s`, `m`, `h`, `d`, also combined (`1h30m`); a number without a unit is refused, except 0. Some flags have a\n\
         second, shorter name.\n",
    );
    let mut section = None;
    for key in KEYS {
        if section != Some(key.section) {
            section = Some(key.section);
            match SECTIONS.iter().find(|(name, _)| *name == key.section) {
                Some((name, doc)) => {
                    let about: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
                    let _ = write!(out, "\n## `[{name}]`\n\n{}\n", about.join(" "));
                }
                None => out.push_str("\n## At the top of the file\n"),
            }
        }
        let _ = write!(out, "\n### `{}`\n\n{}\n\n", key.name, key.paragraph());
        let _ = writeln!(out, "- value: {}", key.form);
        let limits = key.limits_text();
        if !limits.is_empty() {
            let _ = writeln!(out, "- limits: {limits}");
        }
        if key.name == "data_dir" {
            let _ = writeln!(out, "- default: `~/.local/share/kera`, see above");
        } else {
            let _ = writeln!(out, "- default: `{}`", key.default);
        }
        let _ = writeln!(
            out,
            "- environment: `{}`; flag: `--{}`{}",
            key.env(),
            key.flag(),
            key.short_flag()
                .map_or_else(String::new, |flag| format!(" or `--{flag}`"))
        );
        if let Some(one) = Alterable::find(key.name) {
            let _ = writeln!(
                out,
                "- may change while the broker runs, as Kafka's `{}`",
                one.kafka_name
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Sources;
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        let sources = Sources {
            flags: vec![
                ("data_dir".into(), "/srv/a \"quoted\" dir".into()),
                ("memory.pool".into(), "3GiB".into()),
                ("http.listen".into(), "off".into()),
            ],
            ..Sources::default()
        };
        let resolved = sources.resolve().unwrap();
        let text = resolved.to_toml();
        assert!(text.contains("from: flag --memory-pool"), "{text}");
        let again = Sources::default()
            .resolve_with(Some((Path::new("printed.toml"), &text)))
            .unwrap();
        assert_eq!(again.config, resolved.config);
    }

    #[test]
    fn the_reference_document_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let expected = reference_markdown();
        if std::env::var_os("KERA_REGENERATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "docs/configuration.md is not what the table of keys says; run `KERA_REGENERATE=1 cargo test -p kera-broker config`"
        );
    }
}
