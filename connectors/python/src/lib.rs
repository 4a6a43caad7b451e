//! The native part of the Python package `kera`: the Rust clients behind objects that Python's threads wait for.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod admin;
mod arrow;
mod awaited;
mod batch;
#[path = "../../arrow/columns.rs"]
mod columns;
mod consumer;
mod errors;
mod iterate;
mod producer;
mod reader;
mod record;
mod runtime;
mod settings;
mod told;
mod transaction;
mod turn;

/// Imported by `kera/__init__.py`.
#[pyo3::pymodule]
mod _kera {
    #[pymodule_export]
    use crate::admin::{Admin, GroupInfo, LaneInfo, StreamInfo};
    #[pymodule_export]
    use crate::awaited::{_Bell, _Pending};
    #[pymodule_export]
    use crate::batch::{Batch, Position};
    #[pymodule_export]
    use crate::consumer::Consumer;
    #[pymodule_export]
    use crate::producer::{_finish_all, Delivery, Producer};
    #[pymodule_export]
    use crate::reader::Reader;
    #[pymodule_export]
    use crate::record::{Record, RecordPlace};
    #[pymodule_export]
    use crate::runtime::_forked;
    #[pymodule_export]
    use crate::settings::{Login, Tls};
    #[pymodule_export]
    use crate::transaction::{Transaction, TransactionHandle, Transactions};
}
