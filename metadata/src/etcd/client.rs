//! Calls to etcd: which member, how long, and what a failure says of the call.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::access::{self, Access, Token};
use super::identity::Identity;
use super::messages::*;
use super::options::Location;
use crate::error::MetadataError;

/// Greatest answer that is taken: the changes of the largest stream's deletion fit several times.
const MAX_ANSWER: usize = 256 << 20;
/// How long a member may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// A connection is asked for a sign of life after this long; etcd allows no less than 5 s.
const PING_AFTER: Duration = Duration::from_secs(6);
const PING_WITHIN: Duration = Duration::from_secs(3);
/// Pauses between attempts, from the first to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The name under which calls carry a token.
const TOKEN: &str = "token";

/// How a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// Nothing was sent.
    NotSent(String),
    /// It was sent, and what became of it is unknown.
    Lost(String),
    /// etcd refused it: nothing came of it.
    Refused(Code, String),
}

impl CallError {
    fn detail(self) -> String {
        match self {
            Self::NotSent(detail) | Self::Lost(detail) | Self::Refused(_, detail) => detail,
        }
    }

    /// Why etcd was not reached, unless it was and refused the call.
    fn unreached(&self) -> Option<&str> {
        match self {
            Self::NotSent(detail) | Self::Lost(detail) => Some(detail),
            Self::Refused(..) => None,
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let mut detail = match status.message() {
            "" => status.code().description().to_owned(),
            message => message.to_owned(),
        };
        if let Some(cause) = std::error::Error::source(&status) {
            detail = format!("{detail}: {}", whole(cause));
        }
        // A connection that had ended, and could not be made again for this call.
        let mut cause = std::error::Error::source(&status);
        while let Some(error) = cause {
            if error.is::<ConnectError>() {
                return Self::NotSent(whole(error));
            }
            cause = error.source();
        }
        match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused(status.code(), detail),
            // Said by etcd itself; the client's own would be an answer that is too large.
            Code::ResourceExhausted if detail.starts_with("etcdserver:") => {
                Self::Refused(status.code(), detail)
            }
            _ => Self::Lost(detail),
        }
    }
}

/// With which token a call is opened, where etcd has users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The one there is, until etcd refuses it.
    Kept,
    /// A new one, for which etcd checks the password, which takes it long: where it shows late, or not at
    /// all, that a token has run out.
    New,
}

#[derive(Default)]
struct Current {
    /// The member that is asked next.
    member: usize,
    channel: Option<Channel>,
    /// Rises with every connection.
    number: u64,
    /// Why the last attempt failed that had its time; `None` after one that went well.
    failed: Option<String>,
}

/// One connection to one member after the other.
pub(super) struct Client {
    location: Location,
    access: Access,
    identity: Identity,
    endpoints: Vec<Endpoint>,
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
    timeout: Duration,
}

impl Client {
    pub(super) fn new(
        location: Location,
        access: Access,
        identity: Identity,
        timeout: Duration,
    ) -> Result<Self, MetadataError> {
        let scheme = access.tls().map_or("http", |_| "https");
        let endpoints = location.members.iter().map(|member| {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{member}"));
            let mut endpoint = endpoint.map_err(|error| {
                MetadataError::invalid(format!("etcd's address `{member}` is no address: {error}"))
            })?;
            if let Some(tls) = access.tls() {
                endpoint = endpoint.tls_config(tls.clone()).map_err(|error| {
                    MetadataError::invalid(format!(
                        "the certificates for etcd cannot be used: {}; cluster.store_ca, cluster.store_certificate and cluster.store_key are PEM files, the last two of one pair",
                        whole(&error)
                    ))
                })?;
            }
            Ok(endpoint
                .connect_timeout(CONNECT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_AFTER)
                .keep_alive_timeout(PING_WITHIN))
        });
        let endpoints = endpoints.collect::<Result<_, MetadataError>>()?;
        Ok(Self {
            location,
            access,
            identity,
            endpoints,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            timeout,
        })
    }

    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    /// Who is to answer.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When an operation that begins now is given up.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// How long one attempt may take, so that another member is asked while there is time.
    fn patience(&self, deadline: Instant) -> Duration {
        let left = deadline.saturating_duration_since(Instant::now());
        left.min((self.timeout / 2).max(Duration::from_millis(100)))
    }

