//! What the operating system says about processes, the machine and its disk.

pub mod disk;
pub mod machine;
pub mod noise;
pub mod process;
