//! The connection manager: identifiers, their events, and the queue pairs they own.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys as ffi;
use tokio::io::unix::AsyncFd;

use super::address::RawAddress;
use super::{Device, Qp, WriteRequest, done, never_waits, numbered};

/// `RDMA_OPTION_ID` and `RDMA_OPTION_ID_ACK_TIMEOUT` of `rdma/rdma_cma.h`.
const OPTION_ID: c_int = 0;
const OPTION_ACK_TIMEOUT: c_int = 3;

/// Where the manager tells what happens to the identifiers made on it.
#[derive(Debug)]
pub(in crate::transport::rdma) struct EventChannel {
    raw: NonNull<ffi::rdma_event_channel>,
}

// SAFETY: the channel is a descriptor; reading it from any thread is fine.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// Tells identifiers apart; it may name one that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::transport::rdma) struct IdName(usize);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) enum CmEventKind {
    AddressResolved,
    RouteResolved,
    ConnectRequest,
    Established,
    /// The peer said no; its words are in the event's data if it had any.
    Rejected,
    Disconnected,
    /// Resolving or connecting failed, or the card is gone.
    Failed,
    /// Of no interest.
    Other,
}

/// An event, copied and acknowledged.
#[derive(Debug)]
pub(in crate::transport::rdma) struct CmEvent {
    pub(in crate::transport::rdma) kind: CmEventKind,
    pub(in crate::transport::rdma) id: IdName,
    /// An error's number, negative, or the reason of a rejection.
    pub(in crate::transport::rdma) status: i32,
    /// What the peer sent along, and zeros after it.
    pub(in crate::transport::rdma) data: Vec<u8>,
    /// The identifier of a connection that is asked for.
    pub(in crate::transport::rdma) incoming: Option<CmId>,
}

impl EventChannel {
    /// A channel whose reads do not wait.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the library is missing, `ENODEV` if there is no card.
    pub(in crate::transport::rdma) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: takes nothing.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { raw };
        // SAFETY: the descriptor is open as long as the channel.
        never_waits(unsafe { BorrowedFd::borrow_raw(channel.as_raw_fd()) })?;
        Ok(Arc::new(channel))
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn next(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is alive and `raw` valid for writes.
        if unsafe { ffi::rdma_get_cm_event(self.raw.as_ptr(), &mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the library has given an event, which lives until it is acknowledged.
        let event = unsafe { &*raw };
        let kind = kind(event.event);
        let mut data = Vec::new();
        if matches!(
            kind,
            CmEventKind::ConnectRequest | CmEventKind::Established | CmEventKind::Rejected
        ) {
            // SAFETY: events of these kinds on connections carry connection parameters.
            let conn = unsafe { &event.param.conn };
            if !conn.private_data.is_null() {
                let len = usize::from(conn.private_data_len);
                // SAFETY: the library keeps so many bytes until the event is acknowledged.
                let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast(), len) };
                data.extend_from_slice(bytes);
            }
        }
        let incoming = (kind == CmEventKind::ConnectRequest)
            .then(|| NonNull::new(event.id))
            .flatten()
            .map(|raw| CmId {
                raw,
                qp: None,
                _channel: self.clone(),
            });
        let copied = CmEvent {
            kind,
            id: IdName(event.id.addr()),
            status: event.status,
            data,
            incoming,
        };
        // SAFETY: the event came from `rdma_get_cm_event`, and nothing refers to it any more.
        done(unsafe { ffi::rdma_ack_cm_event(raw) })?;
        Ok(Some(copied))
    }
}

impl EventChannel {
    /// The channel as something to wait for, within a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn watched(self: &Arc<Self>) -> io::Result<AsyncFd<Arc<Self>>> {
        // SAFETY: the descriptor is the channel's own, which is kept, and it is neither closed nor
        // replaced before the channel is gone.
        let watched = unsafe { AsyncFd::register(self.clone()) }?;
        Ok(watched)
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers keep their channel alive, so none is left.
        unsafe { ffi::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

fn kind(event: ffi::rdma_cm_event_type::Type) -> CmEventKind {
    use ffi::rdma_cm_event_type as types;
    match event {
        types::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
        types::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        types::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
        types::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        types::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
        types::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        types::RDMA_CM_EVENT_ADDR_ERROR
        | types::RDMA_CM_EVENT_ROUTE_ERROR
        | types::RDMA_CM_EVENT_CONNECT_ERROR
        | types::RDMA_CM_EVENT_UNREACHABLE
        | types::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::Failed,
        _ => CmEventKind::Other,
    }
}

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport::rdma) struct Terms<'a> {
    /// Attempts after the first at each packet; 7 would mean without end on some cards.
    pub(in crate::transport::rdma) retries: u8,
    /// What the peer is told: at most 56 bytes to it, 196 back.
    pub(in crate::transport::rdma) words: &'a [u8],
}

