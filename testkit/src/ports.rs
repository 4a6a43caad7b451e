//! Ports that are known before anybody listens on them.

use tokio::net::TcpSocket;

/// A port that the system gives to nobody else as long as this is kept. Who allows the
/// reuse of addresses, as brokers do, can listen on it.
pub struct Reserved {
    /// Bound, and not listening.
    _socket: TcpSocket,
    address: String,
}

impl Reserved {
    /// A port that was free.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self::at("127.0.0.1")
    }

    /// The same, of another address of this machine.
    pub fn at(ip: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option can be set");
        let any = format!("{ip}:0").parse().expect("an address");
        socket.bind(any).expect("a port is free");
        let address = socket.local_addr().expect("an address").to_string();
        Self {
            _socket: socket,
            address,
        }
    }

    /// HOST:PORT of one that is kept as long as this process runs.
    pub fn for_ever() -> String {
        let kept = Self::new();
        let address = kept.address.clone();
        std::mem::forget(kept);
        address
    }

    /// HOST:PORT.
    pub fn address(&self) -> &str {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_is_kept_for_who_allows_its_reuse() {
        let address = Reserved::for_ever();
        // The system gives ports by the same rule.
        let other = TcpSocket::new_v4().unwrap();
        let refused = other.bind(address.parse().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        for _ in 0..2 {
            TcpListener::bind(&address).unwrap();
        }
    }
}
