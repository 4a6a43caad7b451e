//! How client commands find a broker and read its refusals.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use kera_grpc::v1::access_client::AccessClient;
use kera_grpc::v1::backups_client::BackupsClient;
use kera_grpc::v1::clusters_client::ClustersClient;
use kera_grpc::v1::quotas_client::QuotasClient;
use kera_grpc::v1::streams_client::StreamsClient;
use kera_grpc::v1::transaction_tools_client::TransactionToolsClient;
use kera_grpc::v1::users_client::UsersClient;
use kera_grpc::{Connector, error_of_status, wire_error_of_status};
use kera_protocol::error::ErrorCode;
use kera_rpc::login::{self, PasswordError};
use kera_rpc::tls::reason_in;
use kera_rpc::{
    Admin, ChangeError, Client, ClientOptions, ClientTls, ConnectOptions, Login, RetryPolicy,
    RpcError, SaslMechanism, TlsFiles, Way, told,
};
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::parse;
use crate::waits::Watched;

/// How long a broker may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a command tries calls again that may succeed later.
const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// The largest answer accepted from a broker: descriptions of streams with many lanes are long.
const LARGEST_ANSWER: usize = 256 << 20;

/// What the error says of somebody who answers and is no broker's native address: its HTTP or Kafka address, for example.
const OTHER_PROTOCOL: &str = "the peer speaks another protocol";

/// The variable with a user's password.
const PASSWORD: &str = "KERA_USER_PASSWORD";
/// The password in the first line of a file.
pub(crate) fn password_in(file: &Path) -> Result<String, Failure> {
    login::password_in_file(file).map_err(|error| match error {
        PasswordError::Read(error) => {
            Failure::message(format!("{} cannot be read: {error}", file.display()))
        }
        other => Failure::Usage(other.to_string()),
    })
}

/// A password from standard input.
pub(crate) fn password_from_input() -> Result<String, Failure> {
    login::password_in(std::io::stdin()).map_err(|error| match error {
        PasswordError::Read(error) => error.into(),
        other => Failure::Usage(other.to_string()),
    })
}

/// Whom a client command trusts, and who it is.
#[derive(Clone, Debug, Args)]
pub(crate) struct IdentityArgs {
    /// Use TLS, and trust brokers whose certificate an authority in this file (PEM) has signed.
    #[arg(long, value_name = "FILE", env = "KERA_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// This client's certificate (PEM), for brokers that ask for one.
    #[arg(
        long,
        value_name = "FILE",
        env = "KERA_TLS_CLIENT_CERT",
        requires = "tls_ca",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,
    /// The private key (PEM) of that certificate.
    #[arg(
        long,
        value_name = "FILE",
        env = "KERA_TLS_CLIENT_KEY",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
    /// The user to be, for brokers that ask who clients are. The password comes from a file, or from the variable
    /// KERA_USER_PASSWORD.
    #[arg(long = "user", value_name = "NAME", env = "KERA_USER")]
    pub login_user: Option<String>,
    /// The file with that user's password, its first line.
    #[arg(
        long,
        value_name = "FILE",
        env = "KERA_USER_PASSWORD_FILE",
        requires = "login_user"
    )]
    pub user_password_file: Option<PathBuf>,
    /// A file with a token that says who this client is, in place of a user and a password. It takes TLS. The file is read
    /// for each connection.
    #[arg(
        long,
        value_name = "FILE",
        env = "KERA_TOKEN_FILE",
        conflicts_with = "login_user"
    )]
    pub token_file: Option<PathBuf>,
}

/// Which broker a client command talks to.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    /// A broker's address, or those of several separated by commas: any of them will do.
    #[arg(
        long,
        short = 'b',
        value_name = "HOST:PORT[,...]",
        env = "KERA_BOOTSTRAP",
        default_value = "127.0.0.1:7600",
        value_parser = parse::addresses
    )]
    pub bootstrap: String,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// How to prove it: SCRAM-SHA-512, SCRAM-SHA-256, or PLAIN, which sends the password and takes TLS.
    #[arg(
        long,
        value_name = "NAME",
        env = "KERA_SASL_MECHANISM",
        default_value = "SCRAM-SHA-512",
        value_parser = parse::mechanism
    )]
    pub sasl_mechanism: SaslMechanism,
}

