//! Kinds of keys about rules of access.

use super::kinds::{Kind, Limits};

/// Users: `Vec<String>`, empty for `off`.
pub(super) enum Users {}

impl Kind for Users {
    type Value = Vec<String>;
    const FORM: &'static str =
        "`User:NAME`, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<String>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let mut users = Vec::new();
        for part in text.split(',').map(str::trim) {
            let name = part.strip_prefix("User:");
            if name.is_none_or(|name| name.is_empty() || name == "*" || name == "ANONYMOUS") {
                return Err(format!(
                    "`{part}` is no user; write User: and a name, such as User:admin (not `*`, and not ANONYMOUS, who has proved nothing)"
                ));
            }
            if !users.iter().any(|user| user == part) {
                users.push(part.to_owned());
            }
        }
        Ok(users)
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
    fn users_are_named_with_what_they_are() {
        let parse = |text| Users::parse(text, &Limits::NONE);
        let two = ["User:a".to_owned(), "User:b c".to_owned()];
        assert_eq!(parse("User:a, User:b c,User:a").unwrap(), two);
        assert_eq!(Users::show(&two.to_vec()), "User:a,User:b c");
        assert!(parse("off").unwrap().is_empty());
        for wrong in [
            "admin",
            "User:",
            "User:*",
            "User:ANONYMOUS",
            "User:a,",
            "Group:a",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
