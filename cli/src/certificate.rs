//! `kera certificate`.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::output::{Out, OutputArgs, print_json};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Clocks of other machines may be behind by so much.
const BEHIND: Duration = DAY;
/// Only its owner reads a file.
const SECRET: u32 = 0o600;
/// Everybody may read a file.
const PUBLIC: u32 = 0o644;

/// `kera certificate ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CertificateCommand {
    /// Make an authority and certificates for trying TLS out.
    Dev(DevArgs),
}

/// Arguments of `kera certificate dev`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera certificate dev certs
  kera certificate dev certs --name broker-1.test --name 10.0.0.7 --days 7
  kera serve --tls-listeners native --tls-certificate certs/server.pem --tls-key certs/server-key.pem
  kera stream list --tls-ca certs/ca.pem

For trials. The authority's private key is not kept, so nobody can sign a further certificate: for other names make a \
new directory. In production use the certificates of your own authority.")]
pub(crate) struct DevArgs {
    /// The directory to make them in; no file in it is replaced
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// A name or address that clients connect to; may be given several times [default: localhost, 127.0.0.1 and ::1]
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Who the client's certificate names
    #[arg(long, value_name = "NAME", default_value = "client")]
    client: String,
    /// Valid for so many days
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=825))]
    days: u32,
    /// Do nothing if all of them are there already, for services that start again
    #[arg(long, conflicts_with = "json")]
    if_needed: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// What was made, for programs.
#[derive(Debug, Serialize)]
struct Made {
    ca: PathBuf,
    server_certificate: PathBuf,
    server_key: PathBuf,
    client_certificate: PathBuf,
    client_key: PathBuf,
    names: Vec<String>,
    /// Seconds since 1970.
    not_after: u64,
}

/// Runs `kera certificate`.
pub(crate) fn run(command: CertificateCommand) -> Outcome {
    match command {
        CertificateCommand::Dev(args) => dev(&args),
    }
}

fn dev(args: &DevArgs) -> Outcome {
    let names = match args.names.is_empty() {
        true => ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into(),
        false => args.names.clone(),
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("this machine's clock stands before 1970; set it")?;
    let signer = Signer {
        begins: now.saturating_sub(BEHIND),
        ends: now + DAY * args.days,
    };
    let at = |name: &str| args.dir.join(name);
    let made = Made {
        ca: at("ca.pem"),
        server_certificate: at("server.pem"),
        server_key: at("server-key.pem"),
        client_certificate: at("client.pem"),
        client_key: at("client-key.pem"),
        not_after: signer.ends.as_secs(),
        names,
    };
    let (ca, issuer) = signer.authority()?;
    let server = signer.server(&issuer, &made.names)?;
    let client = signer.client(&issuer, &args.client)?;
    let files = [
        (&made.ca, ca, PUBLIC),
        (&made.server_certificate, server.certificate, PUBLIC),
        (&made.server_key, server.key, SECRET),
        (&made.client_certificate, client.certificate, PUBLIC),
        (&made.client_key, client.key, SECRET),
    ];
    if args.if_needed && files.iter().all(|(path, ..)| path.exists()) {
        let mut out = Out::stdout();
        out.line(format_args!(
            "{} has certificates already",
            args.dir.display()
        ))?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some((there, ..)) = files.iter().find(|(path, ..)| path.exists()) {
        bail_there(there)?;
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.dir)
        .with_context(|| format!("cannot make the directory {}", args.dir.display()))?;
    for (path, text, mode) in files {
        write(path, &text, mode)?;
    }
    match args.output.json {
        true => print_json(&made)?,
        false => tell(&made, args.days)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(made: &Made, days: u32) -> Result<(), Failure> {
    let mut out = Out::stdout();
    let names = made.names.join(", ");
    out.line(format_args!("made for {names}, valid for {days} days:"))?;
    for (path, what) in [
        (
            &made.ca,
            "the authority, for whoever is to trust the others",
        ),
        (&made.server_certificate, "the broker's certificate"),
        (&made.server_key, "the broker's private key"),
        (&made.client_certificate, "a client's certificate"),
        (&made.client_key, "the client's private key"),
    ] {
        out.line(format_args!("  {}  {what}", path.display()))?;
    }
    let (certificate, key) = (made.server_certificate.display(), made.server_key.display());
    out.line(format_args!(
        "\nstart a broker with them:\n  kera serve --tls-listeners native --tls-certificate {certificate} --tls-key {key}"
    ))?;
    let ca = made.ca.display();
    out.line(format_args!(
        "and connect to it:\n  kera stream list --tls-ca {ca}"
    ))?;
    out.flush()
}

fn bail_there(path: &Path) -> Result<()> {
    bail!(
        "{} is there already and is not replaced; name another directory, or remove it first",
        path.display()
    )
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(path);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// A certificate and its private key, in PEM.
struct Identity {
    certificate: String,
    key: String,
}

/// How long certificates are valid, since 1970.
struct Signer {
    begins: Duration,
    ends: Duration,
}

impl Signer {
    /// An authority: its certificate in PEM, and what signs others.
    fn authority(&self) -> Result<(String, Issuer<'static, KeyPair>)> {
        let mut params = self.params(Vec::new(), "Kera trial authority")?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().context("no private key could be made")?;
        let certificate = params.self_signed(&key)?;
        Ok((certificate.pem(), Issuer::new(params, key)))
    }

    fn server(&self, issuer: &Issuer<'static, KeyPair>, names: &[String]) -> Result<Identity> {
        let common = names.first().map_or("localhost", String::as_str);
        let mut params = self.params(names.to_vec(), common)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        sign(params, issuer)
    }

    fn client(&self, issuer: &Issuer<'static, KeyPair>, name: &str) -> Result<Identity> {
        let mut params = self.params(Vec::new(), name)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        sign(params, issuer)
    }

    fn params(&self, names: Vec<String>, common: &str) -> Result<CertificateParams> {
        let said = names.join(", ");
        let mut params = CertificateParams::new(names)
            .with_context(|| format!("{said}: not all are names of machines or addresses"))?;
        params.distinguished_name.push(DnType::CommonName, common);
        params.not_before = date_time_ymd(1970, 1, 1) + self.begins;
        params.not_after = date_time_ymd(1970, 1, 1) + self.ends;
        Ok(params)
    }
}

fn sign(mut params: CertificateParams, issuer: &Issuer<'static, KeyPair>) -> Result<Identity> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().context("no private key could be made")?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok(Identity {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}