/// Control calls to one broker.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    /// Streams, producers and the broker itself.
    pub streams: StreamsClient<Watched>,
    /// The cluster that the broker belongs to.
    pub clusters: ClustersClient<Watched>,
    /// Users with passwords.
    pub users: UsersClient<Watched>,
    /// How much clients may do.
    pub quotas: QuotasClient<Watched>,
    /// Transactions, as operators see them.
    pub transactions: TransactionToolsClient<Watched>,
    /// Who may do what.
    pub access: AccessClient<Watched>,
    /// Copies, at the address where a broker listens for others.
    pub backups: BackupsClient<Watched>,
    /// How it was reached.
    pub way: Way,
    /// The address that answered.
    pub address: String,
}

impl IdentityArgs {
    /// The user to be, if one is named, and its password.
    pub(crate) fn password(&self) -> Result<Option<(&str, String)>, Failure> {
        let Some(user) = &self.login_user else {
            return Ok(None);
        };
        let password = match (&self.user_password_file, std::env::var(PASSWORD)) {
            (Some(file), _) => password_in(file)?,
            (None, Ok(password)) if !password.is_empty() => password,
            (None, _) => {
                return Err(Failure::Usage(format!(
                    "the user {user} has no password; name a file with it (--user-password-file or KERA_USER_PASSWORD_FILE), or set {PASSWORD}"
                )));
            }
        };
        Ok(Some((user, password)))
    }

    /// TLS, if it is asked for.
    pub(crate) fn tls(&self) -> Result<Option<ClientTls>, Failure> {
        let Some(ca) = &self.tls_ca else {
            return Ok(None);
        };
        let files = TlsFiles {
            ca: ca.clone(),
            certificate: self.tls_cert.clone(),
            key: self.tls_key.clone(),
        };
        let tls = ClientTls::from_files(&files);
        tls.map(Some)
            .map_err(|error| Failure::Usage(error.to_string()))
    }
}

impl ConnectArgs {
    /// Connects for control calls, to the first broker that answers.
    pub(crate) async fn control(&self) -> Result<Control, Failure> {
        control(&self.bootstrap, &self.way()?).await
    }

    /// The way to brokers.
    pub(crate) fn way(&self) -> Result<Way, Failure> {
        Ok(Way {
            tls: self.identity.tls()?,
            login: self.login()?,
        })
    }

    /// The user to be, if one is named.
    fn login(&self) -> Result<Option<Login>, Failure> {
        if let Some(file) = &self.identity.token_file {
            if self.identity.tls_ca.is_none() {
                let text = "a token is sent as it is, and without TLS everybody on the way could read and use it; use TLS (--tls-ca FILE)";
                return Err(Failure::Usage(text.to_owned()));
            }
            return Ok(Some(Login::with_token_file(file)));
        }
        let Some((user, password)) = self.identity.password()? else {
            return Ok(None);
        };
        if self.sasl_mechanism == SaslMechanism::Plain && self.identity.tls_ca.is_none() {
            let text = "PLAIN sends the password itself, and without TLS everybody on the way could read it; use TLS (--tls-ca FILE), or SCRAM-SHA-512";
            return Err(Failure::Usage(text.to_owned()));
        }
        let login = Login::new(user, &password);
        Ok(Some(login.with_mechanism(self.sasl_mechanism)))
    }

    /// Administers streams and groups. The first contact says clearly when nobody is there.
    pub(crate) async fn admin(&self) -> Result<Admin, Failure> {
        self.control().await?;
        self.client().map(Admin::new)
    }

