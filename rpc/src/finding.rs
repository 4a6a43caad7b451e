//! Finding streams: not every broker knows each, and all of its owners.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use tokio::time::Instant;

use crate::client::{ANSWER_WITHIN, Client};
use crate::control_call::ControlCall;
use crate::error::RpcError;
use crate::meta::StreamMeta;

/// Brokers that are asked who owns a stream's streamlets, while they do not know it of some.
const MOST_ASKED: usize = 3;

/// What a broker says of a stream: it may not know it.
struct Told {
    by: Arc<str>,
    answer: Result<v1::StreamInfo, RpcError>,
}

fn is_unknown_stream(error: &RpcError) -> bool {
    error.code() == Some(ErrorCode::UnknownStream)
}

/// True if `found` was told by a broker that has heard of every change of owners that `info` tells.
fn knows_as_much(found: &v1::StreamInfo, info: &v1::StreamInfo) -> bool {
    let mut pairs = found.streamlets.iter().zip(&info.streamlets);
    pairs.all(|(found, known)| found.epoch >= known.epoch)
}

impl Client {
    /// The stream called `name`, from the cache if it was asked for before.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is none.
    pub async fn stream(&self, name: &str) -> Result<Arc<StreamMeta>, RpcError> {
        if let Some(meta) = self.inner.streams.lock().get(name) {
            return Ok(meta.clone());
        }
        self.refresh(name).await
    }

    /// What the broker in use knows of a stream, with retries by the client's policy.
    async fn get_stream(&self, name: &str) -> Result<Told, RpcError> {
        let retry = self.inner.options.retry;
        let attempt = || async {
            let by = self.bootstrap();
            match self.get_stream_of(&by, name, ANSWER_WITHIN).await {
                Err(error) if is_unknown_stream(&error) => Ok((by, Err(error))),
                Err(error) => {
                    // One that cannot tell may be cut off: the next is asked.
                    if error.is_retryable() {
                        self.inner.brokers.move_on(&by);
                    }
                    Err(error)
                }
                Ok(info) => Ok((by, Ok(info))),
            }
        };
        let waits_for = || Some(self.waits_for(v1::CallMethod::GetStream));
        let (by, answer) = retry.run_told(waits_for, attempt).await?;
        Ok(Told { by, answer })
    }

    /// As [`call`](Self::call), for calls about the stream called `name` that a broker answers at once: one that does
    /// not is left for the next after 3 s. Where the broker in use does not know the stream, one that does is looked for.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn stream_call<R: ControlCall>(
        &self,
        name: &str,
        request: R,
    ) -> Result<R::Reply, RpcError> {
        self.stream_call_within(name, ANSWER_WITHIN, request).await
    }

    pub(crate) async fn stream_call_within<R: ControlCall>(
        &self,
        name: &str,
        within: Duration,
        request: R,
    ) -> Result<R::Reply, RpcError> {
        let answer = self.call_any(Some(within), &request, |_| ()).await;
        if !answer.as_ref().is_err_and(is_unknown_stream) {
            return answer;
        }
        match self.find_stream(name).await {
            Ok(Told { answer: Ok(_), .. }) => self.call_any(Some(within), &request, |_| ()).await,
            _ => answer,
        }
    }

    async fn get_stream_of(
        &self,
        address: &str,
        name: &str,
        within: Duration,
    ) -> Result<v1::StreamInfo, RpcError> {
        let request = v1::GetStreamRequest {
            name: name.to_owned(),
        };
        self.call_at(address, Some(within), &request).await
    }

    /// What the broker in use knows of a stream, and if it does not know it, what one of the others does, of
    /// which each is asked once: a broker that was just started, or is cut off from the store, may not have
    /// heard of a stream that others serve. Who knows it is in use from now on.
    async fn find_stream(&self, name: &str) -> Result<Told, RpcError> {
        let deadline = Instant::now().checked_add(self.inner.options.retry.deadline);
        let unknown = match self.get_stream(name).await? {
            known if known.answer.is_ok() => return Ok(known),
            unknown => unknown,
        };
        for address in self.inner.brokers.after(&unknown.by) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let within = left.unwrap_or(ANSWER_WITHIN).min(ANSWER_WITHIN);
            if within.is_zero() {
                break;
            }
            if let Ok(info) = self.get_stream_of(&address, name, within).await {
                self.inner.brokers.turn_to(&address);
                let (by, answer) = (address, Ok(info));
                return Ok(Told { by, answer });
            }
        }
        Ok(unknown)
    }

    /// The stream called `name`, asked for anew, as after `STALE_LANES` or `NOT_OWNER`. What is older than
    /// what is known does not count. A broker whose answer brings nothing new is left for the next, since
    /// it may be one that hears of no changes any more. Where a broker does not know the stream, each of the
    /// others is asked once, within the retry policy's deadline.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if no broker that answered knows it.
    pub async fn refresh(&self, name: &str) -> Result<Arc<StreamMeta>, RpcError> {
        let (mut asked, mut answer) = match self.find_stream(name).await {
            Ok(told) => (told.by, told.answer),
            Err(error) => {
                self.forget(name);
                return Err(error);
            }
        };
        // One that does not know an owner may be cut off from the others, which do.
        let mut more = self.inner.brokers.count().min(MOST_ASKED) - 1;
        while more > 0
            && let Ok(info) = &answer
            && info.streamlets.iter().any(|s| s.owner.is_empty())
        {
            more -= 1;
            self.inner.brokers.move_on(&self.bootstrap());
            let Ok(Told {
                by,
                answer: Ok(found),
            }) = self.get_stream(name).await
            else {
                break;
            };
            if knows_as_much(&found, info) {
                (asked, answer) = (by, Ok(found));
            }
        }
        match answer {
            Ok(info) => {
                let meta = Arc::new(StreamMeta::from_info(info, &asked)?);
                let owners = meta.owners().iter().map(String::as_str);
                self.inner.brokers.heard_of(owners);
                let mut streams = self.inner.streams.lock();
                if let Some(known) = streams.get(name) {
                    if meta.is_older_than(known) {
                        self.inner.brokers.move_on(&asked);
                        return Ok(known.clone());
                    }
                    if meta.brings_nothing_new_to(known) {
                        self.inner.brokers.move_on(&asked);
                    }
                }
                streams.insert(name.to_owned(), meta.clone());
                Ok(meta)
            }
            Err(error) => {
                self.forget(name);
                Err(error)
            }
        }
    }

    /// Drops the stream called `name` from the cache.
    pub fn forget(&self, name: &str) {
        self.inner.streams.lock().remove(name);
    }
}
