//! Answers what is asked: who may ask, what is kept for others who ask the same, and how errors look.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use kera_grpc::serve::Caller;
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use tokio::sync::{Mutex as Turn, Semaphore};
use tokio::time::timeout;

use super::bounds::{MOST_OF_LIST, MOST_OF_MEMBERS, fit};
use super::event_streams::EventStreams;
use super::pace::{FRESH, kept_for};
use super::resource::{ListQuery, Resource, Sort};
use super::snapshot::{Sampler, Snapshot};
use super::views::{GroupLag, GroupRow, Page, StreamRow};
use super::{broker_detail, group_detail, records, stream_detail};
use crate::access::{Who, may_see};
use crate::admin;
use crate::admin::calls::acts::Acts;
use crate::config::{BrokerConfig, Listener};
use crate::http_auth::{self, Asking};
use crate::http_listener::Peer;
use crate::principal::Principal;
use crate::shared::Shared;

/// No answer is longer.
const MOST_BYTES: usize = 1 << 20;
/// Answers that are kept; each for some seconds.
const KEPT: usize = 256;
/// What took others long to answer is asked for anew after this, all the same.
const KEPT_MOST: Duration = Duration::from_secs(5);
/// Consumer groups that are told with a stream.
const CONSUMER_GROUPS: usize = 100;
/// Looks at records under way: each may look through some megabytes.
const LOOKS: usize = 2;
/// How long one more look waits for a place.
const LOOK_WAITS: Duration = Duration::from_secs(1);

/// A body, or why there is none.
pub(super) type Answer = Result<Arc<str>, WireError>;

/// An answer, and for how long it counts as new.
type KeptAnswer = Arc<Turn<Option<Kept>>>;

/// An answer that others get too who ask the same.
struct Kept {
    until: Instant,
    /// The look that it is made of, where it is made of nothing else.
    look: Option<u64>,
    /// To make it costs so little that it need not outlive the look.
    is_cheap: bool,
    answer: Answer,
}

impl Kept {
    /// `look` is the newest one, if the answer is made of looks.
    fn is_new(&self, now: Instant, look: Option<u64>) -> bool {
        match (self.look, look) {
            (Some(of), Some(newest)) if of == newest => true,
            (Some(_), Some(_)) => !self.is_cheap && now < self.until,
            _ => now < self.until,
        }
    }
}

/// What somebody asks, as far as the answer depends on who it is: by the rules of this revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    user: Option<Arc<str>>,
    address: IpAddr,
    rules: u64,
    resource: Resource,
}

/// Answers what is asked over HTTP.
pub(crate) struct Api {
    pub(super) shared: Arc<Shared>,
    sampler: Sampler,
    kept: Mutex<HashMap<Question, KeptAnswer>>,
    pub(super) event_streams: Arc<EventStreams>,
    looks: Semaphore,
    pub(super) acts: Acts,
}

/// The API of the process that is asked about. Clones share it.
#[derive(Clone)]
pub(crate) struct ServedApi {
    /// Who asks must be a user.
    asks: bool,
    /// None while it recovers, and where there is none.
    api: Arc<RwLock<Option<Arc<Api>>>>,
}

impl ServedApi {
    /// None yet.
    pub(crate) fn new(config: &BrokerConfig) -> Self {
        Self {
            asks: config.auth.listeners.contains(&Listener::Http),
            api: Arc::default(),
        }
    }

    /// From now on this answers.
    pub(crate) fn serve(&self, api: Option<Arc<Api>>) {
        *self.api.write() = api;
    }
}