    /// How data connections behave.
    pub(crate) fn options(&self) -> Result<ConnectOptions, Failure> {
        Ok(ConnectOptions {
            tls: self.identity.tls()?,
            login: self.login()?,
            ..ConnectOptions::default()
        })
    }

    /// A client that goes on with another broker when one is lost, and finds coordinators of groups.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let options = ClientOptions {
            retry: RetryPolicy::within(RETRY_WITHIN),
            connect: self.options()?,
        };
        Client::new(&self.bootstrap, options).map_err(failed)
    }
}

/// What a failed change says to people.
pub(crate) fn not_changed(change: ChangeError) -> Failure {
    match change.earlier {
        None => failed(change.error),
        Some(_) => Failure::message(change.to_string()),
    }
}

/// What a failed call of a [`Client`] says to people.
pub(crate) fn failed(error: RpcError) -> Failure {
    match error {
        RpcError::Connection(error) if error.is_retryable() => {
            let text = error.to_string();
            let hint = match text.contains(OTHER_PROTOCOL) {
                true => "name the broker's server.listen, by default port 7600",
                false => "try again when it is back",
            };
            Failure::message(format!("{text}; {hint}"))
        }
        other => Failure::message(other.to_string()),
    }
}

/// Connects for control calls to the first broker of a list that answers.
pub(crate) async fn control(bootstrap: &str, way: &Way) -> Result<Control, Failure> {
    let (mut first, mut silent) = (None, Vec::new());
    for address in bootstrap.split(',') {
        match connect(address, way).await {
            Ok(control) => return Ok(control),
            Err(Unreached::Silent(cause)) => silent.push((address, cause)),
            Err(Unreached::Refused(failure)) => first = first.or(Some(failure)),
        }
    }
    Err(first.unwrap_or_else(|| nobody_answers(&silent)))
}

/// Why an address gives no broker.
enum Unreached {
    /// Nobody answers there; what the system says of it.
    Silent(String),
    /// Somebody does, who does not let this client in, or the address is wrong.
    Refused(Failure),
}

async fn connect(address: &str, way: &Way) -> Result<Control, Unreached> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| Failure::Usage(format!("`{address}` is not an address: {error}")))
        .map_err(Unreached::Refused)?
        .connect_timeout(CONNECT_WITHIN)
        .tcp_nodelay(true);
    let waits = || Some(format!("broker {address} has not taken the connection yet"));
    let connecting = endpoint.connect_with_connector(Connector::new(way, address));
    let channel = told(connecting, waits)
        .await
        .map_err(|error| unreachable_broker(address, &error))?;
    let channel = Watched::new(channel, address);
    Ok(Control {
        address: address.to_owned(),
        way: way.clone(),
        streams: StreamsClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
        users: UsersClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
        quotas: QuotasClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
        transactions: TransactionToolsClient::new(channel.clone())
            .max_decoding_message_size(LARGEST_ANSWER),
        access: AccessClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
        clusters: ClustersClient::new(channel.clone()).max_decoding_message_size(LARGEST_ANSWER),
        backups: BackupsClient::new(channel),
    })
}

