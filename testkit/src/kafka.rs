//! Requests to a Kafka listener, byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::PATIENCE;

/// What the listener at HOST:PORT answers to a request, both without their lengths, on a connection of its own.
///
/// # Panics
/// If there is no answer.
pub fn exchange(address: &str, request: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).expect("the broker listens");
    let timeout = socket.set_read_timeout(Some(PATIENCE));
    timeout.expect("a socket has a timeout");
    let length = u32::try_from(request.len()).expect("it is short");
    let sent = [&length.to_be_bytes()[..], request].concat();
    socket.write_all(&sent).expect("it is sent");
    let mut length = [0; 4];
    socket.read_exact(&mut length).expect("a reply");
    let mut reply = vec![0; u32::from_be_bytes(length) as usize];
    socket.read_exact(&mut reply).expect("a whole reply");
    reply
}
