//! Memory that crashes as it is told: the same rules as on a machine, without one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_log_segments::layout::DurableMark;
use parking_lot::Mutex;
use rustix::net::RecvFlags;
use uuid::Uuid;

use super::StartError;
use super::memory::{CopyMemory, CopySpec, Found, Memory, TakenOver};
use super::seals::SealTable;
use crate::faults::Faults;
use crate::ids::{CopyId, Incarnation};
use crate::pace::draw;

/// The unit in which bytes exist: a group is mostly zeros.
const PAGE: usize = 1024;

type Pages = BTreeMap<u64, Box<[u8; PAGE]>>;

/// What a machine holds for one copy.
#[derive(Debug, Default)]
struct Bytes {
    shared: Pages,
    /// Reserved ranges, as (start, end).
    reserved: Vec<(u64, u64)>,
    /// The disk as who reads it sees it.
    disk: Pages,
    /// The disk as a loss of power leaves it.
    durable: Pages,
    /// Pages of `disk` that the next sync brings there.
    dirty: BTreeSet<u64>,
    /// What is on disk, and how far.
    mark: Option<DurableMark>,
    /// The disk has the name of the file, and what tells whose it is.
    named: bool,
    /// What the disk alone holds ends here.
    released: u64,
    /// The disk alone holds it.
    given_back: bool,
    /// And all that there was of it.
    whole: bool,
    gone: bool,
}

impl Bytes {
    /// How many of `len` bytes at `address` the disk alone holds.
    fn on_disk(&self, address: u64, len: usize) -> usize {
        match self.given_back {
            true => len,
            false => len.min(self.released.saturating_sub(address) as usize),
        }
    }

    fn write_disk(&mut self, address: u64, data: &[u8]) {
        write(&mut self.disk, address, data);
        let page = |address: u64| address / PAGE as u64;
        if !data.is_empty() {
            let last = address + data.len() as u64 - 1;
            self.dirty.extend(page(address)..=page(last));
        }
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            if let Some(bytes) = self.disk.get(&page) {
                self.durable.insert(page, bytes.clone());
            }
        }
    }
}

/// A simulated machine's shared memory and disk, as one backup store sees them.
#[derive(Debug)]
pub struct SimMemory {
    /// Counts take-overs: what belongs to an earlier life is not written any more.
    life: Arc<AtomicU64>,
    inner: Mutex<Machine>,
    failing: Arc<Mutex<Failing>>,
}

#[derive(Debug)]
struct Machine {
    incarnation: Incarnation,
    rng: u64,
    /// The store's directory is empty: a start draws a new id.
    empty: bool,
    seals: SealTable,
    seals_on_disk: SealTable,
    copies: BTreeMap<CopyId, (CopySpec, Arc<Mutex<Bytes>>)>,
    /// Whether there is a disk to flush to.
    disk: bool,
    disk_id: Uuid,
}

/// What fails next, of all copies.
#[derive(Debug, Default)]
struct Failing {
    sync: bool,
    seals: bool,
}

impl Machine {
    fn draw(&mut self) -> Uuid {
        let mut out = [0; 16];
        for half in out.chunks_mut(8) {
            // Enough to tell ids apart.
            half.copy_from_slice(&draw(&mut self.rng).to_le_bytes());
        }
        Uuid::from_bytes(out)
    }

    /// Shared memory is lost; what was flushed is not.
    fn lose_shared(&mut self) {
        self.empty = true;
        self.seals = SealTable::default();
        self.copies.retain(|_, (_, bytes)| {
            let mut bytes = bytes.lock();
            bytes.shared.clear();
            bytes.reserved.clear();
            bytes.disk = bytes.durable.clone();
            bytes.dirty.clear();
            bytes.released = 0;
            bytes.given_back = bytes.named;
            bytes.gone = !bytes.named;
            !bytes.gone
        });
    }

    /// Another disk, which is empty, stands in the place of the one there was.
    fn replace_disk(&mut self, keeps_id: bool) {
        self.seals_on_disk = SealTable::default();
        self.copies.clear();
        if !keeps_id {
            self.disk_id = self.draw();
        }
    }
}

