//! Streams of Kera as tables of Apache DataFusion.
//!
//! [`register`] teaches a session `CREATE EXTERNAL TABLE ... STORED AS KERA`; a [`KeraSchema`] has all streams of a cluster as tables;
//! [`KeraTable::builder`] makes one table.
//!
//! ```no_run
//! use datafusion::prelude::SessionContext;
//!
//! # async fn example() -> datafusion::error::Result<()> {
//! let context = SessionContext::new();
//! kera_datafusion::register(&context);
//! context
//!     .sql("CREATE EXTERNAL TABLE orders STORED AS KERA LOCATION 'kera://localhost:7600/orders'")
//!     .await?;
//! context.sql("SELECT count(*) FROM orders").await?.show().await?;
//! # Ok(())
//! # }
//! ```
#![warn(unnameable_types, unreachable_pub)]
#![forbid(unsafe_code)]

mod builder;
mod catalog;
#[path = "../../arrow/columns.rs"]
mod columns;
mod connection;
mod error;
mod filter;
mod insert;
mod json;
mod layout;
mod location;
mod options;
mod place;
mod read;
mod scan;
mod table;

pub use builder::KeraTableBuilder;
pub use catalog::{KeraSchema, KeraTableFactory, register};
pub use connection::Connection;
pub use error::KeraError;
pub use json::OnBadJson;
pub use kera_producer::Compression;
pub use kera_rpc::{ClientTls, Login, SaslMechanism, TlsFiles};
pub use place::Place;
pub use table::KeraTable;

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
