//! `kera cluster import`: what a stopped broker that worked alone has recorded goes to the store of a cluster, and
//! its directory becomes that of a broker of the cluster. Records of streams stay in the files where they are.

use std::path::Path;

use kera_metadata::{
    ClusterStore, EtcdAccess, EtcdOptions, EtcdStore, Image, ImportOptions, ImportPlan,
    ImportProgress, MetadataError, MetadataStore,
};
use kera_protocol::error::{ErrorCode, WireError};
use uuid::Uuid;

use crate::cluster_version;
use crate::error::BrokerError;
use crate::open::open_own;
use crate::store_dir::{Imported, StoreDir};

/// An import that may begin. Until it is dropped nobody else uses the directory.
pub struct Import {
    dir: StoreDir,
    store: EtcdStore,
    image: Image,
    state: Imported,
    without_groups: bool,
}

impl Import {
    /// Opens the data directory of a stopped broker and the store at `address`. Changes nothing. Blocks.
    ///
    /// # Errors
    /// [`BrokerError`] if the directory is none of a broker that worked alone, is in use, or belongs to another
    /// cluster; if the store cannot be reached or holds no cluster.
    pub fn open(data_dir: &Path, address: &str, access: &EtcdAccess) -> Result<Self, BrokerError> {
        // Opening makes a directory that is not there.
        if !data_dir.join("STORE").is_file() {
            return Err(BrokerError::DataDir {
                path: data_dir.to_path_buf(),
                reason: "no broker has used it: it has no STORE file; name the --data-dir that the broker had".into(),
            });
        }
        let dir = StoreDir::open(data_dir)?;
        let store = EtcdStore::open_with(address, access, EtcdOptions::default())?;
        let state = dir.imported_into(store.cluster())?;
        let own = open_own(&dir)?;
        let image = own.load()?;
        let (mine, theirs) = (own.cluster_version()?, store.cluster_version()?);
        own.close();
        cluster_version::check_program(theirs)?;
        if mine > theirs {
            return Err(BrokerError::OlderCluster { mine, theirs });
        }
        Ok(Self {
            dir,
            store,
            image,
            state,
            without_groups: false,
        })
    }

    /// Leaves the broker's consumer groups behind where the cluster has its own.
    #[must_use]
    pub fn without_groups(self, without_groups: bool) -> Self {
        Self {
            without_groups,
            ..self
        }
    }

    fn options(&self) -> ImportOptions {
        ImportOptions {
            resumed: self.is_resumed(),
            without_groups: self.without_groups,
        }
    }

    /// The cluster.
    pub fn cluster(&self) -> Uuid {
        self.store.cluster()
    }

    /// All of it was done before.
    pub fn was_done(&self) -> bool {
        self.state == Imported::Whole
    }

    /// It was begun before, and did not come to its end.
    pub fn is_resumed(&self) -> bool {
        self.state != Imported::Nothing
    }

    /// What there is to do, and what stands in the way. Changes nothing. Blocks.
    ///
    /// # Errors
    /// [`BrokerError::Metadata`].
    pub fn plan(&self) -> Result<ImportPlan, BrokerError> {
        let mut plan = self.store.plan_import(&self.image, self.options())?;
        if self.was_done() {
            // The cluster may be at work by now.
            plan.problems.clear();
        }
        Ok(plan)
    }

    /// Does it, or goes on with it. After an error it may be run again. Blocks.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn run(
        &self,
        on_progress: &mut dyn FnMut(ImportProgress) -> Result<(), MetadataError>,
    ) -> Result<(), BrokerError> {
        if self.was_done() {
            return Ok(());
        }
        let plan = self.plan()?;
        if !plan.problems.is_empty() {
            // Before the directory is marked: where nothing was begun it may go on alone.
            let problems = plan.problems.join("; ");
            let refused = WireError::new(ErrorCode::InvalidArgument, problems);
            return Err(MetadataError::Invalid(refused).into());
        }
        self.dir.begin_import(self.cluster())?;
        self.store
            .import(&self.image, self.options(), on_progress)?;
        let revision = self.store.load()?.revision;
        self.dir.end_import(self.cluster(), revision)
    }
}
