//! A file of lines that is put aside when it is long, so that all of them together never grow beyond a limit.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use kera_replication::seldom::Seldom;

use super::Sink;

/// Who may do what is not for everybody on the machine to read.
const MODE: u32 = 0o600;

/// The file that is written, `FILE`, and those before it: `FILE.1` is the youngest of these.
pub(super) struct AuditFile {
    path: PathBuf,
    /// `None` after an error: opened again with the next lines.
    file: Option<File>,
    length: u64,
    most: u64,
    kept: u32,
    told: Seldom,
}

impl AuditFile {
    pub(super) fn open(path: &Path, most: u64, kept: u32) -> io::Result<Self> {
        let mut this = Self {
            path: path.to_owned(),
            file: None,
            length: 0,
            most,
            kept,
            told: Seldom::default(),
        };
        this.reopen()?;
        Ok(this)
    }

    fn reopen(&mut self) -> io::Result<&mut File> {
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).read(true).mode(MODE);
        let file = options.open(&self.path)?;
        self.length = file.metadata()?.len();
        if !ends_whole(&file, self.length)? {
            // The process or the disk ended in the middle of a line: what follows is a line of its own.
            (&file).write_all(b"\n")?;
            self.length += 1;
        }
        Ok(self.file.insert(file))
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Puts the file aside, and deletes the oldest if there are too many.
    fn put_aside(&mut self) -> io::Result<()> {
        self.file = None;
        for number in (1..self.kept).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match fs::rename(&self.path, self.numbered(1)) {
            // Somebody else put it aside.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Looks at what others did to the file: moved it, deleted it, made it shorter.
    fn look(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mine = file.metadata()?;
        self.length = mine.len();
        let is_there = match fs::metadata(&self.path) {
            Ok(now) => (now.dev(), now.ino()) == (mine.dev(), mine.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if !is_there {
            self.file = None;
            if mine.nlink() == 0 {
                let path = self.path.display();
                tracing::warn!(
                    bytes = mine.len(),
                    "audit.to: {path} was deleted, and the lines in it are gone; it is made again"
                );
            }
        }
        Ok(())
    }

    /// Writes the first of `lines`, as many as fit: how many.
    fn write_some(&mut self, lines: &[String]) -> io::Result<usize> {
        self.look()?;
        if self.file.is_none() {
            self.reopen()?;
        }
        let longest = lines.first().map_or(0, |line| line.len() as u64 + 1);
        if self.length > 0 && self.length + longest > self.most {
            self.put_aside()?;
            self.reopen()?;
        }
        let (mut text, mut count) = (String::new(), 0);
        for line in lines {
            let length = self.length + (text.len() + line.len() + 1) as u64;
            if count > 0 && length > self.most {
                break;
            }
            text.push_str(line);
            text.push('\n');
            count += 1;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.reopen()?,
        };
        file.write_all(text.as_bytes())?;
        self.length += text.len() as u64;
        Ok(count)
    }
}

/// True if the file is empty or its last line has an end.
fn ends_whole(file: &File, length: u64) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    Ok(last == [b'\n'])
}

impl Sink for AuditFile {
    fn write(&mut self, mut lines: &[String]) -> u64 {
        while !lines.is_empty() {
            match self.write_some(lines) {
                Ok(count) => lines = &lines[count..],
                Err(error) => {
                    if let Some(file) = self.file.take() {
                        // No half of a line stays, where that can be helped. A file that was cut meanwhile is not made longer.
                        if file.metadata().is_ok_and(|now| now.len() > self.length) {
                            let _ = file.set_len(self.length);
                        }
                    }
                    if let Some(others) = self.told.due(Instant::now()) {
                        let path = self.path.display();
                        tracing::error!(%error, others, "audit.to: {path} cannot be written, and lines of the audit log are lost; look at the disk and at who owns the directory");
                    }
                    return lines.len() as u64;
                }
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(of: std::ops::Range<u32>) -> Vec<String> {
        of.map(|number| format!("line {number:03}")).collect()
    }

    #[test]
    fn files_are_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        // Nine bytes each: ten lines fit.
        let mut file = AuditFile::open(&path, 90, 2).unwrap();
        assert_eq!(file.write(&lines(0..35)), 0);
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(text("audit.log").lines().count(), 5);
        assert!(text("audit.log.1").starts_with("line 020\n"));
        assert!(text("audit.log.2").starts_with("line 010\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        // A start goes on where the last one ended.
        drop(file);
        let mut file = AuditFile::open(&path, 90, 2).unwrap();
        assert_eq!(file.write(&lines(35..36)), 0);
        assert!(text("audit.log").ends_with("line 034\nline 035\n"));
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
    }

    #[test]
    fn what_follows_half_a_line_is_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        fs::write(&path, "half").unwrap();
        let mut file = AuditFile::open(&path, 90, 2).unwrap();
        assert_eq!(file.write(&lines(1..2)), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "half\nline 001\n");
    }

    #[test]
    fn what_others_do_to_the_file_loses_no_later_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = AuditFile::open(&path, 90, 2).unwrap();
        let text = || fs::read_to_string(&path).unwrap();
        assert_eq!(file.write(&lines(0..1)), 0);
        fs::remove_file(&path).unwrap();
        assert_eq!(file.write(&lines(1..2)), 0);
        assert_eq!(text(), "line 001\n", "deleted");
        fs::rename(&path, dir.path().join("mine")).unwrap();
        assert_eq!(file.write(&lines(2..3)), 0);
        assert_eq!(text(), "line 002\n", "moved away");
        assert_eq!(file.write(&lines(3..9)), 0);
        fs::write(&path, "").unwrap();
        assert_eq!(file.write(&lines(9..15)), 0);
        assert_eq!(text().lines().count(), 6, "emptied: there is room for ten");
        assert!(!dir.path().join("audit.log.1").exists());
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_what_can_be_later_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("audit.log");
        let mut file = AuditFile::open(&path, 9, 1).unwrap();
        assert_eq!(file.write(&lines(0..1)), 0);
        fs::rename(&folder, dir.path().join("elsewhere")).unwrap();
        assert_eq!(file.write(&lines(1..4)), 3, "nowhere to put it");
        fs::create_dir(&folder).unwrap();
        assert_eq!(file.write(&lines(4..5)), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 004\n");
    }
}
