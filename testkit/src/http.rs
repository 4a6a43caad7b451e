//! What a broker serves over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::PATIENCE;

/// The whole answer to a GET of `path` at `address`, head and body.
pub fn get(address: &str, path: &str) -> String {
    get_as("kera", address, path)
}

/// The same, of a server that is asked for by the name `host`.
pub fn get_as(host: &str, address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("the address is served");
    let timeout = socket.set_read_timeout(Some(PATIENCE));
    timeout.expect("a timeout can be set");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}
