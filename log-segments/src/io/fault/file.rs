//! An open file of the simulated machine.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::Disk;
use super::inject::{Kind, Verdict};
use crate::io::{BLOCK_BYTES, Directness, File, FileSystem, OpenHow, ReadAt};

/// The device number all simulated files share.
const DEVICE: u64 = 1;

pub(super) struct FaultFile {
    disk: Arc<Mutex<Disk>>,
    id: u64,
    path: PathBuf,
    how: OpenHow,
    direct: bool,
}

impl FaultFile {
    pub(super) fn new(
        disk: Arc<Mutex<Disk>>,
        id: u64,
        path: PathBuf,
        how: OpenHow,
        direct: bool,
    ) -> Self {
        Self {
            disk,
            id,
            path,
            how,
            direct,
        }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.how == OpenHow::ReadOnly {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(())
    }

    fn check_aligned(
        &self,
        offset: u64,
        mut parts: impl Iterator<Item = (usize, usize)>,
    ) -> io::Result<()> {
        let aligned = |n: usize| n.is_multiple_of(BLOCK_BYTES);
        if self.direct
            && !(offset.is_multiple_of(BLOCK_BYTES as u64)
                && parts.all(|(address, len)| aligned(address) && aligned(len)))
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(())
    }
}

impl fmt::Debug for FaultFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultFile")
            .field("path", &self.path)
            .field("direct", &self.direct)
            .finish_non_exhaustive()
    }
}

impl ReadAt for FaultFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check_aligned(offset, std::iter::once((buf.as_ptr() as usize, buf.len())))?;
        let meanwhile = self.disk.lock().meanwhile();
        if let Some(then) = meanwhile {
            then();
        }
        let mut disk = self.disk.lock();
        match disk.gate(&self.path, Kind::Read(offset + buf.len() as u64)) {
            Verdict::Go | Verdict::Garble => Ok(disk.inode(self.id)?.current.read(offset, buf)),
            Verdict::Fail(error) | Verdict::Short(_, error) | Verdict::LoseSync(error) => {
                Err(error)
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        let mut disk = self.disk.lock();
        disk.gate_plain(&self.path)?;
        Ok(disk.inode(self.id)?.current.len())
    }
}

impl File for FaultFile {
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        self.check_aligned(
            offset,
            bufs.iter().map(|buf| (buf.as_ptr() as usize, buf.len())),
        )?;
        self.disk.lock().write(
            self.id,
            &self.path,
            offset,
            bufs.concat_bytes(),
            self.direct,
        )
    }

    fn try_read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.direct || self.disk.lock().cold {
            return Ok(None);
        }
        self.read_at(buf, offset).map(Some)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.lock().sync(self.id, &self.path)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.disk.lock().sync_all(&self.path)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk.lock().set_len(self.id, &self.path, len)
    }

    fn write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.disk.lock().gate_plain(&self.path)
    }

    fn file_system(&self) -> io::Result<FileSystem> {
        Ok(FileSystem {
            device: DEVICE,
            magic: self.disk.lock().magic,
        })
    }

    fn directness(&self) -> Directness {
        if self.direct {
            Directness::Confirmed
        } else {
            Directness::Cached
        }
    }
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for [IoSlice<'_>] {
    fn concat_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.iter().map(|buf| buf.len()).sum());
        for buf in self {
            bytes.extend_from_slice(buf);
        }
        bytes
    }
}
