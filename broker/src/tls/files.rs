//! From files in PEM to what a TLS listener needs.

use std::path::Path;
use std::sync::Arc;

use kera_protocol::batch::crc32c;
use kera_rpc::small_file::{self, Takes};
use kera_rpc::tls::{ClientTls, certificates, private_key};
use rustls::crypto::ring;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::subject::common_name;
use super::validity::not_after;
use super::{FRAMES, HTTP1, HTTP2};
use crate::config::{ClientAuth, Entrance, TlsConfig, TlsListener};

/// The largest file that is read: chains have a few KiB.
const MOST_BYTES: usize = 1 << 20;

/// The files as they were read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    broker_ca: Option<Vec<u8>>,
}

impl Contents {
    /// Another number when others may take this broker's certificate for another, or it theirs. The key is no part: the
    /// other brokers are told.
    pub(super) fn checksum(&self) -> u32 {
        let files = [
            Some(&self.certificate),
            self.client_ca.as_ref(),
            self.broker_ca.as_ref(),
        ];
        let all: Vec<u8> = files.into_iter().flatten().flatten().copied().collect();
        crc32c(&all)
    }
}

/// What listeners need for handshakes, by their kind.
pub(super) struct Configs {
    native: Arc<ServerConfig>,
    kafka: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// Of addresses with a name.
    named: Vec<(Entrance, Arc<ServerConfig>)>,
    /// `None` without the authorities of brokers, which `cluster` in `tls.listeners` needs.
    cluster: Option<Arc<ServerConfig>>,
    /// How this broker calls others.
    pub(super) brokers: Option<ClientTls>,
}

impl Configs {
    pub(super) fn of(&self, entrance: &Entrance) -> Option<Arc<ServerConfig>> {
        if entrance.name.is_some() {
            let mut named = self.named.iter();
            let own = named.find(|(known, _)| known == entrance);
            return own.map(|(_, config)| config.clone());
        }
        match entrance.listener {
            TlsListener::Native => Some(self.native.clone()),
            TlsListener::Kafka => Some(self.kafka.clone()),
            TlsListener::Http => Some(self.http.clone()),
            TlsListener::Cluster => self.cluster.clone(),
        }
    }
}

/// What was made of them.
pub(super) struct Loaded {
    pub(super) configs: Configs,
    pub(super) not_after: i64,
    /// The common name in the broker's certificate.
    pub(super) name: Option<String>,
}

pub(super) fn read(settings: &TlsConfig) -> Result<Contents, String> {
    let needed = |name: &str, path: &Option<std::path::PathBuf>| match path {
        Some(path) => read_one(name, path),
        None => Err(format!("{name} is off; name a file in PEM")),
    };
    let optional = |name: &str, path: &Option<std::path::PathBuf>| {
        let path = path.as_deref();
        path.map(|path| read_one(name, path)).transpose()
    };
    Ok(Contents {
        certificate: needed("tls.certificate", &settings.certificate)?,
        key: needed("tls.key", &settings.key)?,
        client_ca: optional("tls.client_ca", &settings.client_ca)?,
        broker_ca: optional("tls.broker_ca", &settings.broker_ca)?,
    })
}

fn read_one(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    let describe = |error: std::io::Error| {
        format!(
            "{name}: cannot read {}: {error}; check the path and its permissions",
            path.display()
        )
    };
    let contents = small_file::read(path, MOST_BYTES, Takes::Files).map_err(describe)?;
    if contents.len() > MOST_BYTES {
        return Err(format!(
            "{name}: {} has more bytes than any certificate; name a file in PEM",
            path.display()
        ));
    }
    Ok(contents)
}

