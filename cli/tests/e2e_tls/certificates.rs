//! Authorities, and the certificates they sign.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, date_time_ymd,
};
use tempfile::TempDir;

use crate::common::{Broker, home};

/// Signs certificates.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, both in PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key is made");
        let certificate = params.self_signed(&key).expect("it signs itself");
        Self {
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// As this one, whose file names another as well.
    pub fn and(mut self, other: &Self) -> Self {
        self.pem.push_str(&other.pem);
        self
    }

    /// A certificate for a server with these names.
    pub fn server(&self, names: &[&str]) -> Identity {
        self.sign(params_of(names))
    }

    /// A certificate for a broker that calls others.
    pub fn broker(&self, names: &[&str]) -> Identity {
        let mut params = params_of(names);
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        params.extended_key_usages.push(client);
        self.sign(params)
    }

    /// A certificate for a broker that calls others under this name.
    pub fn broker_named(&self, names: &[&str], name: &str) -> Identity {
        let mut params = params_of(names);
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        params.extended_key_usages.push(client);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign(params)
    }

    /// One that ended long ago.
    pub fn expired(&self, names: &[&str]) -> Identity {
        let mut params = params_of(names);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(params)
    }

    /// A certificate for a client.
    pub fn client(&self, name: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key is made");
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            certificate: certificate.expect("it is signed").pem(),
            key: key.serialize_pem(),
        }
    }
}

fn params_of(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names of machines");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

/// Files of a broker with TLS.
pub struct Files {
    home: TempDir,
}

impl Files {
    /// Of `identity`, and of the authority that signs clients if there is one.
    pub fn new(identity: &Identity, client_ca: Option<&Authority>) -> Self {
        let files = Self { home: home() };
        files.put(identity);
        if let Some(authority) = client_ca {
            files.write("client-ca.pem", &authority.pem);
        }
        files
    }

    /// Replaces certificate and key, each at once as a careful operator does.
    pub fn put(&self, identity: &Identity) {
        self.write("key.pem", &identity.key);
        self.write("certificate.pem", &identity.certificate);
    }

    /// Replaces one file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, new) = (self.path(name), self.path("new"));
        fs::write(&new, text).expect("a file can be written");
        fs::rename(new, &path).expect("a file can be replaced");
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A broker whose `listeners` have TLS.
    pub fn broker(&self, listeners: &str, flags: &[&str]) -> Broker {
        let text = |path: &Path| path.to_str().expect("a path of the build").to_owned();
        let (certificate, key) = (
            text(&self.path("certificate.pem")),
            text(&self.path("key.pem")),
        );
        let client_ca = text(&self.path("client-ca.pem"));
        let mut all = vec![
            "--tls-listeners",
            listeners,
            "--tls-certificate",
            &certificate,
            "--tls-key",
            &key,
        ];
        if self.path("client-ca.pem").exists() {
            all.extend(["--tls-client-ca", &client_ca]);
        }
        all.extend(flags);
        Broker::with(&all)
    }
}
