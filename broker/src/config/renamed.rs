//! Settings under the names that they had before, until the next version.

use super::key::{Key, env_of};

/// The name that a setting had, and the one that it has.
pub const RENAMED: [(&str, &str); 7] = [
    ("backup.memory_bytes", "replica_store.memory_bytes"),
    ("backup.shared_dir", "replica_store.shared_dir"),
    ("backup.disk_dir", "replica_store.disk_dir"),
    ("backup.flush_interval", "replica_store.flush_interval"),
    (
        "backup.max_copies_in_memory",
        "replica_store.max_replicas_in_memory",
    ),
    ("backup.max_copies", "replica_store.max_replicas"),
    ("backup.max_streamlets", "replica_store.max_streamlets"),
];

/// The setting that had this name.
pub(super) fn formerly(name: &str) -> Option<&'static Key> {
    let (_, now) = RENAMED.iter().find(|(former, _)| *former == name)?;
    Key::find(now)
}

/// The setting whose environment variable had this name, with the name that the setting had.
pub(super) fn formerly_in_environment(variable: &str) -> Option<(&'static str, &'static Key)> {
    let (former, now) = RENAMED
        .iter()
        .find(|(former, _)| env_of(former) == variable)?;
    Some((former, Key::find(now)?))
}

/// True if settings had names in this section that is gone.
pub(super) fn is_former_section(section: &str) -> bool {
    let mut sections = RENAMED
        .iter()
        .filter_map(|(former, _)| former.split_once('.'));
    sections.any(|(former, _)| former == section)
}