fn unreachable_broker(address: &str, error: &(dyn std::error::Error + 'static)) -> Unreached {
    if let Some(reason) = reason_in(error) {
        let failure = Failure::message(format!("no connection to {address}: {reason}"));
        return Unreached::Refused(failure);
    }
    // The innermost cause says what happened ("connection refused"); those around it do not.
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let cause = cause.to_string().to_lowercase();
    let cause = cause.split(" (os error").next().unwrap_or(&cause);
    Unreached::Silent(cause.to_owned())
}

fn nobody_answers(silent: &[(&str, String)]) -> Failure {
    let tried = silent.iter();
    let tried: Vec<String> = tried
        .map(|(address, cause)| format!("{address}: {cause}"))
        .collect();
    Failure::message(format!(
        "no broker answers at {}; start one with `kera serve`, or name another with --bootstrap or KERA_BOOTSTRAP",
        tried.join(", nor at ")
    ))
}

/// Calls a broker, and again for a while where it says that this may succeed later.
pub(crate) async fn retried<T, F>(call: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    match attempted(call, |_| ()).await {
        Ok(answer) => answer.map_err(|status| refused(&status)),
        Err(error) => Err(failed(error)),
    }
}

/// As [`retried`], of a call that changes something. `look`: the command by which people find out whether it did.
pub(crate) async fn changed<T, F>(call: impl FnMut() -> F, look: &str) -> Result<T, Failure>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let earlier = OnceLock::new();
    let note = |error: &RpcError| {
        if error.is_uncertain() && error.is_retryable() {
            earlier.get_or_init(|| error.to_string());
        }
    };
    let (failure, is_uncertain) = match attempted(call, note).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(status)) => (refused(&status), is_uncertain(&status)),
        Err(error) => {
            let is_uncertain = error.is_uncertain();
            (failed(error), is_uncertain)
        }
    };
    Err(match (is_uncertain, earlier.into_inner()) {
        (true, _) => uncertain(&failure, look),
        (false, None) => failure,
        (false, Some(earlier)) => Failure::message(format!(
            "{}; an earlier attempt may have done it: {earlier}",
            failure.text()
        )),
    })
}

async fn attempted<T, F>(
    mut call: impl FnMut() -> F,
    failed: impl Fn(&RpcError),
) -> Result<Result<T, Status>, RpcError>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let failed = &failed;
    let attempt = || {
        let answer = call();
        async move {
            match answer.await {
                Ok(response) => Ok(Ok(response.into_inner())),
                Err(status) => match wire_error_of_status(&status) {
                    Some(error) => Err(RpcError::from(error)).inspect_err(failed),
                    None => Ok(Err(status)),
                },
            }
        }
    };
    let policy = RetryPolicy::within(RETRY_WITHIN);
    policy.run_told(|| None, attempt).await
}

/// What the failure of a change says to people: as [`refused`], and where no answer says whether it was made, that. `look`: the
/// command that tells.
pub(crate) fn not_made(status: &Status, look: &str) -> Failure {
    let failure = refused(status);
    match is_uncertain(status) {
        true => uncertain(&failure, look),
        false => failure,
    }
}

/// True if the broker may have done what it was asked for.
fn is_uncertain(status: &Status) -> bool {
    // Whoever answers so knows no such call.
    let knows_it = status.code() != Code::Unimplemented && !status.message().contains(HTTP_1);
    knows_it && error_of_status("", status).is_uncertain()
}

fn uncertain(failure: &Failure, look: &str) -> Failure {
    let text = failure.text();
    Failure::message(format!(
        "{text}; whether the change was made is not known: see `{look}`"
    ))
}

/// What an HTTP/1 server says to HTTP/2.
const HTTP_1: &str = "505";

/// What a broker's refusal says to people: its own message and its code.
pub(crate) fn refused(status: &Status) -> Failure {
    let code = status
        .metadata()
        .get("kera-error")
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok())
        .and_then(ErrorCode::from_number);
    if let Some(reason) = reason_in(status) {
        return Failure::message(format!("lost the connection to the broker: {reason}"));
    }
    // What TLS answers to a call without it is no HTTP/2, and a refused certificate ends the connection. Only what
    // comes of the connection, and of no broker, has a cause.
    let is_cut = std::error::Error::source(status).is_some();
    if code.is_none() && is_cut && status.code() != Code::Unavailable {
        return Failure::message(format!(
            "the connection ended before the call was answered: {}; if the broker wants TLS, name the authority that signed its certificate (--tls-ca FILE or KERA_TLS_CA); if it wants a certificate of this client, name one that it trusts and its key (--tls-cert and --tls-key)",
            status.message()
        ));
    }
    match code {
        Some(code) => Failure::message(format!("{} ({code})", status.message())),
        None if status.code() == Code::Unimplemented => Failure::message(
            "no broker answers there that knows this call; name its server.listen, by default port 7600, and use a `kera` of its own version",
        ),
        None if status.message().contains(HTTP_1) => Failure::message(
            "this is an address for browsers; name the broker's server.listen, by default port 7600",
        ),
        None if status.code() == Code::Unavailable => Failure::message(format!(
            "lost the connection to the broker: {}; try again when it is back",
            status.message()
        )),
        None => Failure::message(format!(
            "{}; see the broker's log",
            status.message().to_lowercase()
        )),
    }
}