impl Api {
    /// An API over what a broker shares.
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let streams = shared.config.api.max_event_streams as usize;
        let event_streams = EventStreams::new(streams);
        Arc::new(Self {
            sampler: Sampler::new(shared.clone()),
            kept: Mutex::default(),
            event_streams: Arc::new(event_streams),
            looks: Semaphore::new(LOOKS),
            acts: Acts::new(&shared),
            shared,
        })
    }

    /// The answer to a look at something, the same for all who look within the same second.
    pub(super) async fn answer(&self, caller: &Caller, resource: &Resource) -> Answer {
        // Lists need no right, and answers are kept.
        let principal = Principal::of(caller.user.as_ref());
        self.shared.access.check_age(who(&principal, caller))?;
        if let Resource::Records(..) = resource {
            return self.make(caller, resource).await;
        }
        let kept = {
            let mut all = self.kept.lock();
            if all.len() >= KEPT {
                // Those that somebody waits for, or that are still new, stay.
                let now = Instant::now();
                all.retain(|_, kept| {
                    kept.try_lock().map_or(true, |kept| {
                        kept.as_ref().is_some_and(|kept| now < kept.until)
                    })
                });
            }
            let key = Question {
                user: caller.user.clone(),
                address: caller.address,
                rules: self.shared.access.revision(),
                resource: resource.clone(),
            };
            match all.get(&key) {
                Some(kept) => Some(kept.clone()),
                None if all.len() >= KEPT => None,
                None => Some(all.entry(key).or_default().clone()),
            }
        };
        let Some(kept) = kept else {
            return self.make(caller, resource).await;
        };
        let mut kept = kept.lock().await;
        // Others are waited for here: that costs nothing, and the answer is as new as the look.
        let look = match resource.is_of_a_look() {
            true => Some(self.sampler.now().await?.number),
            false => None,
        };
        if let Some(kept) = &*kept
            && kept.is_new(Instant::now(), look)
        {
            return kept.answer.clone();
        }
        let since = Instant::now();
        let answer = self.make(caller, resource).await;
        let (now, kept_for) = (Instant::now(), kept_for(since.elapsed()));
        // Each denial is one: it costs little, and the audit log has a line of it.
        let is_denied = matches!(&answer, Err(error) if error.code == ErrorCode::NotAuthorized);
        *kept = (!is_denied).then(|| Kept {
            until: now + kept_for.min(KEPT_MOST),
            look,
            is_cheap: kept_for <= FRESH,
            answer: answer.clone(),
        });
        answer
    }

    async fn make(&self, caller: &Caller, resource: &Resource) -> Answer {
        let shared = &self.shared;
        match resource {
            Resource::Overview => {
                self.check(caller, &v1::DescribeClusterRequest {})?;
                json(&self.sampler.now().await?.overview)
            }
            Resource::Streams(query) => {
                let snapshot = self.sampler.now().await?;
                let seen = |row: &&StreamRow| {
                    may_see(shared, Some(caller), (Kind::Stream, &row.name))
                        && query.finds(&row.name)
                };
                let rows = snapshot.streams.iter().filter(seen);
                // The order by lag tells nothing of groups that the caller may not see.
                let mut lags = Vec::new();
                let mut rows: Vec<_> = match query.sort {
                    Sort::Lag if shared.access.is_enforced() => {
                        lags.extend(rows.cloned());
                        self.hide_groups(caller, &snapshot, &mut lags);
                        lags.iter().collect()
                    }
                    _ => rows.collect(),
                };
                sort_streams(&mut rows, query.sort);
                let mut page = page(&snapshot, query, rows);
                self.hide_groups(caller, &snapshot, &mut page.items);
                fit(&mut page.items, MOST_OF_LIST);
                json(&page)
            }
            Resource::Stream(name, query) => {
                let thing = (Kind::Stream, name.as_str());
                let principal = Principal::of(caller.user.as_ref());
                let who = who(&principal, caller);
                shared.access.require(who, Operation::Describe, thing)?;
                let sees_settings = shared.access.allows(who, Operation::DescribeConfigs, thing);
                let stream = admin::named(shared, name)?;
                if stream.record.load().internal {
                    let text = format!(
                        "stream \"{name}\" is the broker's own, and not shown here; see `kera stream describe {name}`"
                    );
                    return Err(WireError::new(ErrorCode::UnknownStream, text));
                }
                let snapshot = self.sampler.now().await?;
                let (offset, limit) = (query.offset, query.limit());
                let row = snapshot.streams.iter().find(|row| row.name == *name);
                let row = row.cloned().ok_or_else(|| {
                    let text = format!("stream \"{name}\" has just come; ask again");
                    WireError::new(ErrorCode::UnknownStream, text)
                })?;
                let mut rows = [row];
                self.hide_groups(caller, &snapshot, &mut rows);
                let [row] = rows;
                let reads = |row: &&GroupRow| row.streams.iter().any(|of| of.stream == *name);
                let groups = snapshot.groups.iter().filter(reads);
                let groups = groups.filter_map(|row| self.group_row(caller, row));
                let groups = groups.take(CONSUMER_GROUPS).map(|row| row.cut(Some(name)));
                let mut groups = groups.collect();
                fit(&mut groups, MOST_OF_MEMBERS);
                let about = stream_detail::Asked {
                    offset,
                    limit,
                    sees_settings,
                };
                json(&stream_detail::describe(shared, &stream, row, groups, about).await?)
            }
            Resource::Records(name, query) => {
                let records = self.records(caller, name, query).await?;
                json(&records)
            }
            Resource::Groups(query) => {
                let snapshot = self.sampler.now().await?;
                let seen = |row: &&GroupRow| {
                    may_see(shared, Some(caller), (Kind::Group, &row.group))
                        && query.finds(&row.group)
                };
                let rows = snapshot.groups.iter().filter(seen);
                // The order tells nothing of streams that the caller may not see.
                let mut known = Vec::new();
                let mut rows: Vec<_> = match shared.access.is_enforced() {
                    true => {
                        known.extend(rows.map(|row| row.seen_by(shared, caller)));
                        known.iter().collect()
                    }
                    false => rows.collect(),
                };
                sort_groups(&mut rows, query.sort);
                let mut page = page(&snapshot, query, rows);
                for row in &mut page.items {
                    *row = row.clone().cut(None);
                }
                fit(&mut page.items, MOST_OF_LIST);
                json(&page)
            }
            Resource::Group(name, query) => {
                let request = v1::DescribeGroupRequest {
                    group: name.clone(),
                };
                self.check(caller, &request)?;
                let snapshot = self.sampler.now().await?;
                let page = (query.offset, query.limit());
                json(&group_detail::describe(shared, caller, name, &snapshot, page).await?)
            }
            Resource::Brokers(query) => {
                self.check(caller, &v1::DescribeClusterRequest {})?;
                let snapshot = self.sampler.now().await?;
                let rows = snapshot.brokers.iter().collect();
                let mut page = page(&snapshot, query, rows);
                fit(&mut page.items, MOST_OF_LIST);
                json(&page)
            }
            Resource::Broker(id) => {
                self.check(caller, &v1::DescribeBrokerRequest {})?;
                let snapshot = self.sampler.now().await?;
                json(&broker_detail::describe(shared, *id, &snapshot).await?)
            }
            Resource::Settings => {
                self.check(caller, &v1::DescribeBrokerRequest {})?;
                json(&broker_detail::settings(shared))
            }
        }
    }

    /// Leaves out of the streams' rows what the caller may not see: groups, and what is made of them.
    fn hide_groups(&self, caller: &Caller, snapshot: &Snapshot, rows: &mut [StreamRow]) {
        if !self.shared.access.is_enforced() {
            return;
        }
        let mut seen: HashMap<&str, Vec<GroupLag>> = HashMap::new();
        let may = |row: &&GroupRow| may_see(&self.shared, Some(caller), (Kind::Group, &row.group));
        for row in snapshot.groups.iter().filter(may) {
            for of in &row.streams {
                seen.entry(&of.stream).or_default().push(GroupLag {
                    group: row.group.clone(),
                    lag: of.lag,
                    unknown_lanes: of.unknown_lanes,
                });
            }
        }
        for row in rows {
            row.set_groups(seen.remove(row.name.as_str()).unwrap_or_default());
        }
    }

    /// What the caller may see of a group; `None`: nothing.
    fn group_row(&self, caller: &Caller, row: &GroupRow) -> Option<GroupRow> {
        let thing = (Kind::Group, row.group.as_str());
        if !may_see(&self.shared, Some(caller), thing) {
            return None;
        }
        Some(row.seen_by(&self.shared, caller))
    }

    fn check(&self, caller: &Caller, request: &impl crate::access::Needs) -> Result<(), WireError> {
        let shared = &self.shared;
        shared
            .access
            .check(Listener::Http, Some(caller), request, &shared.data.catalog)
    }

    async fn records(
        &self,
        caller: &Caller,
        name: &str,
        query: &records::Query,
    ) -> Result<records::RecordsView, WireError> {
        if !self.shared.live().api.records {
            let text = "records are not shown here: api.records is false at this broker";
            return Err(WireError::new(ErrorCode::NotAuthorized, text));
        }
        let principal = Principal::of(caller.user.as_ref());
        let who = who(&principal, caller);
        let thing = (Kind::Stream, name);
        self.shared.access.require(who, Operation::Read, thing)?;
        let stream = admin::named(&self.shared, name)?;
        let Ok(Ok(_turn)) = timeout(LOOK_WAITS, self.looks.acquire()).await else {
            let text = format!("{LOOKS} looks at records are under way; try again in a moment");
            return Err(WireError::new(ErrorCode::Overloaded, text));
        };
        records::look(&self.shared, &stream, query).await
    }
}

