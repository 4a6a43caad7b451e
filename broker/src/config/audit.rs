//! Kinds of keys about the audit log.

use std::path::PathBuf;

use super::kinds::{Directory, Kind, Limits};

/// Where the audit log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTarget {
    /// Nowhere.
    Off,
    /// Into the broker's log.
    Log,
    /// Into a file, and those that it was before.
    File(PathBuf),
}

/// [`AuditTarget`].
pub(super) enum AuditTargetKind {}

impl Kind for AuditTargetKind {
    type Value = AuditTarget;
    const FORM: &'static str = "file, `log`, or `off`; a leading `~/` is the home directory";

    fn parse(text: &str, limits: &Limits) -> Result<AuditTarget, String> {
        match text.trim() {
            "off" => Ok(AuditTarget::Off),
            "log" => Ok(AuditTarget::Log),
            "" => Err("the path is empty; name a file, or write `log` or `off`".into()),
            other => Directory::parse(other, limits).map(AuditTarget::File),
        }
    }

    fn show(value: &AuditTarget) -> String {
        match value {
            AuditTarget::Off => "off".into(),
            AuditTarget::Log => "log".into(),
            AuditTarget::File(path) => Directory::show(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_file_unless_it_is_the_log_or_nothing() {
        for text in ["off", "log", "/var/log/kera/audit.log"] {
            let parsed = AuditTargetKind::parse(text, &Limits::NONE).unwrap();
            assert_eq!(AuditTargetKind::show(&parsed), text);
        }
        assert!(AuditTargetKind::parse(" ", &Limits::NONE).is_err());
    }
}
