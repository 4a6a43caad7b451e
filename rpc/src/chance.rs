//! Chance: what spreads clients out.

use ring::rand::{SecureRandom, SystemRandom};

/// A random number.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    // A system without random numbers has clients that act alike, and no other harm here.
    let _ = SystemRandom::new().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
