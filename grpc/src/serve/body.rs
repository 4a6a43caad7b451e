//! The bytes of requests and of replies.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kera_protocol::error::{ErrorCode, WireError};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use super::quiet::Call;
use crate::status::status_of;

/// A request's bytes, counted as they arrive, and not for ever.
pub(super) struct RequestBody {
    inner: hyper::body::Incoming,
    call: Arc<Call>,
    within: Duration,
    late: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(super) fn new(inner: hyper::body::Incoming, call: Arc<Call>, within: Duration) -> Self {
        Self {
            inner,
            call,
            within,
            late: None,
        }
    }

    fn count(&self, bytes: usize) -> Result<(), Status> {
        self.call.take(bytes).map_err(over)
    }
}

/// Requests take `limit` bytes already.
pub(super) fn over(limit: usize) -> Status {
    let text = format!(
        "the control requests that the broker works on take {limit} bytes, their limit; try again"
    );
    status_of(&WireError::new(ErrorCode::Overloaded, text))
}

/// There are `limit` calls already.
pub(super) fn too_many(limit: usize) -> Status {
    let text = format!(
        "the broker has {limit} control calls that are not answered yet, its limit; end some of this connection's, or try again"
    );
    status_of(&WireError::new(ErrorCode::Overloaded, text))
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.call.has_arrived();
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                Poll::Ready(Some(this.count(bytes).map(|()| frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(Status::from_error(Box::new(error)))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let within = this.within;
                let late = this.late.get_or_insert_with(|| Box::pin(sleep(within)));
                late.as_mut().poll(context).map(|()| {
                    let text = format!("the request did not arrive within {within:?}; try again");
                    Some(Err(status_of(&WireError::new(ErrorCode::Timeout, text))))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A reply's bytes; its call is over once they are sent.
pub(super) struct ReplyBody {
    inner: Body,
    call: Arc<Call>,
}

impl ReplyBody {
    pub(super) fn new(inner: Body, call: Arc<Call>) -> Self {
        Self { inner, call }
    }
}

impl HttpBody for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.inner).poll_frame(context);
        if frame.is_ready() {
            this.call.progresses();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