impl Terms<'_> {
    fn raw(&self) -> io::Result<ffi::rdma_conn_param> {
        // SAFETY: a structure of numbers and a pointer, for which zeros are a value.
        let mut raw: ffi::rdma_conn_param = unsafe { std::mem::zeroed() };
        raw.private_data = self.words.as_ptr().cast();
        raw.private_data_len =
            u8::try_from(self.words.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        raw.retry_count = self.retries;
        raw.rnr_retry_count = self.retries;
        raw.flow_control = 1;
        Ok(raw)
    }
}

/// An identifier: a listener, or one end of a connection with its queue pair.
#[derive(Debug)]
pub(in crate::transport::rdma) struct CmId {
    raw: NonNull<ffi::rdma_cm_id>,
    /// Destroyed after the pair that was made of it: `drop` comes before the fields'.
    qp: Option<Qp>,
    _channel: Arc<EventChannel>,
}

// SAFETY: calls on an identifier may come from any thread, one after the other.
unsafe impl Send for CmId {}

impl CmId {
    /// An identifier for reliable connections.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn new(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = std::ptr::null_mut();
        let space = ffi::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is alive and kept; `raw` is valid for writes.
        done(unsafe {
            ffi::rdma_create_id(channel.raw.as_ptr(), &mut raw, std::ptr::null_mut(), space)
        })?;
        let raw = NonNull::new(raw).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            raw,
            qp: None,
            _channel: channel.clone(),
        })
    }

    /// How events name it.
    pub(in crate::transport::rdma) fn name(&self) -> IdName {
        IdName(self.raw.as_ptr().addr())
    }

    /// The card it belongs to, once that is known.
    pub(in crate::transport::rdma) fn device(&self) -> Option<Device> {
        // SAFETY: the identifier is alive.
        let context = unsafe { (*self.raw.as_ptr()).verbs };
        NonNull::new(context).map(|context| Device { context })
    }

    /// Gives it a local address.
    ///
    /// # Errors
    /// `ENODEV` if no card has the address; the system's.
    pub(in crate::transport::rdma) fn bind(&mut self, address: SocketAddr) -> io::Result<()> {
        let mut address = RawAddress::new(address);
        // SAFETY: the identifier is alive, the address is read during the call.
        done(unsafe { ffi::rdma_bind_addr(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    /// Waits for connections from now on; each comes as an event.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn listen(&mut self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        done(unsafe { ffi::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    /// Looks for the card that reaches `to`; an event tells.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn resolve_address(
        &mut self,
        to: SocketAddr,
        within: Duration,
    ) -> io::Result<()> {
        let mut to = RawAddress::new(to);
        // SAFETY: the identifier is alive, the address is read during the call; without a source
        // address the system chooses one.
        done(unsafe {
            ffi::rdma_resolve_addr(
                self.raw.as_ptr(),
                std::ptr::null_mut(),
                to.as_mut_ptr(),
                millis(within),
            )
        })
    }

    /// Looks for the way there; an event tells.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn resolve_route(&mut self, within: Duration) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        done(unsafe { ffi::rdma_resolve_route(self.raw.as_ptr(), millis(within)) })
    }

    /// How long a packet waits for its acknowledgement: 4.096 microseconds times two to the power of
    /// `exponent`. Before connecting.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::transport::rdma) fn set_ack_timeout(&mut self, exponent: u8) -> io::Result<()> {
        let mut exponent = exponent;
        // SAFETY: the identifier is alive; one byte is read during the call.
        done(unsafe {
            ffi::rdma_set_option(
                self.raw.as_ptr(),
                OPTION_ID,
                OPTION_ACK_TIMEOUT,
                std::ptr::from_mut(&mut exponent).cast::<c_void>(),
                1,
            )
        })
    }

    /// Makes its queue pair of `parts`, which are of the identifier's card.
    ///
    /// # Errors
    /// `InvalidInput` if it has one; the card's.
    pub(in crate::transport::rdma) fn create_qp(&mut self, parts: Qp) -> io::Result<()> {
        if self.qp.is_some() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a structure of numbers and pointers, for which zeros are a value.
        let mut wish: ffi::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wish.send_cq = parts.queue.raw.as_ptr();
        wish.recv_cq = parts.queue.raw.as_ptr();
        wish.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
        wish.sq_sig_all = 0;
        wish.cap.max_send_wr = parts.requests;
        wish.cap.max_recv_wr = 1;
        wish.cap.max_send_sge = 1;
        wish.cap.max_recv_sge = 1;
        // SAFETY: identifier, domain and queue are alive, and the latter two are kept in `qp` until
        // the pair is destroyed.
        done(unsafe {
            ffi::rdma_create_qp(self.raw.as_ptr(), parts.domain.raw.as_ptr(), &mut wish)
        })?;
        self.qp = Some(parts);
        Ok(())
    }

    /// The parts of its queue pair.
    pub(in crate::transport::rdma) fn qp(&mut self) -> Option<&mut Qp> {
        self.qp.as_mut()
    }

    /// Posts writes as one list; all of them, or it is broken.
    ///
    /// # Errors
    /// `InvalidInput` for bytes outside of the send memory; the card's.
    pub(in crate::transport::rdma) fn post(&mut self, requests: &[WriteRequest]) -> io::Result<()> {
        let Some(parts) = &mut self.qp else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // SAFETY: the identifier is alive, and so is its pair, which was made of these parts.
        unsafe {
            let raw = (*self.raw.as_ptr()).qp;
            parts.post(raw, requests)
        }
    }

    /// Asks for the connection; an event tells.
    ///
    /// # Errors
    /// `InvalidInput` for too many words; the system's.
    pub(in crate::transport::rdma) fn connect(&mut self, terms: Terms<'_>) -> io::Result<()> {
        let mut raw = terms.raw()?;
        // SAFETY: the identifier is alive; the words are read during the call.
        done(unsafe { ffi::rdma_connect(self.raw.as_ptr(), &mut raw) })
    }

    /// Accepts a connection that was asked for.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(in crate::transport::rdma) fn accept(&mut self, terms: Terms<'_>) -> io::Result<()> {
        let mut raw = terms.raw()?;
        // SAFETY: the identifier is alive; the words are read during the call.
        done(unsafe { ffi::rdma_accept(self.raw.as_ptr(), &mut raw) })
    }

    /// Refuses a connection that was asked for.
    ///
    /// # Errors
    /// `InvalidInput` for more than 148 bytes; the system's.
    pub(in crate::transport::rdma) fn reject(&mut self, words: &[u8]) -> io::Result<()> {
        let len = u8::try_from(words.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the identifier is alive; the words are read during the call.
        done(unsafe { ffi::rdma_reject(self.raw.as_ptr(), words.as_ptr().cast(), len) })
    }

    /// Moves the queue pair to its error state: whatever is under way completes as flushed.
    ///
    /// # Errors
    /// The card's.
    pub(in crate::transport::rdma) fn fail_qp(&mut self) -> io::Result<()> {
        if self.qp.is_none() {
            return Ok(());
        }
        // SAFETY: a structure of numbers, for which zeros are a value.
        let mut wish: ffi::ibv_qp_attr = unsafe { std::mem::zeroed() };
        wish.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        // SAFETY: the identifier is alive, and so is its pair.
        numbered(unsafe {
            let pair = (*self.raw.as_ptr()).qp;
            ffi::ibv_modify_qp(pair, &mut wish, mask)
        })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        if self.qp.is_some() {
            // SAFETY: the identifier is alive. The peer is told, if there is one; then the pair is
            // destroyed, after which the card uses none of its parts, and they may go.
            unsafe {
                let _ = ffi::rdma_disconnect(raw);
                ffi::rdma_destroy_qp(raw);
            }
        }
        // SAFETY: the identifier is alive and not used after this. All its events were acknowledged
        // as they were read, so this does not wait.
        let _ = unsafe { ffi::rdma_destroy_id(raw) };
    }
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}
