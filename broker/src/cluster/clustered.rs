//! A broker among others that share its metadata store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{ClusterStore, Image, Membership, MetadataStore};

use super::cluster_view::ClusterView;
use super::disk_watch::DiskWatch;
use super::ownership::joining::Joined;
use super::ownership::members::Members;
use super::ownership::owner_changes::Ownership;
use super::peers::Peers;
use super::replica::local::Known;
use super::replica::replicated::Replicated;
use crate::data::catalog::Catalog;
use crate::group_records::GroupRecords;

/// All that a broker has because others share its metadata store; one that works alone has none of it.
pub struct Clustered {
    broker_id: u32,
    /// This broker and its peers.
    pub peers: Peers,
    /// The streamlets whose groups have replicas at other brokers.
    pub replicated: Arc<Replicated>,
    /// The store that brokers share.
    pub store: Arc<dyn ClusterStore>,
    /// This broker's place among those that share the store.
    pub membership: Arc<Membership>,
    /// The brokers that share the store.
    pub members: Arc<Members>,
    /// How streamlets come to this broker and leave it.
    pub(crate) ownership: Ownership,
    /// Owners and replicas of all streamlets.
    pub(crate) cluster_view: Arc<ClusterView>,
    /// Whether its disk takes what is written.
    pub(crate) disk: Arc<DiskWatch>,
}

impl Clustered {
    /// Puts together what a broker that has `joined` the others needs. The store was read to `image`. What other
    /// brokers are still to hear of deleted streams is kept in the directory `forget`. A disk that does not answer for
    /// `disk_timeout` costs this broker its lease.
    pub(crate) fn new(
        joined: Joined,
        peers: Peers,
        catalog: &Arc<Catalog>,
        recorder: &Arc<GroupRecords>,
        forget: PathBuf,
        disk_timeout: Duration,
        image: &Image,
    ) -> Self {
        let cluster_view = Arc::new(ClusterView::default());
        cluster_view.load(image);
        let disk = DiskWatch::new(disk_timeout);
        let watch = disk.clone();
        joined.membership.hold_while(move || watch.may_hold_lease());
        let replicated = Replicated::new(peers.primary.clone(), recorder.clone(), forget);
        Self {
            broker_id: joined.id,
            peers,
            replicated: Arc::new(replicated),
            members: Members::new(
                image.cluster,
                catalog.clone(),
                cluster_view.clone(),
                &joined,
            ),
            store: joined.store,
            membership: joined.membership,
            ownership: Ownership::new(image.revision),
            cluster_view,
            disk,
        }
    }

    /// Other brokers may ask for files that this one wrote as an owner, from now on.
    pub(crate) fn serve_own_files(
        &self,
        catalog: &Arc<Catalog>,
        metadata: &Arc<dyn MetadataStore>,
    ) {
        self.peers.written_by(Known {
            broker_id: self.broker_id,
            catalog: Arc::downgrade(catalog),
            metadata: Arc::downgrade(metadata),
            cluster_view: self.cluster_view.clone(),
            replicated: Arc::downgrade(&self.replicated),
        });
    }
}
