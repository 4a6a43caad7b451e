//! News as they come: answers that are sent again when they have changed, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use kera_grpc::serve::Caller;
use kera_metadata::User;
use kera_protocol::error::{ErrorCode, WireError};
use percent_encoding::percent_decode_str;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::answer::{Api, ServedApi, api_for_a_while, refusal, refusal_text};
use super::event_streams::Place;
use super::resource::Resource;
use crate::http_listener::Peer;

/// Who watches is told something this often, if only that nothing has changed.
const EVERY: Duration = Duration::from_secs(1);
/// Paths that one client may watch at a time.
const PATHS: usize = 4;

/// What somebody watches.
struct Watch {
    api: Arc<Api>,
    caller: Caller,
    proved_by: ProvedBy,
    watched: Vec<Watched>,
    place: Place,
}

/// What ends the stream when it counts no more.
enum ProvedBy {
    /// What is kept of the caller's password since it has proved to know it; `None` where nobody asks.
    Password(Option<User>),
    /// A token, which ends then.
    Token(Instant),
}

impl ProvedBy {
    /// Waits until it ends by itself.
    async fn end(&self) {
        match self {
            Self::Password(_) => std::future::pending().await,
            Self::Token(ends) => sleep_until((*ends).into()).await,
        }
    }
}

struct Watched {
    resource: Resource,
    /// What was sent last.
    sent: Option<Arc<str>>,
    /// The rules, by revision, by which the caller may not have the answer: until they change nobody asks again. Each refusal
    /// is a line in the audit log.
    denied_by: Option<u64>,
}

pub(super) async fn live(
    State(served): State<ServedApi>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let (api, asking) = match api_for_a_while(&served, peer, &headers).await {
        Ok(asked) => asked,
        Err(refused) => return *refused,
    };
    let watched = match watched(&uri) {
        Ok(watched) => watched,
        Err(error) => return refusal(&error),
    };
    let caller = asking.caller;
    let place = match api.event_streams.take(caller.user.clone()) {
        Ok(place) => place,
        Err(error) => return refusal(&error),
    };
    let stopping = api.shared.stopping.subscribe();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watch = Watch {
        proved_by: match asking.until {
            Some(ends) => ProvedBy::Token(ends),
            None => ProvedBy::Password(kept_of(&api, &caller)),
        },
        api,
        caller,
        watched,
        place,
    };
    let begin = (watch, ticks, true);
    let rounds = stream::unfold(begin, move |(mut watch, mut ticks, is_first)| {
        let mut stopping = stopping.clone();
        async move {
            tokio::select! {
                _ = ticks.tick() => {}
                // The end of the stream tells the page that the broker goes.
                _ = stopping.wait_for(|stopping| *stopping) => return None,
                // With another token it may ask again.
                () = watch.proved_by.end() => return None,
            }
            if let ProvedBy::Password(proved_by) = &watch.proved_by {
                // A user whose password was changed logs in again; one that was deleted gets no more news.
                let kept = kept_of(&watch.api, &watch.caller);
                let is_gone = watch.caller.user.is_some() && kept.is_none();
                if is_gone || kept != *proved_by {
                    return None;
                }
            }
            let news = watch.round().await;
            if is_first {
                // After a start all pages come at once. Their rounds do not, or appends would wait for all of them together.
                ticks.reset_after(watch.place.turn(EVERY));
            }
            Some((news, (watch, ticks, false)))
        }
    });
    let events = futures::StreamExt::flat_map(rounds, |news| {
        stream::iter(news.into_iter().map(Ok::<_, Infallible>))
    });
    let sent = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (sent, Sse::new(events)).into_response()
}

fn kept_of(api: &Api, caller: &Caller) -> Option<User> {
    api.shared.auth.kept_of(caller.user.as_ref()?)
}

/// The paths that a query names, each as `path=` and the path, percent-encoded.
fn watched(uri: &Uri) -> Result<Vec<Watched>, WireError> {
    let invalid = |text: &str| WireError::new(ErrorCode::InvalidArgument, text);
    let say = "say what to watch: /api/v1/live?path=/api/v1/overview, with the path's own query percent-encoded, and up to four paths";
    let query = uri.query().unwrap_or_default();
    let mut watched = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let path = part.strip_prefix("path=").ok_or_else(|| invalid(say))?;
        let path = percent_decode_str(path)
            .decode_utf8()
            .map_err(|_| invalid(say))?;
        let path: Uri = path.parse().map_err(|_| invalid(say))?;
        let resource = match Resource::of(&path)? {
            Resource::Records(..) => {
                let text = "records cannot be watched; ask for them again, from where next says";
                return Err(invalid(text));
            }
            resource => resource,
        };
        watched.push(Watched {
            resource,
            sent: None,
            denied_by: None,
        });
    }
    match (1..=PATHS).contains(&watched.len()) {
        true => Ok(watched),
        false => Err(invalid(say)),
    }
}

impl Watch {
    /// What has changed of each path; if nothing has, an event that says so.
    async fn round(&mut self) -> Vec<Event> {
        let mut news = Vec::new();
        let rules = self.api.shared.access.revision();
        for (index, watched) in self.watched.iter_mut().enumerate() {
            if watched.denied_by == Some(rules) {
                continue;
            }
            watched.denied_by = None;
            match self.api.answer(&self.caller, &watched.resource).await {
                Ok(text) if watched.sent.as_ref() == Some(&text) => {}
                Ok(text) => {
                    let event = Event::default().event(format!("answer{index}"));
                    news.push(event.data(&*text));
                    watched.sent = Some(text);
                }
                Err(error) => {
                    let event = Event::default().event(format!("refusal{index}"));
                    news.push(event.data(refusal_text(&error)));
                    watched.sent = None;
                    let is_denied = error.code == ErrorCode::NotAuthorized;
                    watched.denied_by = is_denied.then_some(rules);
                }
            }
        }
        if news.is_empty() {
            news.push(Event::default().event("same").data("{}"));
        }
        news
    }
}
