//! Kinds of keys about what is shown over HTTP.

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
        for wrong in ["email,", ":email", "orders:"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
