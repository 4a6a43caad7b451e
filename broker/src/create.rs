//! Creating a stream: its record, its directories, its streamlets.

use std::sync::Arc;

use kera_metadata::{Conflict, Key, MetadataError, StreamRecord, StreamletRecord};
use kera_streamlet::Streamlet;

use crate::cluster::ownership;
use crate::data::catalog::{Stream, make_dirs, settings_of};
use crate::data::directory::Owner;
use crate::shared::Shared;

impl Shared {
    /// Creates a stream: its record, its directories, its streamlets. Where brokers share the store its
    /// streamlets are spread over those that are alive.
    ///
    /// # Errors
    /// [`MetadataError`], also where directories cannot be made; the stream exists then, and its
    /// directories are made at the next start.
    pub fn create_stream(
        self: &Arc<Self>,
        record: StreamRecord,
    ) -> Result<Arc<Stream>, MetadataError> {
        if let Some(clustered) = &self.clustered {
            let living = clustered.members.living();
            let owners = ownership::spread(&self.data.catalog, &living, self.broker_id);
            let (record, records) = self.metadata.create_stream_over(record, &owners)?;
            let id = record.id;
            clustered
                .ownership
                .created(self, clustered, record, records);
            return self.data.catalog.get(id).ok_or_else(|| {
                Conflict::Absent {
                    key: Key::Stream(id),
                }
                .into()
            });
        }
        let (record, records) = self.metadata.create_stream(record, self.broker_id)?;
        self.recorder.add_streamlets(&records);
        let streamlets: Vec<_> = records
            .iter()
            .map(|s| {
                Streamlet::new(
                    record.id,
                    s.streamlet,
                    s.epoch,
                    settings_of(&record, s.streamlet),
                    self.data.env.clone(),
                )
            })
            .collect();
        make_dirs(&streamlets, &self.data.env).map_err(|error| MetadataError::Storage {
            path: self.dir.streams().join(record.id.to_string()),
            detail: error.to_string(),
        })?;
        let owner = |s: &StreamletRecord| Owner {
            broker: s.owner,
            epoch: s.epoch,
        };
        let owners = records.iter().map(owner).collect();
        let stream = Stream::new(record, streamlets, owners);
        self.data.catalog.insert(stream.clone());
        Ok(stream)
    }
}
