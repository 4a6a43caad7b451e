//! What the owner of a streamlet has of it and needs no more: replicas in its own store, of before it owned the
//! streamlet, and files of groups that no record names.
//!
//! Other brokers' leftovers the owner finds by asking them; its own nobody asks for. Proof is the same: what
//! is there is listed first, and the records are read after that.

use std::collections::HashSet;
use std::sync::Arc;

use kera_metadata::{Image, MetadataStore};
use kera_protocol::ids::Epoch;
use kera_replication::primary::Primary;
use kera_replication::transport::{CopyInfo, Reply, Request};
use kera_streamlet::Streamlet;

use super::own_file::OwnFile;

/// Files and replicas that this broker keeps of a streamlet it owns, under one epoch, and may not need.
pub(super) struct Leftovers<'a> {
    pub(super) primary: &'a Primary,
    pub(super) metadata: &'a Arc<dyn MetadataStore>,
    pub(super) streamlet: &'a Arc<Streamlet>,
    pub(super) epoch: Epoch,
}

impl Leftovers<'_> {
    /// Frees it; how many replicas. What cannot be freed now is looked at again with the next round of jobs.
    pub(super) async fn free(&self) -> u64 {
        self.try_free().await.unwrap_or_else(|error| {
            tracing::info!(streamlet = %self.streamlet.key(), error, "what this broker keeps of it without need is not freed; it is tried again");
            0
        })
    }

    async fn try_free(&self) -> Result<u64, String> {
        if self.streamlet.is_over() || !self.streamlet.is_recovered() {
            return Ok(0);
        }
        let kept = self.kept().await;
        let streamlet = self.streamlet.clone();
        let strays = off_runtime(move || streamlet.strays()).await?;
        let strays = strays.map_err(|error| error.to_string())?;
        if kept.is_empty() && strays.is_empty() {
            return Ok(0);
        }
        let Some(image) = self.image().await? else {
            return Ok(0);
        };
        let recorded: HashSet<_> = image.groups.iter().map(|record| record.group).collect();
        let streamlet = self.streamlet.clone();
        let removing = move || streamlet.remove_strays(&strays, &recorded);
        let removed = off_runtime(removing).await?;
        Ok(removed + self.free_kept(&kept, &image).await?)
    }

    /// What lies in this broker's store.
    async fn kept(&self) -> Vec<CopyInfo> {
        let list = Request::List {
            streamlet: Some(self.streamlet.key()),
        };
        // A broker whose own files are all that it asks keeps nothing of its own in a store.
        match self.primary.ask(self.primary.me(), list).await {
            Ok(Reply::Copies(mut copies)) => {
                copies.retain(|held| held.copy.epoch < self.epoch);
                copies
            }
            _ => Vec::new(),
        }
    }

    /// What is recorded, if the streamlet is this broker's still.
    async fn image(&self) -> Result<Option<Image>, String> {
        let (metadata, streamlet) = (self.metadata.clone(), self.streamlet.clone());
        let load = move || metadata.load_streamlet(streamlet.stream(), streamlet.id());
        let image = off_runtime(load)
            .await?
            .map_err(|error| error.to_string())?;
        let mut streamlets = image.streamlets.iter();
        let is_mine = streamlets.any(|found| found.epoch == self.epoch);
        Ok(is_mine.then_some(image))
    }

    /// Whether a group's own file needs no replica in the store beside it. One that was cut short is made anew: as long
    /// as the store answers for the group, nobody else notices. One that is not there is fetched in its turn.
    async fn stands_alone(&self, file: &OwnFile) -> Result<bool, String> {
        if file.stands_alone().await? {
            return Ok(true);
        }
        if !file.is_cut().await? {
            return Ok(false);
        }
        let (path, group) = (file.spec.path.display(), file.spec.group);
        tracing::error!(file = %path, "a closed group's file was cut short; it is built again from another replica: check the disk");
        let (streamlet, lane) = (self.streamlet.clone(), file.spec.lane.lane);
        let made = off_runtime(move || streamlet.fetch_again(lane, group)).await?;
        Ok(made && file.stands_alone().await?)
    }

    /// Frees replicas in the store of groups that this broker's files hold, or that nobody records.
    async fn free_kept(&self, kept: &[CopyInfo], image: &Image) -> Result<u64, String> {
        let mut freed = 0;
        for held in kept {
            let mut records = image.groups.iter();
            if let Some(record) = records.find(|record| record.group == held.copy.group) {
                let file = OwnFile::new(self.streamlet, record);
                if !record.is_closed() || !self.stands_alone(&file).await? {
                    continue;
                }
            }
            let free = Request::Free {
                copy: held.copy,
                epoch: self.epoch,
                version: Some(held.version),
            };
            let done = self.primary.ask(self.primary.me(), free).await;
            done.map_err(|error| error.to_string())?;
            freed += 1;
        }
        Ok(freed)
    }
}

async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| error.to_string())
}
