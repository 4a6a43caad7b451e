//! Kinds of keys about an etcd that wants TLS or a password.

use std::path::PathBuf;

use super::kinds::{Directory, Kind, Limits};

/// A file, if there is one: `Option<PathBuf>`. A leading `~/` stands for the home directory.
pub(super) enum FileOrOff {}

impl Kind for FileOrOff {
    type Value = Option<PathBuf>;
    const FORM: &'static str = "file, or `off`; a leading `~/` is the home directory";

    fn parse(text: &str, limits: &Limits) -> Result<Option<PathBuf>, String> {
        match text.trim() {
            "off" => Ok(None),
            "" => Err("the path is empty; name a file, or write `off`".into()),
            other => Directory::parse(other, limits).map(Some),
        }
    }

    fn show(value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| "off".into(), Directory::show)
    }
}

/// The name of a user of etcd, if there is one: `Option<String>`.
pub(super) enum UserName {}

impl Kind for UserName {
    type Value = Option<String>;
    const FORM: &'static str = "name, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        match text.trim() {
            "off" => Ok(None),
            "" => Err("the name is empty; name a user of etcd, or write `off`".into()),
            other => Ok(Some(other.to_owned())),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}
