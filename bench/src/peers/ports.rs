//! Ports that are known before anybody listens on them.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::net::TcpSocket;

/// What keeps the ports: sockets that are bound and do not listen. A session starts some hundreds of
/// brokers at most, and its ports end with it.
static KEPT: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());

/// A port of the loopback interface that the system gives to nobody else as long as this process
/// runs. Who allows the reuse of addresses, as all brokers and etcd do, can listen on it, and again
/// after it was restarted.
pub(crate) fn free_port() -> Result<u16> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let port = socket.local_addr()?.port();
    KEPT.lock().push(socket);
    Ok(port)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_is_kept_for_who_allows_its_reuse() {
        let port = free_port().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // The system gives ports by the same rule.
        let other = TcpSocket::new_v4().unwrap();
        let refused = other.bind(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        for _ in 0..2 {
            TcpListener::bind(address).unwrap();
        }
    }
}
