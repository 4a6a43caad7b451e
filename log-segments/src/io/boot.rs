//! Which boot of the machine this is.

use std::fs;

use uuid::Uuid;

/// The machine's boot; a random id where the system does not tell, so that nothing unsynced is ever
/// believed to have survived.
pub fn boot_id() -> Uuid {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().parse().unwrap_or_else(|_| Uuid::new_v4())
}
