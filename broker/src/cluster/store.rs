//! The metadata store that brokers share.

use std::sync::Arc;

use kera_metadata::{ClusterStore, EtcdAccess, EtcdOptions, EtcdStore, MetadataError, Stranger};

use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::store_dir::cluster_of;

/// Opens the store that `config` names; `None` if the broker has one of its own. Blocks.
///
/// # Errors
/// [`BrokerError::Metadata`] if it cannot be reached or holds no cluster yet.
pub(crate) fn open(config: &BrokerConfig) -> Result<Option<Arc<dyn ClusterStore>>, BrokerError> {
    let Some(address) = &config.cluster.store else {
        return Ok(None);
    };
    match EtcdStore::open_with(address, &access(config), EtcdOptions::default()) {
        Ok(store) => Ok(Some(Arc::new(store))),
        Err(MetadataError::NotInitialized { store }) => Err(nothing_at(store, config).into()),
        Err(error) => Err(error.into()),
    }
}

/// There is no cluster at `store`: none yet, or not any more.
fn nothing_at(store: String, config: &BrokerConfig) -> MetadataError {
    match cluster_of(&config.data_dir) {
        Ok(Some(expected)) => Stranger::Empty { store, expected }.into(),
        // What is wrong with the directory is said when it is opened.
        Ok(None) | Err(_) => MetadataError::NotInitialized { store },
    }
}

/// Who this broker is to etcd.
fn access(config: &BrokerConfig) -> EtcdAccess {
    let cluster = config.cluster.clone();
    EtcdAccess {
        ca: cluster.store_ca,
        certificate: cluster.store_certificate,
        key: cluster.store_key,
        user: cluster.store_user,
        password_file: cluster.store_password_file,
    }
}