impl SimMemory {
    /// An empty machine with a disk. The seed decides its ids.
    pub fn new(seed: u64) -> Arc<Self> {
        Self::with_disk(seed, true)
    }

    /// An empty machine, with a disk to flush to or without.
    pub fn with_disk(seed: u64, disk: bool) -> Arc<Self> {
        let mut machine = Machine {
            incarnation: Incarnation::default(),
            rng: seed,
            empty: true,
            seals: SealTable::default(),
            seals_on_disk: SealTable::default(),
            copies: BTreeMap::new(),
            disk,
            disk_id: Uuid::nil(),
        };
        machine.incarnation.boot_id = machine.draw();
        machine.disk_id = machine.draw();
        Arc::new(Self {
            life: Arc::new(AtomicU64::new(0)),
            inner: Mutex::new(machine),
            failing: Arc::default(),
        })
    }

    /// The next sync fails, as on Linux: what it was to bring to the disk is taken for clean, never gets
    /// there, and the sync after it succeeds.
    pub fn fail_sync(&self) {
        self.failing.lock().sync = true;
    }

    /// Until `full` is false again, seals find no room to be stored in, unless a copy has given up its own.
    pub fn fill_up(&self, full: bool) {
        self.failing.lock().seals = full;
    }

    /// The machine loses power and boots: shared memory is lost. The store is to be dropped first.
    pub fn crash_machine(&self) {
        self.life.fetch_add(1, Ordering::SeqCst);
        let mut machine = self.inner.lock();
        machine.lose_shared();
        machine.incarnation.boot_id = machine.draw();
    }

    /// As [`crash_machine`](Self::crash_machine), and another disk takes the place of the one there was.
    pub fn replace_disk(&self, faults: &Faults) {
        self.crash_machine();
        let keeps_id = faults.replaced_disk_keeps_id();
        self.inner.lock().replace_disk(keeps_id);
    }

    /// Shared memory is emptied while the machine runs on, as by a container's restart.
    pub fn vanish(&self) {
        self.life.fetch_add(1, Ordering::SeqCst);
        self.inner.lock().lose_shared();
    }
}

impl Memory for SimMemory {
    fn take_over(&self, faults: &Faults) -> Result<TakenOver, StartError> {
        self.life.fetch_add(1, Ordering::SeqCst);
        let mut machine = self.inner.lock();
        if machine.empty {
            let first = machine.incarnation.store_id.is_nil();
            if first || !faults.vanished_store_keeps_id() {
                machine.incarnation.store_id = machine.draw();
            }
            machine.empty = false;
        }
        let mut seals = machine.seals.clone();
        seals.merge(&machine.seals_on_disk);
        machine.copies.retain(|_, (_, bytes)| !bytes.lock().gone);
        let copies = machine.copies.values().map(|(spec, bytes)| {
            let held = bytes.lock();
            Found {
                spec: *spec,
                memory: self.copy(bytes.clone(), spec, machine.disk),
                reserved: held.reserved.iter().map(|(from, to)| to - from).sum(),
                mark: held.mark,
                whole: held.whole,
                on_disk: held.given_back,
                record: !held.given_back,
            }
        });
        Ok(TakenOver {
            incarnation: machine.incarnation,
            disk: match machine.disk {
                true => Ok(Incarnation::of_disk(machine.disk_id)),
                false => Err("it keeps no replicas on a disk".into()),
            },
            copies: copies.collect(),
            seals,
            hidden: Vec::new(),
        })
    }

    fn create(&self, spec: &CopySpec) -> io::Result<Arc<dyn CopyMemory>> {
        let mut machine = self.inner.lock();
        let bytes = Arc::new(Mutex::new(Bytes::default()));
        machine.copies.insert(spec.copy, (*spec, bytes.clone()));
        Ok(self.copy(bytes, spec, machine.disk))
    }