#[cfg(test)]
mod tests {
    use kera_grpc::status_of;
    use kera_protocol::error::WireError;
    use kera_protocol::frame::FrameError;
    use kera_rpc::ConnectionError;

    use super::*;

    #[test]
    fn refusals_name_their_code() {
        let mut status =
            Status::not_found("no stream `x` exists; create it with `kera stream create x`");
        status
            .metadata_mut()
            .insert("kera-error", "1".parse().unwrap());
        assert_eq!(
            format!("{:?}", refused(&status)),
            "Failed(no stream `x` exists; create it with `kera stream create x` (UNKNOWN_STREAM))"
        );
        let plain = Status::internal("Boom");
        assert_eq!(
            format!("{:?}", refused(&plain)),
            "Failed(boom; see the broker's log)"
        );
    }

    #[test]
    fn a_change_without_an_answer_may_have_been_made() {
        let said = |status: &Status| not_made(status, "kera user list").text();
        let known = "; whether the change was made is not known: see `kera user list`";
        assert!(said(&Status::unavailable("broken pipe")).ends_with(known));
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(said(&Status::from_error(Box::new(broken))).ends_with(known));
        assert!(said(&status_of(&WireError::new(ErrorCode::Timeout, "slow"))).ends_with(known));
        for refusal in [
            status_of(&WireError::new(ErrorCode::NotAuthorized, "no")),
            Status::unimplemented(""),
            Status::unknown("HTTP status 505"),
        ] {
            assert!(!said(&refusal).contains("not known"), "{refusal}");
        }
    }

    #[tokio::test]
    async fn what_an_earlier_attempt_may_have_done_is_told_with_the_refusal() {
        let mut codes = [ErrorCode::Timeout, ErrorCode::UnknownTransaction].into_iter();
        let call = || {
            let code = codes.next().expect("it ends with the second");
            let refusal = status_of(&WireError::new(code, "planted"));
            std::future::ready(Err::<tonic::Response<()>, _>(refusal))
        };
        let failure = changed(call, "kera transaction list").await.unwrap_err();
        let told = failure.text();
        assert!(told.contains("UNKNOWN_TRANSACTION"), "{told}");
        assert!(
            told.contains("an earlier attempt may have done it"),
            "{told}"
        );
    }

    #[tokio::test]
    async fn nobody_there_says_what_to_do() {
        // A port that was free a moment ago: nobody listens on it.
        let address = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let failure = control(&address, &Way::default()).await.unwrap_err();
        let text = format!("{failure:?}");
        assert!(
            text.contains("connection refused; start one with `kera serve`"),
            "{text}"
        );
        let both = format!("{address},{address}");
        let failure = control(&both, &Way::default()).await.unwrap_err();
        let each =
            format!("{address}: connection refused, nor at {address}: connection refused; start");
        assert!(failure.text().contains(&each), "{}", failure.text());
    }

    #[test]
    fn an_address_of_another_protocol_is_told_apart_from_a_broker_that_is_away() {
        let told = |reason: String| {
            let error = ConnectionError::Connect {
                address: "127.0.0.1:7680".into(),
                reason: reason.into(),
            };
            failed(RpcError::Connection(error)).text()
        };
        let other = told(FrameError::NotKera.to_string());
        assert!(
            other.ends_with("server.listen, by default port 7600"),
            "{other}"
        );
        let away = told("connection refused".to_owned());
        assert!(away.ends_with("try again when it is back"), "{away}");
    }
}
