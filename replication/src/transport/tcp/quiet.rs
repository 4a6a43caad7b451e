//! Connections over which nothing is said for hours: the system asks whether the other machine is there.
//!
//! A machine that loses its power ends no connection. As long as nothing is under way nobody would notice,
//! and a group that is open and idle would count on a copy that is gone.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Questions without an answer after which the other machine is gone.
const QUESTIONS: u32 = 5;

/// When a connection is given up, by what the other machine's system answers. A process that is stopped is no
/// machine that is gone: its system answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Quiet for so long, the other machine is asked, and given as long again to answer.
    pub(super) quiet: Duration,
    /// What was sent and is not taken for so long ends the connection; as long as both of the above if it
    /// is not said.
    pub(super) silent: Option<Duration>,
}

/// Has the system ask, and end the connection, as `patience` says.
///
/// # Errors
/// The system's.
pub(super) fn ask_when_quiet(socket: impl AsFd, patience: Patience) -> io::Result<()> {
    let quiet = patience.quiet;
    let socket = socket.as_fd();
    // The system counts in whole seconds.
    let second = Duration::from_secs(1);
    let between = Duration::from_secs((quiet / QUESTIONS).max(second).as_secs());
    let quiet = Duration::from_secs(quiet.max(second).as_secs());
    sockopt::set_tcp_keepidle(socket, quiet)?;
    sockopt::set_tcp_keepintvl(socket, between)?;
    sockopt::set_tcp_keepcnt(socket, QUESTIONS)?;
    let silent = patience.silent.unwrap_or(quiet + QUESTIONS * between);
    let silent_ms = u32::try_from(silent.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, silent_ms)?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;

    use kera_rpc::Way;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::data::{DataConnection, Times};
    use super::super::greet;
    use super::super::link::LinkOptions;
    use super::super::receiver::Receiver;
    use super::super::seats::LastWrite;
    use super::super::wire::Word;
    use super::*;
    use crate::backup::{Limits, ReplicaStore, SimMemory};
    use crate::faults::Faults;
    use crate::ids::{BrokerId, ProcessId};
    use crate::transport::hello::{HELLO_BYTES, Hello};

    /// Whether it asks, after how long, how long between questions, and when what was sent is given up.
    fn asks(socket: BorrowedFd<'_>) -> (bool, Duration, Duration, u32) {
        let asks = sockopt::socket_keepalive(socket).expect("an option");
        let first = sockopt::tcp_keepidle(socket).expect("an option");
        let next = sockopt::tcp_keepintvl(socket).expect("an option");
        let silent = sockopt::tcp_user_timeout(socket).expect("an option");
        (asks, first, next, silent)
    }

    const QUIET: Duration = Duration::from_secs(10);
    const BETWEEN: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn a_primary_asks_whether_its_backup_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let backup = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a primary");
            stream
                .read_exact(&mut [0; HELLO_BYTES])
                .await
                .expect("hello");
            stream
                .write_all(&Word::Welcome.encode())
                .await
                .expect("taken");
        });
        let hello = Hello {
            primary: BrokerId(1),
            process: ProcessId(7),
        };
        let patience = LinkOptions::default().patience();
        let greeted = greet(&Way::default(), &address, hello, patience)
            .await
            .expect("an answer");
        let stream = greeted.expect("it is welcome");
        // No longer than a second for what a cut cable does not carry.
        assert_eq!(asks(stream.as_fd()), (true, QUIET, BETWEEN, 1_000));
        backup.await.expect("it was there");
    }

    #[tokio::test]
    async fn a_backup_asks_whether_its_primary_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let _primary = TcpStream::connect(address).await.expect("a backup");
        let (stream, _) = listener.accept().await.expect("a primary");
        let memory = SimMemory::new(1);
        let store = ReplicaStore::start(memory, Limits::default(), Faults::default());
        let receiver = Receiver::new(store.expect("it starts"), BrokerId(1));
        let received = Arc::default();
        let times = Times {
            stalled: QUIET,
            rested: QUIET,
            wrote: LastWrite::never(),
        };
        let begun = DataConnection::begin(stream.into(), receiver, times, received);
        let mut connection = begun.expect("begins");
        connection.leave().await;
        let socket = connection.parting().expect("a socket");
        assert_eq!(asks(socket.as_fd()), (true, QUIET, BETWEEN, 20_000));
    }

    #[test]
    fn the_least_is_a_second() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let patience = Patience {
            quiet: Duration::from_millis(5),
            silent: None,
        };
        ask_when_quiet(&listener, patience).expect("options");
        let second = Duration::from_secs(1);
        assert_eq!(asks(listener.as_fd()), (true, second, second, 6_000));
    }
}