    /// The connection there is, or a new one to the first member that accepts one and is of the store.
    async fn channel(&self) -> Result<(u64, Channel), CallError> {
        // One at a time; who waited takes the connection that was made meanwhile.
        let _connecting = self.connecting.lock().await;
        let mut failures = Vec::new();
        for _ in 0..self.endpoints.len() {
            let member = {
                let current = self.current.lock();
                if let Some(channel) = &current.channel {
                    return Ok((current.number, channel.clone()));
                }
                current.member
            };
            // Where this is given up, the next call begins with the next member.
            self.current.lock().member = (member + 1) % self.endpoints.len();
            match self.endpoints[member].connect().await {
                Ok(channel) => match self.recognize(&channel).await {
                    Ok(()) => {
                        let mut current = self.current.lock();
                        current.number += 1;
                        current.channel = Some(channel.clone());
                        return Ok((current.number, channel));
                    }
                    Err(refused @ CallError::Refused(..)) => return Err(refused),
                    Err(error) => failures.push(error.detail()),
                },
                Err(error) => {
                    let name = &self.location.members[member];
                    failures.push(format!("{name}: {}", whole(&error)));
                }
            }
        }
        let failed = failures.join("; ");
        self.current.lock().failed = Some(failed.clone());
        Err(CallError::NotSent(failed))
    }

    /// A connection failed: the next call asks the next member.
    fn broken(&self, number: u64) {
        let mut current = self.current.lock();
        if current.number == number {
            current.channel = None;
        }
    }

    /// The connection in use, or a new one, with its number.
    async fn connected(&self, patience: Duration) -> Result<(u64, Channel), CallError> {
        match tokio::time::timeout(patience, self.channel()).await {
            Ok(connected) => connected,
            Err(_) => Err(CallError::NotSent(self.late("a connection", patience))),
        }
    }

    /// What is said of an attempt that took too long. The last one before a deadline has little time: those
    /// before it may have told more.
    fn late(&self, what: &str, patience: Duration) -> String {
        let late = late(what, patience);
        match &self.current.lock().failed {
            Some(failed) => format!("{late}; before that, {failed}"),
            None => late,
        }
    }