fn who<'a>(principal: &'a Principal, caller: &Caller) -> Who<'a> {
    Who {
        principal,
        host: caller.address,
        via: Listener::Http.into(),
    }
}

fn sort_streams(rows: &mut [&StreamRow], sort: Sort) {
    let comes = |row: &StreamRow| row.rates.records_in.unwrap_or_default();
    match sort {
        Sort::Name => {}
        Sort::Lag => rows.sort_by_key(|row| std::cmp::Reverse(row.lag)),
        Sort::Rate => rows.sort_by(|a, b| comes(b).total_cmp(&comes(a))),
        Sort::Bytes => rows.sort_by_key(|row| std::cmp::Reverse(row.bytes)),
    }
}

fn sort_groups(rows: &mut [&GroupRow], sort: Sort) {
    let consumed = |row: &GroupRow| row.records_consumed.unwrap_or_default();
    match sort {
        Sort::Name | Sort::Bytes => {}
        Sort::Lag => rows.sort_by_key(|row| std::cmp::Reverse(row.lag)),
        Sort::Rate => rows.sort_by(|a, b| consumed(b).total_cmp(&consumed(a))),
    }
}

fn page<T: Clone>(snapshot: &Snapshot, query: &ListQuery, rows: Vec<&T>) -> Page<T> {
    Page {
        taken_ms: snapshot.overview.taken_ms,
        silent: snapshot.overview.silent.clone(),
        total: rows.len(),
        offset: query.offset,
        items: rows
            .into_iter()
            .skip(query.offset)
            .take(query.limit())
            .cloned()
            .collect(),
    }
}

