//! What a broker serves over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::PATIENCE;

/// The whole answer to a GET of `path` at `address`, head and body.
pub fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("the address is served");
    let timeout = socket.set_read_timeout(Some(PATIENCE));
    timeout.expect("a timeout can be set");
    let request = format!("GET {path} HTTP/1.1\r\nHost: kera\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}
