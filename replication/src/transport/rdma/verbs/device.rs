//! Network cards.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

use rdma_sys as ffi;

/// A card that the connection manager has opened. The manager never closes it while the process
/// runs, so this is a name, not an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) struct Device {
    pub(super) context: NonNull<ffi::ibv_context>,
}

// SAFETY: a context may be used from any thread, all calls on it lock what they must.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// All cards there are.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the library is missing, `ENODEV` if there is no card.
    pub(in crate::transport::rdma) fn all() -> io::Result<Vec<Self>> {
        let mut count = 0;
        // SAFETY: `count` is valid for writes.
        let list = unsafe { ffi::rdma_get_devices(&mut count) };
        let Some(list) = NonNull::new(list) else {
            return Err(io::Error::last_os_error());
        };
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has `count` entries and lives until it is freed below.
        let entries = unsafe { std::slice::from_raw_parts(list.as_ptr(), count) };
        let devices = entries.iter().filter_map(|context| {
            let context = NonNull::new(*context)?;
            Some(Self { context })
        });
        let devices = devices.collect();
        // SAFETY: the list came from `rdma_get_devices` and is not used any more; the contexts in
        // it stay open.
        unsafe { ffi::rdma_free_devices(list.as_ptr()) };
        Ok(devices)
    }

    /// As the system calls it, `mlx5_0` for example.
    pub(in crate::transport::rdma) fn name(self) -> String {
        // SAFETY: the context is open, and its device lives as long.
        let name = unsafe { ffi::ibv_get_device_name((*self.context.as_ptr()).device) };
        if name.is_null() {
            return "unknown".into();
        }
        // SAFETY: the library returns text that ends with a zero and lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Most requests that a queue pair of the card takes; some number that all take if it does not say.
    pub(in crate::transport::rdma) fn max_requests(self) -> u32 {
        // SAFETY: a structure of numbers, for which zeros are a value.
        let mut facts: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and `facts` valid for writes.
        let asked = unsafe { ffi::ibv_query_device(self.context.as_ptr(), &mut facts) };
        match (asked, u32::try_from(facts.max_qp_wr)) {
            (0, Ok(most)) if most > 0 => most,
            _ => 64,
        }
    }
}
