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

    /// HOST:PORT.
    pub fn address(&self) -> &str {
        &self.address
    }
}
