//! Socket addresses as the C library lays them out.

use std::net::SocketAddr;

/// An address in C's layout, which lives as long as the call that reads it.
pub(super) enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    /// The library takes it as mutable and does not change it.
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(v4) => std::ptr::from_mut(v4).cast(),
            Self::V6(v6) => std::ptr::from_mut(v6).cast(),
        }
    }
}
