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
    answer(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
    )
}

/// The whole answer to a POST of `body`, to a server that is asked for by the name `localhost`. `headers` end with a new line each.
pub fn post(address: &str, path: &str, headers: &str, body: &str) -> String {
    post_as("localhost", address, path, headers, body)
}

/// The same, to a server that is asked for by the name `host`.
pub fn post_as(host: &str, address: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{body}"
    );
    answer(address, &request)
}

fn answer(address: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("the address is served");
    let timeout = socket.set_read_timeout(Some(PATIENCE));
    timeout.expect("a timeout can be set");
    socket.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}
