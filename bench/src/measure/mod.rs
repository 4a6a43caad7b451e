//! What the operating system says about processes, the machine and its disk.

pub(crate) mod disk;
pub(crate) mod flushes;
pub(crate) mod machine;
pub(crate) mod noise;
