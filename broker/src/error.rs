//! Why a broker does not start.

use std::path::PathBuf;

use kera_metadata::{MetadataError, Role};
use kera_replication::backup::StartError;

/// Why a broker could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The data directory cannot be used.
    #[error("data directory {}: {reason}", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Another broker uses the data directory.
    #[error("data directory {} is in use by another broker (process {pid}); stop it first or choose another --data-dir", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other process, as its lock file says.
        pid: String,
    },
    /// The metadata store cannot be used.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The user that is to be made where there is none.
    #[error("the first user was not made: {0}")]
    FirstUser(String),
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {error}; choose another {key}")]
    Listen {
        /// The address.
        address: String,
        /// The configuration key.
        key: &'static str,
        /// The system's answer.
        error: std::io::Error,
    },
    /// A stream's files cannot be read.
    #[error("stream {stream}: {error}")]
    Stream {
        /// The stream's name.
        stream: String,
        /// What failed.
        error: std::io::Error,
    },
    /// A process that keeps copies has no number.
    #[error(
        "other brokers know a replica store by its number, and none is set; set cluster.broker_id, for example with --broker-id 3, different for each broker"
    )]
    NoNumber,
    /// A replica store is told nobody to whom it could be of use.
    #[error(
        "brokers find a replica store through the etcd that they share, and cluster.store is off; set it, such as with --cluster etcd://127.0.0.1:2379"
    )]
    NoStore,
    /// A broker that works alone has records of replicas that others hold.
    #[error(
        "stream {stream} has replicas at other brokers, and this broker works alone, without cluster.store; take what it has into a cluster with `kera cluster import --data-dir {} --cluster etcd://HOST:2379`, then start it with --cluster (docs/operations.md#from-a-broker-alone-to-a-cluster)",
        path.display()
    )]
    ReplicasElsewhere {
        /// One of the streams.
        stream: String,
        /// The data directory.
        path: PathBuf,
    },
    /// Brokers on other machines would find themselves at an address of this one, or of another.
    #[error(
        "broker {broker} on {host} tells others the address {address}, where every machine finds itself, and broker {other} runs on {other_host}; set {keys} of broker {broker} to an address that other machines reach, or, if both run on one machine, cluster.host to the same name"
    )]
    Astray {
        /// Whose address it is.
        broker: u32,
        /// The machine it names.
        host: String,
        /// The address.
        address: String,
        /// The keys it comes from.
        keys: &'static str,
        /// A broker on another machine.
        other: u32,
        /// That machine.
        other_host: String,
    },
    /// The store of other brokers' copies cannot be used.
    #[error(transparent)]
    Backup(StartError),
    /// Shared memory is too small for the store of other brokers' copies.
    #[error(
        "replica_store.shared_dir {} lies on a file system of {size}, and replica_store.memory_bytes is {quota}; give this machine or container more shared memory (docker run --shm-size={quota}; in Kubernetes an emptyDir with medium Memory at /dev/shm), or lower replica_store.memory_bytes",
        path.display()
    )]
    BackupRoom {
        /// The store's directory.
        path: PathBuf,
        /// What its file system can hold.
        size: String,
        /// What the store may take.
        quota: String,
    },
    /// A transport was asked for by name.
    #[error("cluster.transport is {name}, which this broker cannot use: {reason}; use auto or tcp")]
    Transport {
        /// The transport.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The data directory is another broker's.
    #[error(
        "data directory {} is that of broker {found}, and this broker has number {wanted}; set cluster.broker_id = {found}, or choose another --data-dir",
        path.display()
    )]
    OtherBroker {
        /// The directory.
        path: PathBuf,
        /// The number it was made with.
        found: u32,
        /// The number configured.
        wanted: u32,
    },
    /// The cluster was finalized for a newer program.
    #[error(
        "the cluster is of version {found}, and this program knows {known} at most: `kera cluster finalize` was run with a newer one; start this broker with a program of the version that the others have"
    )]
    NewerCluster {
        /// The version found.
        found: u32,
        /// The newest that this program can.
        known: u32,
    },
    /// An import of what a cluster may not be able to read.
    #[error(
        "this broker's records are of cluster version {mine}, and the cluster's are of {theirs}; run `kera cluster finalize` there, once all of its brokers are updated, and import then"
    )]
    OlderCluster {
        /// The broker's.
        mine: u32,
        /// The cluster's.
        theirs: u32,
    },
    /// A number is taken by a process of another role.
    #[error(
        "number {id} is that of a {found} in this cluster, and this is a {wanted}; set cluster.broker_id to a number that none has had, with a --data-dir of its own"
    )]
    OtherRole {
        /// The number.
        id: u32,
        /// What it was first.
        found: Role,
        /// What it is to be now.
        wanted: Role,
    },
    /// A listener is to have TLS, and a file that it needs cannot be used.
    #[error("{0}")]
    Tls(String),
    /// A collector is to be told, and a file that this needs cannot be used.
    #[error("{0}")]
    Telemetry(String),
    /// The audit log cannot be opened.
    #[error("audit.to: {} cannot be written: {error}; make its directory, or name another file", path.display())]
    Audit {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: std::io::Error,
    },
    /// The system refused something at start.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        error: std::io::Error,
    },
}