pub(super) fn json(view: &impl Serialize) -> Answer {
    let text = serde_json::to_string(view);
    let text = text.map_err(|error| WireError::new(ErrorCode::Internal, error.to_string()))?;
    match text.len() > MOST_BYTES {
        true => Err(WireError::new(
            ErrorCode::FrameTooLarge,
            format!(
                "the answer has {} bytes, at most {MOST_BYTES} are sent; ask for fewer with limit",
                text.len()
            ),
        )),
        false => Ok(text.into()),
    }
}

/// Whom the API answers where it asks nobody who they are: programs on this machine, that name this machine. A page of
/// another site whose name leads here names that site; a request that names two machines names none.
fn is_local(peer: Peer, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    };
    let name = host.map(|host| match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || port.starts_with(':') => name,
            _ => "",
        },
        None => host.split(':').next().unwrap_or_default(),
    });
    let named = name.is_some_and(|name| {
        let address: Option<IpAddr> = name.parse().ok();
        name.eq_ignore_ascii_case("localhost") || address.is_some_and(|ip| ip.is_loopback())
    });
    peer.0.ip().to_canonical().is_loopback() && named
}

/// Whether no page of another site asks. Such a page cannot read the answer, but the browser would send its user's password
/// with the request, and the broker would work for it. Browsers say which site a request comes from.
pub(crate) fn is_of_no_other_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_none_or(|site| site == "same-origin" || site == "none")
}

/// Whether somebody follows a link, and sees what comes.
fn is_followed(headers: &HeaderMap) -> bool {
    let has = |name, value| headers.get(name).is_some_and(|found| found == value);
    has("sec-fetch-mode", "navigate") && has("sec-fetch-dest", "document")
}

/// The API, and who asks, for somebody who may ask.
pub(super) async fn api_for(
    served: &ServedApi,
    peer: Peer,
    headers: &HeaderMap,
) -> Result<(Arc<Api>, Caller), Box<Response>> {
    let (api, asking) = api_for_a_while(served, peer, headers).await?;
    Ok((api, asking.caller))
}

