//! Where data goes when nobody says, and whether it would survive there.

use std::path::PathBuf;

pub use kera_log_segments::io::volatile_file_system as volatile_filesystem;

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

#[cfg(test)]
mod tests {
    use std::path::Path;

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
