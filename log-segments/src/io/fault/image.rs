//! Sparse file contents that are cheap to copy.

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// A file's bytes; pages never written are zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pages: BTreeMap<u64, Arc<Page>>,
    len: u64,
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Writes and extends.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.put(offset, bytes);
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    /// Writes without changing the length.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        let mut offset = offset;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let within = (offset % PAGE) as usize;
            let some = bytes.len().min(PAGE as usize - within);
            let page = self
                .pages
                .entry(offset / PAGE)
                .or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within..within + some].copy_from_slice(&bytes[..some]);
            offset += some as u64;
            bytes = &bytes[some..];
        }
    }

    /// Fills what the file has of `buf`, returns how much that is.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let there = (self.len.saturating_sub(offset)).min(buf.len() as u64) as usize;
        self.get(offset, &mut buf[..there]);
        there
    }

    /// Fills `buf` as if the file had no end.
    pub(super) fn get(&self, offset: u64, buf: &mut [u8]) {
        let mut offset = offset;
        let mut buf = buf;
        while !buf.is_empty() {
            let within = (offset % PAGE) as usize;
            let some = buf.len().min(PAGE as usize - within);
            let (head, tail) = buf.split_at_mut(some);
            match self.pages.get(&(offset / PAGE)) {
                Some(page) => head.copy_from_slice(&page[within..within + some]),
                None => head.fill(0),
            }
            offset += some as u64;
            buf = tail;
        }
    }

    /// Cuts or extends by zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let within = (len % PAGE) as usize;
            let keep_to = len.div_ceil(PAGE);
            self.pages.split_off(&keep_to);
            if within != 0
                && let Some(page) = self.pages.get_mut(&(len / PAGE))
            {
                Arc::make_mut(page)[within..].fill(0);
            }
        }
        self.len = len;
    }

    /// Offsets of the pages ever written.
    pub(super) fn written_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().map(|page| page * PAGE)
    }

    /// Folds the contents into a number: equal images give equal numbers.
    pub(super) fn fold(&self, mut hash: u64) -> u64 {
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        add(&self.len.to_le_bytes());
        for (at, page) in &self.pages {
            if page.iter().any(|byte| *byte != 0) {
                add(&at.to_le_bytes());
                add(&page[..]);
            }
        }
        hash
    }
}
