//! The broker's configuration.
//!
//! One table ([`KEYS`]) names every key; a value comes from a flag, an environment variable, one
//! TOML file or the default, in this order. [`BrokerConfig`] holds plain values once
//! [`Sources::resolve`] has considered them all; [`Resolved`] also knows where each came from.

mod acl;
mod acl_check;
mod address_limits;
mod addresses;
mod alterable;
mod api;
mod audit;
mod auth;
mod auth_check;
mod cluster;
mod data_dir;
mod etcd;
mod exposure;
mod key;
mod keys;
mod kinds;
mod listeners;
mod named;
mod oauth;
mod print;
mod protocols;
mod renamed;
mod resolve;
mod security;
mod store_check;
mod telemetry;
mod telemetry_check;
mod tls;
mod tls_check;
pub mod units;

pub use address_limits::AddressLimit;
pub use alterable::{ALTERABLE, Alterable, KafkaUnit};
pub use api::OpenPath;
pub use audit::AuditTarget;
pub(crate) use cluster::is_of_every_machine;
pub use data_dir::{default_data_dir, volatile_filesystem};
pub use exposure::Exposure;
pub use kera_rpc::SaslMechanism;
pub use key::Key;
pub use keys::{
    AclConfig, ApiConfig, AuditConfig, AuthConfig, BrokerConfig, ClusterConfig, ConsumersConfig,
    GroupsConfig, HttpConfig, KEYS, KafkaConfig, ListenersConfig, LogConfig, MemoryConfig,
    OauthConfig, ObjectivesConfig, ProducersConfig, ReplicaStoreConfig, RetentionConfig,
    RuntimeConfig, SECTIONS, ServerConfig, StorageConfig, TelemetryConfig, TlsConfig,
};
pub use kinds::{ClientAuth, EngineChoice, Limits, LogFormat, TransportChoice};
pub use listeners::{Insecure, Listener, Via};
pub use named::{ListenerName, NamedAddress, NativeAddresses};
pub use oauth::{KeySource, TokenAlgorithm};
pub use print::reference_markdown;
pub use protocols::SecurityProtocol;
pub use renamed::RENAMED;
pub use resolve::{ConfigError, GONE, Origin, Problem, Resolved, Sources};
pub use security::{Entrance, Security};
pub use store_check::store_reach;
pub use tls::TlsListener;
pub(crate) use tls_check::NEEDS_BROKER_CA;
