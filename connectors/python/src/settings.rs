//! How brokers are reached, and values that settings take.

use std::path::PathBuf;
use std::time::Duration;

use kera_consumer::{Order, Start};
use kera_producer::Compression;
use kera_rpc::{
    Client, ClientOptions, ClientTls, ConnectOptions, DEFAULT_BOOTSTRAP, RetryPolicy,
    SaslMechanism, TlsFiles,
};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::errors::{of_rpc, setting};
use crate::runtime::seconds;

/// TLS to brokers: the authorities that are trusted, and a certificate of one's own. Files, in PEM.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Tls {
    tls: ClientTls,
}

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (ca, *, certificate = None, key = None))]
    fn new(ca: PathBuf, certificate: Option<PathBuf>, key: Option<PathBuf>) -> PyResult<Self> {
        let files = TlsFiles {
            ca,
            certificate,
            key,
        };
        let tls = ClientTls::from_files(&files).map_err(|error| setting("tls", error))?;
        Ok(Self { tls })
    }
}

/// A user's name and password, or a file with a token that names the user.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Login {
    login: kera_rpc::Login,
    user: String,
    mechanism: SaslMechanism,
}

#[pymethods]
impl Login {
    #[new]
    #[pyo3(signature = (user, password, *, mechanism = "SCRAM-SHA-512"))]
    fn new(user: String, password: &str, mechanism: &str) -> PyResult<Self> {
        let named = SaslMechanism::named(mechanism);
        let Some(mechanism) = named.filter(|one| SaslMechanism::WITH_PASSWORDS.contains(one))
        else {
            let reason = format!("{mechanism} is none; use SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN");
            return Err(setting("mechanism", reason));
        };
        Ok(Self {
            login: kera_rpc::Login::new(&user, password).with_mechanism(mechanism),
            user,
            mechanism,
        })
    }

    #[staticmethod]
    fn with_token_file(path: PathBuf) -> Self {
        Self {
            login: kera_rpc::Login::with_token_file(path),
            user: String::new(),
            mechanism: SaslMechanism::OauthBearer,
        }
    }

    /// Without password and token.
    fn __repr__(&self) -> String {
        if self.mechanism == SaslMechanism::OauthBearer {
            return "Login(a token)".to_owned();
        }
        format!(
            "Login(user={:?}, mechanism={:?})",
            self.user,
            self.mechanism.name()
        )
    }
}

/// How to reach brokers, as every object is told it.
pub(crate) struct Way {
    bootstrap: String,
    tls: Option<Py<Tls>>,
    login: Option<Py<Login>>,
    retry_within: Duration,
}

/// The settings of all objects.
const WAY: [&str; 4] = ["bootstrap", "tls", "login", "retry_within"];

/// Settings that are not of the way to brokers, by name.
pub(crate) type Others<'py> = Vec<(String, Bound<'py, PyAny>)>;

