//! Where data goes when nobody says, and whether it would survive there.

use std::path::{Path, PathBuf};

/// The data directory when nothing sets one: `$XDG_DATA_HOME/kera`, `~/.local/share/kera`, or,
/// without a home, `/var/lib/kera`.
pub fn default_data_dir() -> PathBuf {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(data) = absolute("XDG_DATA_HOME") {
        return data.join("kera");
    }
    match absolute("HOME") {
        Some(home) => home.join(".local/share/kera"),
        None => PathBuf::from("/var/lib/kera"),
    }
}

/// The name of the file system that `path` is, or would be, on if that file system loses
/// everything at a restart of the machine; `None` if it keeps what is synced, or nobody can tell.
pub fn volatile_filesystem(path: &Path) -> Option<&'static str> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let absolute = std::path::absolute(path).ok()?;
    // The directory may not exist yet: its nearest ancestor that does decides.
    let existing = absolute.ancestors().find(|ancestor| ancestor.exists())?;
    let status = rustix::fs::statfs(existing).ok()?;
    // The type's width and sign differ between platforms; magic numbers have 32 bits.
    match (status.f_type as u64) & 0xffff_ffff {
        TMPFS_MAGIC => Some("tmpfs"),
        RAMFS_MAGIC => Some("ramfs"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_volatile_and_the_source_tree_is_not_mistaken_for_it() {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() {
            assert_eq!(
                volatile_filesystem(&shm.join("not/there/yet")),
                Some("tmpfs")
            );
        }
        assert_ne!(volatile_filesystem(Path::new("/proc")), Some("tmpfs"));
    }

    #[test]
    fn the_default_is_absolute() {
        assert!(default_data_dir().is_absolute());
    }
}