    /// One call, once.
    pub(super) async fn once<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        deadline: Instant,
    ) -> Result<A, CallError>
    where
        Q: Message + Clone + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let (number, channel) = self.connected(self.patience(deadline)).await?;
        let patience = self.patience(deadline);
        let call = self.call(&channel, path, request);
        let outcome = match tokio::time::timeout(patience, call).await {
            Ok(outcome) => {
                let failed = outcome.as_ref().err().and_then(CallError::unreached);
                self.current.lock().failed = failed.map(str::to_owned);
                outcome
            }
            Err(_) => Err(CallError::Lost(self.late("an answer", patience))),
        };
        if !matches!(outcome, Ok(_) | Err(CallError::Refused(..))) {
            self.broken(number);
        }
        outcome
    }

    /// One call over `channel`, with a token where calls need one.
    async fn call<Q, A>(
        &self,
        channel: &Channel,
        path: &'static str,
        request: Q,
    ) -> Result<A, CallError>
    where
        Q: Message + Clone + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        if !self.access.has_user() {
            return unary(channel, path, None, request).await;
        }
        let token = match self.access.token() {
            Some(token) => token,
            None => self.authenticate(channel).await?,
        };
        match unary(channel, path, Some(token), request.clone()).await {
            // Nothing came of it: etcd was started again, or its users have changed.
            Err(CallError::Refused(_, detail)) if access::is_stale(&detail) => {
                let token = self.authenticate(channel).await?;
                unary(channel, path, Some(token), request).await
            }
            other => other,
        }
    }

    /// Asks who answers on `channel`: a stranger is as good as nobody.
    async fn recognize(&self, channel: &Channel) -> Result<(), CallError> {
        if !self.identity.is_known() {
            return Ok(());
        }
        let floor = self.identity.seen();
        let question = self.identity.question();
        let answer: RangeResponse = self.call(channel, RANGE, question).await?;
        let at = revision(&answer.header);
        let judged = self.identity.judge(answer.kvs.first(), at, floor);
        judged.map_err(|stranger| CallError::NotSent(stranger.to_string()))
    }

    /// Asks again who answers on connection `number`, once a call has been opened on it: what comes of
    /// that call before is not to be believed.
    pub(super) async fn confirm(&self, number: u64) -> Result<(), CallError> {
        let channel = {
            let current = self.current.lock();
            let channel = current.channel.clone().filter(|_| current.number == number);
            channel.ok_or_else(|| CallError::NotSent("the connection was given up".to_owned()))?
        };
        let patience = self.patience(self.deadline());
        match tokio::time::timeout(patience, self.recognize(&channel)).await {
            Ok(recognized) => recognized,
            Err(_) => Err(CallError::Lost(late("an answer", patience))),
        }
    }

    /// One transaction, once, of the store and of no other: it compares the cluster's key as well.
    pub(super) async fn transact(
        &self,
        mut request: TxnRequest,
        deadline: Instant,
    ) -> Result<TxnResponse, CallError> {
        let Some(comparison) = self.identity.comparison() else {
            return self.once(TXN, request, deadline).await;
        };
        request.compare.push(comparison);
        request.failure.push(reading(self.identity.question()));
        let floor = self.identity.seen();
        let mut answer: TxnResponse = self.once(TXN, request, deadline).await?;
        let at = revision(&answer.header);
        if answer.succeeded {
            return match self.identity.judge_revision(at, floor) {
                Ok(()) => Ok(answer),
                // It was done, in a state of the store that is not to be.
                Err(stranger) => {
                    self.leave();
                    Err(CallError::Lost(stranger.to_string()))
                }
            };
        }
        let last = answer.responses.pop();
        let found = last.as_ref().and_then(in_range);
        match self.identity.judge(found, at, floor) {
            Ok(()) => Ok(answer),
            Err(stranger) => {
                self.leave();
                Err(CallError::NotSent(stranger.to_string()))
            }
        }
    }

    /// Gives the connection up: the next call makes another.
    fn leave(&self) {
        self.current.lock().channel = None;
    }

    /// Tells etcd the password; the token that it answers with.
    async fn authenticate(&self, channel: &Channel) -> Result<Token, CallError> {
        let Some((name, password)) = self.access.credentials()? else {
            return Err(CallError::NotSent("there is no user".to_owned()));
        };
        let request = AuthenticateRequest { name, password };
        let answer: AuthenticateResponse = unary(channel, AUTHENTICATE, None, request).await?;
        self.access.set_token(&answer.token)
    }

    /// Opens a call that is answered by many messages. The connection is looked after by the caller,
    /// who says [`lost`](Self::lost) when it fails, and of a call with the token there is
    /// [`token_refused`](Self::token_refused) when etcd refuses it.
    pub(super) async fn open<Q, A>(
        &self,
        path: &'static str,
        pass: Pass,
        requests: impl Stream<Item = Q> + Send + 'static,
        deadline: Instant,
    ) -> Result<(u64, Streaming<A>), CallError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let patience = self.patience(deadline);
        let (number, channel) = self.connected(patience).await?;
        let grpc_channel = channel.clone();
        let call = async {
            let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Q, A>::default();
            let path = PathAndQuery::from_static(path);
            let mut request = Request::new(requests);
            if self.access.has_user() {
                let kept = self.access.token().filter(|_| pass == Pass::Kept);
                let token = match kept {
                    Some(token) => token,
                    None => self.authenticate(&grpc_channel).await?,
                };
                request.metadata_mut().insert(TOKEN, token);
            }
            // A member that is cut off from the others says so instead of keeping silent.
            let metadata = request.metadata_mut();
            metadata.insert("hasleader", MetadataValue::from_static("true"));
            let answer = grpc.streaming(request, path, codec).await?;
            Ok::<Streaming<A>, CallError>(answer.into_inner())
        };
        match tokio::time::timeout(patience, call).await {
            Ok(Ok(stream)) => Ok((number, stream)),
            Ok(Err(error)) => {
                if pass == Pass::Kept {
                    self.token_refused(&error);
                }
                self.broken(number);
                Err(error)
            }
            Err(_) => {
                self.broken(number);
                Err(CallError::Lost(late("an answer", patience)))
            }
        }
    }

    /// An [`open`](Self::open) call failed with `error`. If etcd refused it, that may be for its token, and
    /// not every version says so.
    pub(super) fn token_refused(&self, error: &CallError) {
        if matches!(error, CallError::Refused(..)) {
            self.access.forget_token();
        }
    }

    /// The stream of an [`open`](Self::open) call failed.
    pub(super) fn lost(&self, number: u64) {
        self.broken(number);
    }

    /// Reads ranges of the store, all at one revision, tried until `deadline`. Answers the revision and
    /// what was found in each.
    pub(super) async fn look(
        &self,
        ranges: Vec<RangeRequest>,
        deadline: Instant,
    ) -> Result<(u64, Vec<RangeResponse>), MetadataError> {
        let reads = ranges.into_iter().map(reading);
        let request = TxnRequest {
            success: reads.collect(),
            ..TxnRequest::default()
        };
        let answer = self.change(request, deadline).await?;
        let at = revision(&answer.header);
        let found = answer.responses.into_iter().map(|op| match op.response {
            Some(Response::Range(range)) => range,
            _ => RangeResponse::default(),
        });
        Ok((at, found.collect()))
    }

    /// A transaction that may be done more than once, tried until `deadline`.
    pub(super) async fn change(
        &self,
        request: TxnRequest,
        deadline: Instant,
    ) -> Result<TxnResponse, MetadataError> {
        let ask = || self.transact(request.clone(), deadline);
        self.until_answered(deadline, ask).await
    }

    /// A call that changes nothing, tried until `deadline`.
    pub(super) async fn read<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        deadline: Instant,
    ) -> Result<A, MetadataError>
    where
        Q: Message + Clone + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let ask = || self.once(path, request.clone(), deadline);
        self.until_answered(deadline, ask).await
    }

    /// Asks until there is an answer, at most until `deadline`.
    async fn until_answered<A, F: Future<Output = Result<A, CallError>>>(
        &self,
        deadline: Instant,
        ask: impl Fn() -> F,
    ) -> Result<A, MetadataError> {
        let mut pauses = Pauses::until(deadline);
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Refused(code, detail)) => return Err(self.refused(code, detail)),
                Err(error) => {
                    if !pauses.pause().await {
                        return Err(self.unavailable(error.detail()));
                    }
                }
            }
        }
    }

    /// What a refusal by etcd is to callers.
    pub(super) fn refused(&self, code: Code, detail: String) -> MetadataError {
        let path = self.location.path();
        if let Some(advice) = access::advice(&detail) {
            let detail = format!("etcd refuses it ({detail}); {advice}");
            return MetadataError::Storage { path, detail };
        }
        match code {
            Code::ResourceExhausted if detail.contains("space exceeded") => {
                MetadataError::Full { path }
            }
            Code::InvalidArgument => {
                MetadataError::invalid(format!("etcd refuses the transaction ({detail}); split it"))
            }
            _ => MetadataError::Storage { path, detail },
        }
    }

    pub(super) fn unavailable(&self, mut detail: String) -> MetadataError {
        if let Some(advice) = self.access.advice(&detail) {
            detail = format!("{detail}; {advice}");
        }
        MetadataError::Unavailable {
            store: self.location.name.clone(),
            detail,
        }
    }

    pub(super) fn unknown(&self, detail: String) -> MetadataError {
        MetadataError::UnknownOutcome {
            path: self.location.path(),
            detail,
        }
    }

    pub(super) fn corrupt(&self, detail: String) -> MetadataError {
        MetadataError::Corrupt {
            path: self.location.path(),
            detail,
        }
    }
}

