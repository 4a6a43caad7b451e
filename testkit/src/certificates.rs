//! Certificates of an etcd and its clients.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::machine::skip_this;

/// Certificates, made for a test by the `openssl` program.
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// A certificate for an etcd, one for its clients, and an authority that signed neither; `None`, and said
    /// so, where there is no openssl.
    pub fn make() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let this = Self { dir };
        let tried = Command::new("openssl").arg("version").output();
        if tried.is_err() {
            skip_this("there is no `openssl`; install it with your system's packages");
            return None;
        }
        for authority in ["ca", "other"] {
            let name = format!("/CN={authority}");
            let (key, cert) = (format!("{authority}.key"), format!("{authority}.pem"));
            let begin = ["req", "-x509", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes"];
            let rest = ["-days", "2", "-subj", &name, "-keyout", &key, "-out", &cert];
            this.openssl(&[&begin[..], &rest].concat());
        }
        for name in ["server", "client"] {
            let (key, csr) = (format!("{name}.key"), format!("{name}.csr"));
            let begin = ["req", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes", "-subj"];
            let rest = ["/CN=etcd", "-addext", HOST, "-keyout", &key, "-out", &csr];
            this.openssl(&[&begin[..], &rest].concat());
            let out = format!("{name}.pem");
            let begin = [
                "x509", "-req", "-in", &csr, "-CA", "ca.pem", "-CAkey", "ca.key",
            ];
            let rest = [
                "-CAcreateserial",
                "-copy_extensions",
                "copy",
                "-days",
                "2",
                "-out",
                &out,
            ];
            this.openssl(&[&begin[..], &rest].concat());
        }
        Some(this)
    }

    fn openssl(&self, words: &[&str]) {
        let mut command = Command::new("openssl");
        let output = command
            .args(words)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        let output = output.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "openssl {}: {said}",
            words.join(" ")
        );
    }

    /// The flags of an etcd that asks its clients for a certificate.
    pub fn flags(&self) -> Vec<String> {
        vec![
            format!("--cert-file={}", self.text("server.pem")),
            format!("--key-file={}", self.text("server.key")),
            format!("--trusted-ca-file={}", self.text("ca.pem")),
            "--client-cert-auth".to_owned(),
        ]
    }

    /// Where one of its files is: `ca`, `other`, `server` or `client`, with `.pem` or `.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same, as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

const CURVE: &str = "ec_paramgen_curve:prime256v1";
const HOST: &str = "subjectAltName=IP:127.0.0.1";