    fn store_seals(&self, seals: &SealTable) -> io::Result<()> {
        if self.failing.lock().seals {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut machine = self.inner.lock();
        machine.seals = seals.clone();
        if machine.disk {
            machine.seals_on_disk = seals.clone();
        }
        Ok(())
    }

    fn sync_disk(&self) -> io::Result<()> {
        let all: Vec<_> = {
            let machine = self.inner.lock();
            machine
                .copies
                .values()
                .map(|(_, bytes)| bytes.clone())
                .collect()
        };
        let fails = std::mem::take(&mut self.failing.lock().sync);
        for bytes in all {
            let mut bytes = bytes.lock();
            match fails {
                true => bytes.dirty.clear(),
                false => bytes.sync(),
            }
        }
        match fails {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }

    fn own_bytes(&self) -> u64 {
        OWN_BYTES
    }
}

/// As a new store's files on shared memory take.
const OWN_BYTES: u64 = 32 << 10;

impl SimMemory {
    fn copy(&self, bytes: Arc<Mutex<Bytes>>, spec: &CopySpec, disk: bool) -> Arc<dyn CopyMemory> {
        Arc::new(SimCopy {
            bytes,
            born: self.life.load(Ordering::SeqCst),
            life: self.life.clone(),
            group_bytes: spec.group_bytes(),
            disk,
            failing: self.failing.clone(),
        })
    }
}

/// A copy as one life of the store holds it.
#[derive(Debug)]
struct SimCopy {
    bytes: Arc<Mutex<Bytes>>,
    born: u64,
    life: Arc<AtomicU64>,
    group_bytes: u64,
    disk: bool,
    failing: Arc<Mutex<Failing>>,
}

impl SimCopy {
    fn alive(&self) -> io::Result<()> {
        if self.life.load(Ordering::SeqCst) == self.born {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::BrokenPipe,
            "the memory belongs to a later process",
        ))
    }
}

impl CopyMemory for SimCopy {
    fn reserve(&self, address: u64, len: u64) -> io::Result<u64> {
        self.alive()?;
        let taken = self.lacking(address, len);
        let mut bytes = self.bytes.lock();
        if bytes.given_back {
            return Ok(0);
        }
        let (from, to) = (address.max(bytes.released), address + len);
        if from >= to {
            return Ok(0);
        }
        bytes.reserved.push((from, to));
        bytes.reserved.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in std::mem::take(&mut bytes.reserved) {
            match merged.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        bytes.reserved = merged;
        Ok(taken)
    }

    fn lacking(&self, address: u64, len: u64) -> u64 {
        let bytes = self.bytes.lock();
        if bytes.given_back {
            return 0;
        }
        let end = address + len;
        let address = address.max(bytes.released);
        let there = bytes.reserved.iter();
        let there = there.map(|(from, to)| end.min(*to).saturating_sub(address.max(*from)));
        end.saturating_sub(address) - there.sum::<u64>()
    }

    fn place(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.alive()?;
        let below = self.bytes.lock().on_disk(address, data.len());
        if below == data.len() {
            return Ok(());
        }
        self.place_stray(address + below as u64, &data[below..])
    }

    fn complete(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.alive()?;
        {
            let mut bytes = self.bytes.lock();
            let below = bytes.on_disk(address, data.len());
            bytes.write_disk(address, &data[..below]);
        }
        self.place(address, data)
    }

    fn place_stray(&self, address: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        let end = address + data.len() as u64;
        let within = |(from, to): &(u64, u64)| *from <= address && end <= *to;
        if !bytes.reserved.iter().any(within) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        write(&mut bytes.shared, address, data);
        Ok(())
    }

    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        address: u64,
        len: usize,
        spare: &mut [u8],
    ) -> io::Result<usize> {
        self.alive()?;
        let mut buf = vec![0; len + spare.len()];
        let (read, _) = rustix::net::recv(socket, &mut buf, RecvFlags::DONTWAIT)?;
        let (own, rest) = buf[..read].split_at(read.min(len));
        self.place(address, own)?;
        spare[..rest.len()].copy_from_slice(rest);
        Ok(read)
    }

    fn read_at(&self, buf: &mut [u8], address: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let room = self.group_bytes.saturating_sub(address);
        let len = (buf.len() as u64).min(room) as usize;
        let below = bytes.on_disk(address, len);
        read(&bytes.disk, address, &mut buf[..below]);
        read(&bytes.shared, address + below as u64, &mut buf[below..len]);
        Ok(len)
    }

