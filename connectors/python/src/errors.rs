//! Rust's errors as exceptions of `kera.errors`, with the broker's own words.

use kera_consumer::ConsumeError;
use kera_producer::{AppendError, BuildError, ProduceError, TransactionError};
use kera_protocol::error::ErrorCode;
use kera_rpc::{ChangeError, ConnectionError, RpcError, tls};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// An exception to be.
pub(crate) struct Problem {
    class: &'static str,
    text: String,
    code: Option<ErrorCode>,
    retryable: bool,
    uncertain: bool,
}

impl Problem {
    pub(crate) fn new(class: &'static str, text: impl ToString) -> Self {
        Self {
            class,
            text: text.to_string(),
            code: None,
            retryable: false,
            uncertain: false,
        }
    }

    pub(crate) fn with_code(self, code: Option<ErrorCode>) -> Self {
        let retryable = code.is_some_and(ErrorCode::is_retryable);
        Self {
            code,
            retryable,
            ..self
        }
    }

    pub(crate) fn retryable(self, retryable: bool) -> Self {
        Self { retryable, ..self }
    }

    pub(crate) fn uncertain(self, uncertain: bool) -> Self {
        Self { uncertain, ..self }
    }
}

impl From<Problem> for PyErr {
    fn from(problem: Problem) -> Self {
        Python::attach(|py| exception(py, &problem).map_or_else(|error| error, PyErr::from_value))
    }
}

fn exception<'py>(py: Python<'py>, problem: &Problem) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("kera.errors")?;
    let class = module.getattr(problem.class)?.cast_into::<PyType>()?;
    let text = match problem.code {
        // Where it is not said yet.
        Some(code) if !problem.text.contains(code.name()) => {
            format!("{} ({})", problem.text, code.name())
        }
        _ => problem.text.clone(),
    };
    let error = class.call1((text,))?;
    error.setattr("code", problem.code.map(ErrorCode::name))?;
    error.setattr("is_retryable", problem.retryable)?;
    error.setattr("is_uncertain", problem.uncertain)?;
    Ok(error)
}

/// A setting or an argument that makes no sense.
pub(crate) fn setting(name: &str, reason: impl std::fmt::Display) -> PyErr {
    Problem::new("SettingError", format!("{name}: {reason}")).into()
}

/// The class of what a broker refuses.
fn class_of(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnknownStream => "UnknownStreamError",
        ErrorCode::StreamExists => "StreamExistsError",
        ErrorCode::NotAuthorized => "NotAuthorizedError",
        ErrorCode::FencedProducer => "FencedError",
        _ => "BrokerError",
    }
}

pub(crate) fn of_rpc(error: &RpcError) -> PyErr {
    match error {
        RpcError::BadAddress(_) => setting("bootstrap", error),
        other => problem_of(other).into(),
    }
}

fn problem_of(error: &RpcError) -> Problem {
    let class = match error {
        RpcError::Connection(ConnectionError::Login { .. }) => "LoginError",
        RpcError::Connection(ConnectionError::Tls { .. }) => "TlsError",
        RpcError::Connection(_) => "ConnectionFailed",
        RpcError::Broker(refusal) => class_of(refusal.code),
        _ => "BrokerError",
    };
    let problem = Problem::new(class, with_own_settings(&error.to_string()));
    problem
        .with_code(error.code())
        .retryable(error.is_retryable())
        .uncertain(error.is_uncertain())
}

/// Advice with the names that settings have here.
fn with_own_settings(advice: &str) -> String {
    advice
        .replace(tls::NAME_CA, "(tls=kera.Tls(FILE))")
        .replace(tls::LEAVE_CA_OUT, "(leave tls out)")
        .replace(
            tls::NAME_CERTIFICATE,
            "(tls=kera.Tls(FILE, certificate=FILE, key=FILE))",
        )
}

/// A change that was refused, which an earlier attempt may have made.
pub(crate) fn of_change(change: &ChangeError) -> PyErr {
    match (&change.error, &change.earlier) {
        (error, None) | (error @ RpcError::BadAddress(_), _) => of_rpc(error),
        (error, Some(_)) => {
            let mut problem = problem_of(error).uncertain(true);
            problem.text = with_own_settings(&change.to_string());
            problem.into()
        }
    }
}

pub(crate) fn of_build(error: &BuildError) -> PyErr {
    match error {
        BuildError::Setting { name, reason } => setting(name, reason),
        BuildError::Rpc(error) => of_rpc(error),
        other => Problem::new("ProduceError", other).into(),
    }
}

pub(crate) fn of_append(error: &AppendError) -> PyErr {
    let class = match error {
        AppendError::TooLarge { .. } => "RecordTooLargeError",
        AppendError::Closed => "ClosedError",
        AppendError::TransactionFailed(cause) | AppendError::LaneFailed(cause) => {
            let problem = Problem::new("ProduceError", error);
            return problem.with_code(cause.code()).into();
        }
        AppendError::NoTransaction => "TransactionError",
        _ => "ProduceError",
    };
    Problem::new(class, error).into()
}

pub(crate) fn of_produce(error: &ProduceError) -> PyErr {
    let class = match error.code() {
        Some(ErrorCode::FencedProducer) => "FencedError",
        _ => "ProduceError",
    };
    let problem = Problem::new(class, error).with_code(error.code());
    problem.uncertain(error.is_uncertain()).into()
}

pub(crate) fn of_transaction(error: &TransactionError) -> PyErr {
    let class = match error {
        TransactionError::Rpc(
            error @ RpcError::Connection(
                ConnectionError::Login { .. } | ConnectionError::Tls { .. },
            ),
        ) => return of_rpc(error),
        TransactionError::Rpc(RpcError::Broker(refusal))
            if refusal.code == ErrorCode::NotAuthorized =>
        {
            "NotAuthorizedError"
        }
        _ if error.code() == Some(ErrorCode::FencedProducer) => "FencedError",
        TransactionError::Aborted | TransactionError::Records(_) => "TransactionAborted",
        TransactionError::Committed => "TransactionCommitted",
        _ => "TransactionError",
    };
    let retryable = matches!(error, TransactionError::Rpc(error) if error.is_retryable());
    let problem = Problem::new(class, error).with_code(error.code());
    problem
        .retryable(retryable)
        .uncertain(matches!(error, TransactionError::Unknown { .. }))
        .into()
}

pub(crate) fn of_consume(error: &ConsumeError) -> PyErr {
    let class = match error {
        ConsumeError::Setting {
            setting: name,
            reason,
        } => return setting(name, reason),
        ConsumeError::UnknownLane { .. } => return setting("lane", error),
        ConsumeError::Rpc(error) => return of_rpc(error),
        ConsumeError::Lane { error: refusal, .. } if refusal.code == ErrorCode::UnknownStream => {
            "UnknownStreamError"
        }
        ConsumeError::Lane { .. } => "LaneError",
        ConsumeError::Corrupt { .. } | ConsumeError::Undecodable { .. } => "DamagedBatchError",
        ConsumeError::StaleLease { .. } => "StaleLeaseError",
        ConsumeError::Closed => "ClosedError",
        _ => "ConsumeError",
    };
    let problem = Problem::new(class, error).with_code(error.code());
    problem.retryable(error.is_retryable()).into()
}

/// The object was closed.
pub(crate) fn closed(what: &str) -> PyErr {
    Problem::new("ClosedError", format!("{what} is closed")).into()
}
