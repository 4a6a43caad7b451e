//! Which file systems a restart of the machine empties.

use std::path::Path;

/// The name of the file system that `path` is, or would be, on if that file system loses
/// everything at a restart of the machine; `None` if it keeps what is synced, or nobody can tell.
pub fn volatile_file_system(path: &Path) -> Option<&'static str> {
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