impl Way {
    /// Takes what is its own among settings.
    pub(crate) fn of<'py>(settings: Option<&Bound<'py, PyDict>>) -> PyResult<(Self, Others<'py>)> {
        let mut way = Self {
            bootstrap: DEFAULT_BOOTSTRAP.to_owned(),
            tls: None,
            login: None,
            retry_within: RetryPolicy::default().deadline,
        };
        let mut others = Vec::new();
        for (name, value) in settings.into_iter().flat_map(|all| all.iter()) {
            let name: String = name.extract()?;
            match name.as_str() {
                "bootstrap" => way.bootstrap = get(&name, &value)?,
                "tls" => way.tls = get(&name, &value)?,
                "login" => way.login = get(&name, &value)?,
                "retry_within" => way.retry_within = time(&name, &value)?,
                _ => others.push((name, value)),
            }
        }
        Ok((way, others))
    }

    /// The same where there are no other settings.
    pub(crate) fn alone(of: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let (way, others) = Self::of(settings)?;
        match others.first() {
            Some((name, _)) => Err(unknown(of, name, &[])),
            None => Ok(way),
        }
    }

    pub(crate) fn client(&self) -> PyResult<Client> {
        let mechanism = self.login.as_ref().map(|login| login.get().mechanism);
        let bare = match mechanism.filter(|_| self.tls.is_none()) {
            Some(SaslMechanism::Plain) => {
                "PLAIN sends the password itself, and without TLS everybody on the way could read it; give tls, or use SCRAM-SHA-512"
            }
            Some(SaslMechanism::OauthBearer) => {
                "a token is sent as it is, and without TLS everybody on the way could read and use it; give tls"
            }
            _ => "",
        };
        if !bare.is_empty() {
            return Err(setting("login", bare));
        }
        let options = ClientOptions {
            retry: RetryPolicy::within(self.retry_within),
            connect: ConnectOptions {
                tls: self.tls.as_ref().map(|tls| tls.get().tls.clone()),
                login: self.login.as_ref().map(|login| login.get().login.clone()),
                ..ConnectOptions::default()
            },
        };
        Client::new(&self.bootstrap, options).map_err(|error| of_rpc(&error))
    }

    /// As [`client`](Self::client), for producers: their own limit on memory holds.
    pub(crate) fn unbounded_client(&self) -> PyResult<Client> {
        let client = self.client()?;
        let options = ClientOptions {
            retry: client.options().retry,
            connect: ConnectOptions {
                max_pending: usize::MAX,
                max_queued_bytes: usize::MAX,
                ..client.options().connect.clone()
            },
        };
        Client::new(&self.bootstrap, options).map_err(|error| of_rpc(&error))
    }
}

/// A setting's value.
pub(crate) fn get<'py, T>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    let extracted: Result<T, <T as FromPyObject<'_, 'py>>::Error> = value.extract();
    extracted.map_err(|error| {
        let error: PyErr = error.into();
        PyTypeError::new_err(format!("setting {name}: {}", error.value(value.py())))
    })
}

/// A setting in seconds.
pub(crate) fn time(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    seconds(name, get(name, value)?)
}

/// There is no such setting among those of `of`, which has `own` ones beside those of [`Way`].
pub(crate) fn unknown(of: &str, name: &str, own: &[&str]) -> PyErr {
    let known = [&WAY[..], own].concat().join(", ");
    PyTypeError::new_err(format!("{of} has no setting {name}; it has {known}"))
}

/// Where reading starts: `"earliest"`, `"latest"`, an ordinal, or a time as a `datetime`.
pub(crate) fn start(value: &Bound<'_, PyAny>) -> PyResult<Start> {
    let wrong = || {
        setting(
            "start",
            "use \"earliest\", \"latest\", an ordinal as an int of 0 or more, or a datetime since 1970",
        )
    };
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    if let Ok(word) = value.extract::<String>() {
        return match word.as_str() {
            "earliest" => Ok(Start::Earliest),
            "latest" => Ok(Start::Latest),
            _ => Err(wrong()),
        };
    }
    if value.hasattr("timestamp")? {
        let time: f64 = value.call_method0("timestamp")?.extract()?;
        if time < 0.0 {
            return Err(wrong());
        }
        return Ok(Start::Timestamp((time * 1000.0).round() as u64));
    }
    value
        .extract::<u64>()
        .map(Start::Ordinal)
        .map_err(|_| wrong())
}

pub(crate) fn order(word: &str) -> PyResult<Order> {
    match word {
        "lane" => Ok(Order::Lane),
        "none" => Ok(Order::None),
        "key" => Ok(Order::Key),
        _ => Err(setting(
            "order",
            format!("{word} is none; use \"lane\", \"key\" or \"none\""),
        )),
    }
}

pub(crate) fn compression(word: &str) -> PyResult<Compression> {
    let all = [
        ("none", Compression::None),
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];
    let found = all.into_iter().find(|(name, _)| *name == word);
    found.map(|(_, compression)| compression).ok_or_else(|| {
        setting(
            "compression",
            format!("{word} is none; use \"none\", \"gzip\", \"snappy\", \"lz4\" or \"zstd\""),
        )
    })
}