/// Makes of the files what listeners need: those of each kind, and the addresses with a name that have TLS, with whether
/// clients need a certificate there.
pub(super) fn load(
    settings: &TlsConfig,
    named: &[(Entrance, ClientAuth)],
    contents: &Contents,
) -> Result<Loaded, String> {
    let certificate = file_of(&settings.certificate);
    let chain = certificates(&contents.certificate)
        .map_err(|error| format!("tls.certificate: {certificate} {error}"))?;
    let end = not_after(&chain[0]).ok_or_else(|| {
        format!("tls.certificate: {certificate} holds no X.509 certificate; name one in PEM")
    })?;
    let key_file = file_of(&settings.key);
    let key = private_key(&contents.key).map_err(|error| format!("tls.key: {key_file} {error}"))?;
    let provider = Arc::new(ring::default_provider());
    let clients = |asked| -> Result<Arc<dyn ClientCertVerifier>, String> {
        match (&contents.client_ca, asked) {
            (None, _) | (_, ClientAuth::None) => Ok(Arc::new(NoClientAuth)),
            (Some(authorities), asked) => {
                let file = format!("tls.client_ca: {}", file_of(&settings.client_ca));
                verifier(&file, authorities, asked, &provider)
            }
        }
    };
    let brokers: Option<Arc<dyn ClientCertVerifier>> = match &contents.broker_ca {
        None => None,
        Some(authorities) => {
            let file = format!("tls.broker_ca: {}", file_of(&settings.broker_ca));
            Some(verifier(
                &file,
                authorities,
                ClientAuth::Required,
                &provider,
            )?)
        }
    };
    let make = |verifier: Arc<dyn ClientCertVerifier>, protocols: &[&[u8]]| {
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| error.to_string())?;
        let (chain, key) = (chain.clone(), key.clone_key());
        let builder = builder.with_client_cert_verifier(verifier);
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            format!(
                "tls.certificate {certificate} and tls.key {key_file} do not go together: {error}; name a certificate and its own key"
            )
        })?;
        // Without it a broker would have to remember the sessions that clients may resume. Of its own: who has resumed a
        // session is not asked for a certificate again.
        config.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
        config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        Ok::<_, String>(Arc::new(config))
    };
    // Kafka's clients need not say what they speak, and are served whatever they say.
    let of_kafka: &[&[u8]] = &[];
    let of_native = &[HTTP2, FRAMES];
    let named = named.iter().map(|(entrance, asked)| {
        let protocols = match entrance.listener {
            TlsListener::Kafka => of_kafka,
            _ => of_native,
        };
        Ok((entrance.clone(), make(clients(*asked)?, protocols)?))
    });
    Ok(Loaded {
        configs: Configs {
            named: named.collect::<Result<_, String>>()?,
            native: make(clients(settings.client_auth)?, of_native)?,
            kafka: make(clients(settings.client_auth)?, of_kafka)?,
            http: make(Arc::new(NoClientAuth), &[HTTP1])?,
            cluster: brokers
                .map(|brokers| make(brokers, of_native))
                .transpose()?,
            brokers: caller(settings, contents)?,
        },
        not_after: end,
        name: common_name(&chain[0]),
    })
}

/// How this broker calls others: it trusts the authorities of their certificates, and shows its own.
fn caller(settings: &TlsConfig, contents: &Contents) -> Result<Option<ClientTls>, String> {
    let Some(authorities) = &contents.broker_ca else {
        return Ok(None);
    };
    let identity = Some((&contents.certificate[..], &contents.key[..]));
    let tls = ClientTls::from_pem(authorities, identity).map_err(|error| {
        let file = file_of(&settings.broker_ca);
        format!("tls.broker_ca: {file}: {error}")
    })?;
    Ok(Some(tls))
}

fn verifier(
    file: &str,
    authorities: &[u8],
    asked: ClientAuth,
    provider: &Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let unusable = |error: String| format!("{file} {error}");
    let mut roots = RootCertStore::empty();
    for authority in certificates(authorities).map_err(unusable)? {
        roots.add(authority).map_err(|error| {
            unusable(format!(
                "holds a certificate of no authority: {error}; name the one that signed their certificates"
            ))
        })?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = match asked {
        ClientAuth::Required => verifier,
        ClientAuth::Requested | ClientAuth::None => verifier.allow_unauthenticated(),
    };
    verifier
        .build()
        .map_err(|error| unusable(error.to_string()))
}

fn file_of(path: &Option<std::path::PathBuf>) -> String {
    let path = path.as_ref();
    path.map_or_else(|| "off".to_owned(), |path| path.display().to_string())
}