    fn flush(&self, from: u64, to: u64, mark: &DurableMark) -> io::Result<()> {
        self.alive()?;
        if !self.disk {
            return Ok(());
        }
        self.write_to_disk(from, to)?;
        self.sync_to_disk()?;
        let mut bytes = self.bytes.lock();
        bytes.mark = Some(*mark);
        bytes.named = true;
        Ok(())
    }

    fn write_to_disk(&self, from: u64, to: u64) -> io::Result<()> {
        self.alive()?;
        if !self.disk {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let below = {
            let bytes = self.bytes.lock();
            bytes.on_disk(from, to.saturating_sub(from) as usize)
        };
        // What the disk alone has is there already.
        let from = from + below as u64;
        let mut buf = vec![0; (to.saturating_sub(from)) as usize];
        self.read_at(&mut buf, from)?;
        self.bytes.lock().write_disk(from, &buf);
        Ok(())
    }

    fn sync_to_disk(&self) -> io::Result<()> {
        self.alive()?;
        let mut bytes = self.bytes.lock();
        if std::mem::take(&mut self.failing.lock().sync) {
            bytes.dirty.clear();
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        bytes.sync();
        Ok(())
    }

    fn name_on_disk(&self) -> io::Result<()> {
        self.alive()?;
        self.bytes.lock().named = true;
        Ok(())
    }

    fn renew(&self, from: u64, to: u64) -> io::Result<bool> {
        self.alive()?;
        let mut bytes = self.bytes.lock();
        let below = bytes.on_disk(from, to.saturating_sub(from) as usize);
        let mut buf = vec![0; below];
        read(&bytes.disk, from, &mut buf);
        bytes.write_disk(from, &buf);
        Ok(below > 0)
    }

    fn lower_mark(&self, mark: &DurableMark) -> io::Result<()> {
        self.alive()?;
        let mut bytes = self.bytes.lock();
        bytes.mark = bytes.mark.map(|_| *mark);
        Ok(())
    }

    fn release(&self, to: u64) -> io::Result<u64> {
        self.alive()?;
        let mut bytes = self.bytes.lock();
        if !self.disk || bytes.given_back || to <= bytes.released {
            return Ok(0);
        }
        bytes.released = to;
        bytes.shared.retain(|page, _| (page + 1) * PAGE as u64 > to);
        let mut released = 0;
        let reserved = std::mem::take(&mut bytes.reserved).into_iter();
        let kept = reserved.filter_map(|(from, end)| {
            released += end.min(to).saturating_sub(from);
            (end > to).then(|| (from.max(to), end))
        });
        bytes.reserved = kept.collect();
        Ok(released)
    }

    fn give_back(&self, _closed: bool) -> io::Result<bool> {
        self.alive()?;
        let mut bytes = self.bytes.lock();
        if self.disk {
            bytes.whole |= !bytes.given_back;
            bytes.given_back = true;
            bytes.shared.clear();
            bytes.reserved.clear();
        }
        Ok(self.disk)
    }

    fn vacate(&self) -> io::Result<()> {
        self.failing.lock().seals = false;
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        *bytes = Bytes {
            gone: true,
            ..Bytes::default()
        };
        Ok(())
    }
}

fn write(pages: &mut Pages, address: u64, mut data: &[u8]) {
    let mut at = address;
    while !data.is_empty() {
        let within = (at % PAGE as u64) as usize;
        let len = data.len().min(PAGE - within);
        let page = pages
            .entry(at / PAGE as u64)
            .or_insert_with(|| Box::new([0; PAGE]));
        page[within..within + len].copy_from_slice(&data[..len]);
        data = &data[len..];
        at += len as u64;
    }
}

fn read(pages: &Pages, address: u64, mut buf: &mut [u8]) {
    let mut at = address;
    while !buf.is_empty() {
        let within = (at % PAGE as u64) as usize;
        let len = buf.len().min(PAGE - within);
        let (now, later) = buf.split_at_mut(len);
        match pages.get(&(at / PAGE as u64)) {
            Some(page) => now.copy_from_slice(&page[within..within + len]),
            None => now.fill(0),
        }
        buf = later;
        at += len as u64;
    }
}
