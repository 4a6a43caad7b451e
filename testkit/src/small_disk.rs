//! A small file system of a test's own, which it can fill or have stand still.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::home;

/// A file system, unmounted when dropped.
pub struct SmallDisk {
    at: PathBuf,
    _directory: TempDir,
}

impl SmallDisk {
    /// One of so many bytes in memory.
    ///
    /// # Errors
    /// Why this machine lets the test mount none.
    pub fn mount(bytes: u64) -> Result<Self, String> {
        let directory = home();
        let at = directory.path().to_owned();
        let size = format!("size={bytes}");
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", utf8(&at)])?;
        Ok(Self {
            at,
            _directory: directory,
        })
    }

    /// One of so many bytes that can stand still: ext4 in a file.
    ///
    /// # Errors
    /// Why this machine lets the test mount none, or cannot freeze it.
    pub fn that_freezes(bytes: u64) -> Result<Self, String> {
        let directory = home();
        let (image, at) = (directory.path().join("image"), directory.path().join("at"));
        std::fs::create_dir(&at).expect("a directory");
        let made = File::create(&image).and_then(|file| file.set_len(bytes));
        made.expect("a file of no bytes");
        run("mkfs.ext4", &["-q", "-F", utf8(&image)])?;
        run("mount", &["-o", "loop", utf8(&image), utf8(&at)])?;
        let disk = Self {
            at,
            _directory: directory,
        };
        disk.fsfreeze("-f")?;
        disk.fsfreeze("-u")?;
        Ok(disk)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Takes all that is left of it, to the last byte.
    pub fn fill(&self) {
        let file = self.path().join("others");
        let file = File::options().create(true).append(true).open(file);
        let mut file = file.expect("a file");
        for size in [64 << 10, 4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    /// Whoever writes to it waits until what is returned is dropped. It is to be dropped before the processes are ended
    /// that use the disk: until then they cannot end.
    ///
    /// # Panics
    /// If it is none [that freezes](Self::that_freezes).
    pub fn freeze(&self) -> Frozen<'_> {
        self.fsfreeze("-f").expect("it was tried before");
        Frozen(self)
    }

    fn fsfreeze(&self, how: &str) -> Result<(), String> {
        run("fsfreeze", &[how, utf8(&self.at)])
    }
}

/// A file system that stands still.
pub struct Frozen<'a>(&'a SmallDisk);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.fsfreeze("-u") {
            eprintln!("a file system of a test stands still for good: {error}");
        }
    }
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path of a test is text")
}

fn run(program: &str, words: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(words).output();
    let output = output
        .map_err(|error| format!("no small file system can be had here: {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "no small file system can be had here: {program}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount succeeds even if the broker is still on its way out.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
