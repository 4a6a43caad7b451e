//! Files of the operating system; shared by the `blocking` and `uring` engines.

use std::fs::{File as StdFile, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::aligned::BLOCK_BYTES;
use super::{Directness, File, FileRef, FileSystem, OpenHow, ReadAt, sys};

/// Slices one call takes (`IOV_MAX` on Linux).
pub(super) const MAX_SLICES: usize = 1024;

/// Data files are for the broker's user, and its group to look at.
const FILE_MODE: u32 = 0o640;

#[derive(Debug)]
struct OsFile {
    file: StdFile,
    directness: Directness,
}

pub(super) fn open(path: &Path, how: OpenHow, direct: bool) -> io::Result<FileRef> {
    let mut options = OpenOptions::new();
    options.read(true).mode(FILE_MODE);
    match how {
        OpenHow::ReadOnly => {}
        OpenHow::ReadWrite => drop(options.write(true)),
        OpenHow::CreateNew => drop(options.write(true).create_new(true)),
    }
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let opened = options.open(path).and_then(|file| {
        let directness = if direct {
            directness(&file)?
        } else {
            Directness::Cached
        };
        Ok(OsFile { file, directness })
    });
    match opened {
        Ok(file) => Ok(Arc::new(file)),
        Err(error) => {
            let refused = matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            );
            if direct && how == OpenHow::CreateNew && refused {
                // A kernel makes the file before it refuses O_DIRECT on it.
                let _ = std::fs::remove_file(path);
            }
            Err(error)
        }
    }
}

/// Asks the kernel whether direct I/O on this file is what it says.
fn directness(file: &StdFile) -> io::Result<Directness> {
    let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(Directness::Unconfirmed);
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(Directness::Unconfirmed);
    }
    let fits = |align: u32| align != 0 && BLOCK_BYTES.is_multiple_of(align as usize);
    if fits(stat.stx_dio_mem_align) && fits(stat.stx_dio_offset_align) {
        return Ok(Directness::Confirmed);
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "direct i/o in blocks of {BLOCK_BYTES} bytes is not supported for this file; use the page cache"
        ),
    ))
}

impl ReadAt for OsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            let read = retry(|| {
                rustix::io::pread(&self.file, &mut buf[filled..], offset + filled as u64)
            })?;
            filled += read;
            // A direct read ends at the end of the file, and could not go on from an odd offset.
            if read == 0
                || (self.directness != Directness::Cached && !filled.is_multiple_of(BLOCK_BYTES))
            {
                break;
            }
        }
        Ok(filled)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

impl File for OsFile {
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut offset = offset;
        let mut rest = bufs;
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(MAX_SLICES)];
            if some.iter().all(|buf| buf.is_empty()) {
                rest = &rest[some.len()..];
                continue;
            }
            let mut written = retry(|| rustix::io::pwritev(&self.file, some, offset))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            offset += written as u64;
            while let Some(first) = rest.first() {
                if written < first.len() {
                    break;
                }
                written -= first.len();
                rest = &rest[1..];
            }
            if written > 0 {
                // Cut short within a slice: finish it by itself, then go on with whole ones.
                let part = &rest[0][written..];
                self.write_all_at(part, offset)?;
                offset += part.len() as u64;
                rest = &rest[1..];
            }
        }
        Ok(())
    }

    fn try_read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.directness != Directness::Cached {
            return Ok(None);
        }
        let mut filled = 0;
        while filled < buf.len() {
            let mut rest = [IoSliceMut::new(&mut buf[filled..])];
            let at = offset + filled as u64;
            // A short read may end at the file's end or at the first page that is not in memory:
            // the next call tells which.
            match rustix::io::preadv2(&self.file, &mut rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(filled))
    }

    fn sync_data(&self) -> io::Result<()> {
        retry(|| rustix::fs::fdatasync(&self.file))
    }

    fn sync_file_system(&self) -> io::Result<()> {
        retry(|| rustix::fs::syncfs(&self.file))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        sys::write_back(self.file.as_fd(), offset, len)
    }

    fn file_system(&self) -> io::Result<FileSystem> {
        let magic = retry(|| rustix::fs::fstatfs(&self.file))?.f_type;
        Ok(FileSystem {
            device: self.file.metadata()?.dev(),
            magic: magic as u64,
        })
    }

    fn directness(&self) -> Directness {
        self.directness
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}

impl OsFile {
    fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let written = retry(|| rustix::io::pwrite(&self.file, buf, offset))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            buf = &buf[written..];
            offset += written as u64;
        }
        Ok(())
    }
}

/// Calls again while a signal interrupts the call before it did anything.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

/// A file in memory that no name leads to; `None` where the system has none to give.
pub(super) fn memory_file() -> Option<FileRef> {
    let fd = rustix::fs::memfd_create("kera-probe", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    Some(Arc::new(OsFile {
        file: fd.into(),
        directness: Directness::Cached,
    }))
}

pub(super) fn create_dir_all(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}

pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    StdFile::open(dir)?.sync_all()
}

pub(super) fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(false)
}