/// One call over `channel`.
async fn unary<Q, A>(
    channel: &Channel,
    path: &'static str,
    token: Option<Token>,
    request: Q,
) -> Result<A, CallError>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_ANSWER);
    ready(&mut grpc).await?;
    let codec = ProstCodec::<Q, A>::default();
    let path = PathAndQuery::from_static(path);
    let mut request = Request::new(request);
    if let Some(token) = token {
        request.metadata_mut().insert(TOKEN, token);
    }
    let answer = grpc.unary(request, path, codec).await?;
    Ok(answer.into_inner())
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), CallError> {
    grpc.ready()
        .await
        .map_err(|error| CallError::NotSent(whole(&error)))
}

fn late(what: &str, patience: Duration) -> String {
    format!("{what} did not come within {patience:?}")
}

/// An error with all its causes: the transport's own says little.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Growing pauses between attempts, up to a deadline.
pub(super) struct Pauses {
    next: Duration,
    deadline: Instant,
}

impl Pauses {
    pub(super) fn until(deadline: Instant) -> Self {
        Self {
            next: PAUSE,
            deadline,
        }
    }

    /// Pauses that never end.
    pub(super) fn endless() -> Self {
        // Far enough, and no clock overflows by it.
        Self::until(Instant::now() + Duration::from_secs(3600 * 24 * 365 * 30))
    }

    /// Waits; false, at once, where the deadline comes first.
    pub(super) async fn pause(&mut self) -> bool {
        let pause = self.next;
        let in_time = Instant::now() + pause < self.deadline;
        self.next = (pause * 2).min(LONGEST_PAUSE);
        if in_time {
            tokio::time::sleep(pause).await;
        }
        in_time
    }
}

/// Keys of a page: some MiB. For each page etcd goes over all keys that are left of the range.
pub(super) const PAGE: i64 = 16_384;
/// Likewise of pins, each of which may have 600 KB.
pub(super) const PAGE_OF_PINS: i64 = 256;

/// A range of keys as they are at one revision, read in pages of so many keys.
pub(super) async fn pages(
    client: &Client,
    range: (Vec<u8>, Vec<u8>),
    at: u64,
    keys_only: bool,
    limit: i64,
) -> Result<(u64, Vec<KeyValue>), MetadataError> {
    let (mut key, range_end) = range;
    let mut revision = at;
    let mut found = Vec::new();
    loop {
        let request = RangeRequest {
            key,
            range_end: range_end.clone(),
            limit,
            revision: revision as i64,
            keys_only,
        };
        // Each page has its own time: the whole may be large.
        let (now, mut pages) = client.look(vec![request], client.deadline()).await?;
        let page = pages.pop().unwrap_or_default();
        if revision == 0 {
            revision = now;
        }
        let more = page.more;
        found.extend(page.kvs);
        match found.last() {
            Some(last) if more => {
                key = last.key.clone();
                key.push(0);
            }
            _ => return Ok((revision, found)),
        }
    }
}
