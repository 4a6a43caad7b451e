//! The first answer of a broker that has just been started.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::child::pause;

/// How long a broker may take to start.
const START: Duration = Duration::from_secs(90);
/// Far below what any start takes.
const TRY_EVERY: Duration = Duration::from_millis(1);

/// ApiVersions, version 0, correlation id 1, as Kafka's protocol writes it: a length, then key,
/// version, correlation id and the client's name.
const REQUEST: &[u8] = b"\0\0\0\x14\0\x12\0\0\0\0\0\x01\0\x0akera-bench";

/// Waits until the broker at `address` answers a request that every Kafka client begins with. A
/// client library would wait between its attempts, longer each time, and so hide what is measured.
pub(super) fn first(address: &str) -> Result<()> {
    let address: SocketAddr = address.parse().context("a broker listens at an address")?;
    let begin = Instant::now();
    loop {
        let error = match ask(address) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        ensure!(
            begin.elapsed() < START,
            "nobody answers at {address} after {START:?} ({error})"
        );
        pause(TRY_EVERY);
    }
}

fn ask(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, START)?;
    // One that listens and does not serve yet answers late.
    stream.set_read_timeout(Some(START))?;
    stream.set_nodelay(true)?;
    stream.write_all(REQUEST)?;
    // Its length and the correlation id.
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    if answer[4..] == [0, 0, 0, 1] {
        Ok(())
    } else {
        Err(std::io::Error::other("the answer is to another request"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_request_is_as_long_as_it_says() {
        let length = u32::from_be_bytes(REQUEST[..4].try_into().unwrap());
        assert_eq!(length as usize, REQUEST.len() - 4);
        assert_eq!(REQUEST[13] as usize, REQUEST.len() - 14);
    }

    #[test]
    fn it_asks_again_until_it_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            // The first connection ends without a word.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; REQUEST.len()];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(request, REQUEST);
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 1]).unwrap();
        });
        first(&address).unwrap();
        server.join().unwrap();
    }
}