/// The same with how long that counts.
pub(super) async fn api_for_a_while(
    served: &ServedApi,
    peer: Peer,
    headers: &HeaderMap,
) -> Result<(Arc<Api>, Asking), Box<Response>> {
    let refused = |code, text: &str| Box::new(refusal(&WireError::new(code, text)));
    let own = is_of_no_other_site(headers);
    let may = match served.asks {
        true => own || is_followed(headers),
        false => own && is_local(peer, headers),
    };
    if !may {
        let text = match served.asks {
            true => "the API answers no page of another site",
            false => {
                "the API answers programs on the broker's machine alone, and only under the name localhost or a loopback address, and no page of another site, since it asks nobody who they are. From elsewhere go through ssh: ssh -L 7680:localhost:7680 MACHINE, then http://localhost:7680; or have it ask for passwords (http in auth.listeners)"
            }
        };
        return Err(refused(ErrorCode::NotAuthorized, text));
    }
    let api = served.api.read().clone();
    let Some(api) = api else {
        let text = "the API is not served: the broker is starting or stopping, is a replica store, or api.enabled is false";
        return Err(refused(ErrorCode::ShuttingDown, text));
    };
    let asking = match served.asks {
        true => http_auth::asking(&api.shared.auth, peer, headers).await?,
        false => Asking {
            caller: Caller::from(peer.0.ip()),
            until: None,
        },
    };
    Ok((api, asking))
}

pub(super) async fn answer(
    State(served): State<ServedApi>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let (api, caller) = match api_for(&served, peer, &headers).await {
        Ok(asked) => asked,
        Err(refused) => return *refused,
    };
    let answer = match Resource::of(&uri) {
        Ok(resource) => api.answer(&caller, &resource).await,
        Err(error) => Err(error),
    };
    answered(answer)
}

/// An answer as it is sent.
pub(super) fn answered(answer: Answer) -> Response {
    match answer {
        Ok(text) => body(StatusCode::OK, text.to_string()),
        Err(error) => refusal(&error),
    }
}

fn body(status: StatusCode, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, text).into_response()
}

#[derive(Serialize)]
struct Refusal<'a> {
    error: &'static str,
    message: &'a str,
}

pub(super) fn refusal_text(error: &WireError) -> String {
    let refusal = Refusal {
        error: error.code.name(),
        message: &error.message,
    };
    serde_json::to_string(&refusal).unwrap_or_default()
}

/// The answer that says why there is none.
pub(crate) fn refusal(error: &WireError) -> Response {
    let status = match error.code {
        ErrorCode::InvalidArgument
        | ErrorCode::OutOfRange
        | ErrorCode::InvalidName
        | ErrorCode::FrameTooLarge => StatusCode::BAD_REQUEST,
        ErrorCode::StreamExists | ErrorCode::GroupConflict | ErrorCode::GroupNotEmpty => {
            StatusCode::CONFLICT
        }
        ErrorCode::NotAuthorized => StatusCode::FORBIDDEN,
        ErrorCode::UnknownStream
        | ErrorCode::UnknownStreamlet
        | ErrorCode::UnknownLane
        | ErrorCode::UnknownConsumerGroup => StatusCode::NOT_FOUND,
        code if code.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    body(status, refusal_text(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_costs_little_is_as_new_as_the_look() {
        let now = Instant::now();
        let kept = |look, is_cheap| Kept {
            until: now + FRESH,
            look,
            is_cheap,
            answer: Ok("".into()),
        };
        let (soon, late) = (now + FRESH / 2, now + 2 * FRESH);
        let of_a_look = kept(Some(7), true);
        assert!(of_a_look.is_new(soon, Some(7)) && of_a_look.is_new(late, Some(7)));
        assert!(!of_a_look.is_new(soon, Some(8)));
        // What costs much is kept for a while, whatever is new.
        let dear = kept(Some(7), false);
        assert!(dear.is_new(soon, Some(8)) && !dear.is_new(late, Some(8)));
        let of_others = kept(None, true);
        assert!(of_others.is_new(soon, None) && !of_others.is_new(late, None));
    }
}
