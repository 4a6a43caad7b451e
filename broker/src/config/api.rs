//! Kinds of keys about what is shown over HTTP, and to whom.

use super::kinds::{Kind, Limits};

/// What is not shown of records, `FIELD` or `STREAM:FIELD`: `Vec<String>`, empty for `off`.
pub(super) enum MaskRules {}

impl Kind for MaskRules {
    type Value = Vec<String>;
    const FORM: &'static str = "`FIELD` or `STREAM:FIELD`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<String>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let mut rules = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (stream, field) = part.split_once(':').unwrap_or(("any", part));
            if stream.is_empty() || field.is_empty() {
                return Err(format!(
                    "`{part}` names nothing to hide; write a field's name, or a stream, a colon and a field, such as orders:email"
                ));
            }
            if !rules.iter().any(|rule| rule == part) {
                rules.push(part.to_owned());
            }
        }
        Ok(rules)
    }

    fn show(value: &Vec<String>) -> String {
        match value.is_empty() {
            true => "off".to_owned(),
            false => value.join(","),
        }
    }
}

/// What anybody may ask for where clients of `http.listen` prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenPath {
    /// `/livez`, `/healthz` and `/readyz`.
    Probes,
    /// `/metrics`.
    Metrics,
}

/// Such paths: `Vec<OpenPath>`, empty for `off`.
pub(super) enum OpenPaths {}

impl Kind for OpenPaths {
    type Value = Vec<OpenPath>;
    const FORM: &'static str =
        "`probes` and `metrics`, with a comma between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<OpenPath>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for part in text.split(',').map(str::trim) {
            let path = match part {
                "probes" => OpenPath::Probes,
                "metrics" => OpenPath::Metrics,
                _ => {
                    return Err(format!(
                        "`{part}` cannot be opened; write probes, metrics, or off alone"
                    ));
                }
            };
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    fn show(value: &Vec<OpenPath>) -> String {
        let names: Vec<_> = value
            .iter()
            .map(|path| match path {
                OpenPath::Probes => "probes",
                OpenPath::Metrics => "metrics",
            })
            .collect();
        match names.is_empty() {
            true => "off".to_owned(),
            false => names.join(","),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_a_field_and_perhaps_a_stream() {
        let parse = |text| MaskRules::parse(text, &Limits::NONE);
        let two = vec!["email".to_owned(), "orders:*".to_owned()];
        assert_eq!(parse("email, orders:*,email").unwrap(), two);
        assert_eq!(MaskRules::show(&two), "email,orders:*");
        assert!(parse("off").unwrap().is_empty());
        for wrong in ["api", "probes,off", "metrics,"] {
            assert!(OpenPaths::parse(wrong, &Limits::NONE).is_err(), "{wrong}");
        }
        for wrong in ["email,", ":email", "orders:"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
