//! A broker's own group files, as its append path would write them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kera_log_segments::io::fault::{CrashPlan, FaultIo};
use kera_log_segments::io::{EngineKind, Io, OpenHow, open_engine};
use kera_log_segments::layout::{DurableMark, FOOTER_OFFSET};
use kera_log_segments::scan::write_mark;
use kera_replication::ids::{BrokerId, CopyId, Incarnation};
use kera_replication::own::{OwnFiles, OwnReplicas};
use kera_replication::primary::ReplicaSet;
use uuid::Uuid;

use super::served::Disk;
use super::test_group::{SHAPE, TestGroup};

/// The disks of some brokers.
pub struct Disks {
    root: PathBuf,
    io: Arc<dyn Io>,
    /// Disks that forget what was not synced when they lose power; then each broker has one of them.
    losing: Option<Losing>,
    lives: Mutex<HashMap<BrokerId, Incarnation>>,
    begun: Mutex<HashSet<(BrokerId, CopyId)>>,
}

struct Losing {
    seed: u64,
    disks: Mutex<HashMap<BrokerId, FaultIo>>,
}

impl Losing {
    fn disk(&self, node: BrokerId) -> FaultIo {
        let mut disks = self.disks.lock().unwrap();
        let seed = self.seed ^ u64::from(node.0) << 32;
        disks
            .entry(node)
            .or_insert_with(|| FaultIo::new(seed))
            .clone()
    }
}

impl Disks {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            io: open_engine(EngineKind::Blocking),
            losing: None,
            lives: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    /// Simulated ones, which lose power as the seed says.
    pub fn that_lose_power(seed: u64) -> Self {
        Self {
            losing: Some(Losing {
                seed,
                disks: Mutex::default(),
            }),
            ..Self::new(Path::new("/store"))
        }
    }

    pub fn lose_power(&self) -> bool {
        self.losing.is_some()
    }

    /// The disk of `node`, if they are simulated.
    pub fn failing(&self, node: BrokerId) -> Option<FaultIo> {
        self.losing.as_ref().map(|losing| losing.disk(node))
    }

    fn io(&self, node: BrokerId) -> Arc<dyn Io> {
        match &self.losing {
            Some(losing) => Arc::new(losing.disk(node)),
            None => self.io.clone(),
        }
    }

    fn dir(&self, node: BrokerId) -> PathBuf {
        self.root.join(format!("own{}", node.0))
    }

    pub fn own(&self, node: BrokerId) -> Arc<OwnFiles> {
        let mut lives = self.lives.lock().unwrap();
        let life = *lives.entry(node).or_insert(Incarnation {
            store_id: Uuid::from_u128(u128::from(node.0) + 1),
            boot_id: Uuid::from_u128(1),
        });
        let io = self.io(node);
        io.create_dir_all(&self.dir(node)).expect("a directory");
        // A real one stays.
        for above in self
            .dir(node)
            .ancestors()
            .skip(1)
            .filter(|_| self.lose_power())
        {
            io.sync_dir(above).expect("a directory");
        }
        OwnFiles::new(io, self.dir(node), life)
    }

    /// Where `node` writes its groups.
    pub fn disk(&self, node: BrokerId) -> Disk {
        Disk {
            io: self.io(node),
            root: self.dir(node),
            life: self.own(node).incarnation(),
        }
    }

    /// The machine was booted: what was not synced may be gone.
    pub fn boot(&self, node: BrokerId) {
        if let Some(losing) = &self.losing {
            let boots = self
                .lives
                .lock()
                .unwrap()
                .get(&node)
                .map_or(0, |life| life.boot_id.as_u128());
            let plan = CrashPlan::power_loss(losing.seed ^ boots as u64);
            let (after, _) = losing.disk(node).crash(&plan);
            losing.disks.lock().unwrap().insert(node, after);
        }
        if let Some(life) = self.lives.lock().unwrap().get_mut(&node) {
            life.boot_id = Uuid::from_u128(life.boot_id.as_u128() + 1);
        }
    }

    /// The disk was replaced by an empty one.
    pub fn wipe(&self, node: BrokerId) {
        match &self.losing {
            Some(losing) => drop(losing.disks.lock().unwrap().remove(&node)),
            None => drop(fs::remove_dir_all(self.dir(node))),
        }
        if let Some(life) = self.lives.lock().unwrap().get_mut(&node) {
            life.store_id = Uuid::from_u128(life.store_id.as_u128() + (1 << 64));
        }
    }

    /// Writes what `source` has from `from` on and says so.
    pub fn write(&self, node: BrokerId, set: &ReplicaSet, source: &TestGroup, from: u64) {
        let copy: CopyId = set.id();
        let path = self.own(node).path(&copy);
        let known = !self.begun.lock().unwrap().insert((node, copy));
        let is_there = known && path.exists();
        let file = if is_there {
            self.io.open(&path, OpenHow::ReadWrite, false)
        } else {
            // A group of an earlier owner that was never recorded may have had the same number.
            let _ = fs::remove_file(&path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("is made");
            self.io.open(&path, OpenHow::CreateNew, false)
        };
        let file = file.expect("opens");
        let group_bytes = u64::from(SHAPE.segment_size) * u64::from(SHAPE.segments);
        file.set_len(group_bytes + FOOTER_OFFSET).expect("room");
        if !is_there {
            write_mark(&*file, &DurableMark::default(), group_bytes).expect("room");
        }
        for run in source.runs(from) {
            let slices: Vec<_> = run.parts.iter().map(|p| IoSlice::new(p)).collect();
            file.write_vectored_at(&slices, run.address).expect("room");
        }
        set.own_completed(source.end().address);
    }
}
