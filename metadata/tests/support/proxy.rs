//! A way to a server that can be cut in one direction or both.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What becomes of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They arrive.
    Open,
    /// They are taken and dropped.
    Swallowed,
}

struct State {
    requests: Way,
    answers: Way,
    connections: Vec<TcpStream>,
    over: bool,
    /// Once a request has these bytes, it arrives and nothing after it does, in neither direction.
    last: Option<Vec<u8>>,
}

impl State {
    /// What becomes of a request that was `read`, after `before` of the same connection.
    fn request(&mut self, before: &mut Vec<u8>, read: &[u8]) -> Way {
        let way = self.requests;
        if let Some(last) = &self.last {
            before.extend_from_slice(read);
            if before.windows(last.len()).any(|part| part == last) {
                (self.requests, self.answers, self.last) = (Way::Swallowed, Way::Swallowed, None);
            }
            let kept = before.len().min(256);
            before.drain(..before.len() - kept);
        }
        way
    }
}

/// A server's second address.
pub struct Proxy {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// A way to `target`, open.
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let state = Arc::new(Mutex::new(State {
            requests: Way::Open,
            answers: Way::Open,
            connections: Vec::new(),
            over: false,
            last: None,
        }));
        let (shared, target) = (state.clone(), target.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if shared.lock().unwrap().over {
                    return;
                }
                // A server that is not there refuses: so does this.
                let Ok(server) = TcpStream::connect(&target) else {
                    continue;
                };
                let handle = |socket: &TcpStream| socket.try_clone().expect("a second handle");
                // Before it carries anything: what has lost bytes is cut when the way is mended.
                let both = [handle(&client), handle(&server)];
                shared.lock().unwrap().connections.extend(both);
                let mut before = Vec::new();
                carry(&shared, &client, &server, move |state, read| {
                    state.request(&mut before, read)
                });
                carry(&shared, &server, &client, |state, _| state.answers);
            }
        });
        Self {
            address: address.to_string(),
            state,
        }
    }

    /// `host:port` of this way.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sets what becomes of requests and answers from now on.
    pub fn set(&self, requests: Way, answers: Way) {
        let mut state = self.state.lock().unwrap();
        (state.requests, state.answers) = (requests, answers);
    }

    /// The next request with `bytes` in it arrives, and nothing after it in either direction.
    pub fn cut_after(&self, bytes: &str) {
        self.state.lock().unwrap().last = Some(bytes.into());
    }

    /// Ends every connection there is.
    pub fn cut(&self) {
        for connection in self.state.lock().unwrap().connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Opens the way again, for new connections: those there are have lost bytes.
    pub fn mend(&self) {
        self.set(Way::Open, Way::Open);
        self.cut();
    }
}

fn carry(
    state: &Arc<Mutex<State>>,
    from: &TcpStream,
    to: &TcpStream,
    mut way: impl FnMut(&mut State, &[u8]) -> Way + Send + 'static,
) {
    let state = state.clone();
    let mut from = from.try_clone().expect("a second handle");
    let mut to = to.try_clone().expect("a second handle");
    thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let way = way(&mut state.lock().unwrap(), &buffer[..read]);
            if way == Way::Open && to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.lock().unwrap().over = true;
        self.cut();
        // Lets the listening thread see it.
        let _ = TcpStream::connect(&self.address);
    }
}
