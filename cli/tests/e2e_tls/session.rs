//! TLS sessions of a client by hand.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use kera_protocol::frame::{self, HELLO_REPLY_BYTES, Hello, HelloReply};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::certificates::{Authority, Identity};
use crate::common::PATIENCE;

/// How a client speaks TLS.
pub struct Client<'a> {
    pub trusts: &'a Authority,
    pub identity: Option<&'a Identity>,
    pub protocol: Option<&'a [u8]>,
    pub version: &'static SupportedProtocolVersion,
    pub name: &'static str,
}

impl<'a> Client<'a> {
    pub fn trusting(trusts: &'a Authority) -> Self {
        Self {
            trusts,
            identity: None,
            protocol: None,
            version: &rustls::version::TLS13,
            name: "localhost",
        }
    }

    /// A session after its handshake, as far as the client can tell.
    pub fn open(&self, address: &str) -> io::Result<Session> {
        self.open_with(self.config(), address)
    }

    /// How it speaks TLS. Sessions opened with the same one resume each other.
    pub fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.trusts.pem.as_bytes());
        roots.add(authority.expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[self.version])
            .expect("a version that ring has")
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes());
                let chain: Result<Vec<_>, _> = chain.collect();
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
                let config = config.with_client_auth_cert(chain.expect("PEM"), key);
                config.expect("a certificate and its key")
            }
        };
        config.alpn_protocols = self.protocol.iter().map(|one| one.to_vec()).collect();
        Arc::new(config)
    }

    /// As [`open`](Self::open), with what [`config`](Self::config) returned.
    pub fn open_with(&self, config: Arc<ClientConfig>, address: &str) -> io::Result<Session> {
        let name = ServerName::try_from(self.name).expect("a name");
        let session = ClientConnection::new(config, name).expect("a session");
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(session, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Session(stream))
    }

    /// What goes wrong by the time the broker has answered a hello.
    pub fn fails(&self, address: &str) -> String {
        let outcome = self.open(address).and_then(|mut session| session.hello());
        outcome.expect_err("it is refused").to_string()
    }
}

pub struct Session(pub StreamOwned<ClientConnection, TcpStream>);

impl Session {
    /// The native protocol's hello.
    pub fn hello(&mut self) -> io::Result<HelloReply> {
        self.0.write_all(&Hello::CURRENT.encode())?;
        let mut reply = [0; HELLO_REPLY_BYTES];
        self.0.read_exact(&mut reply)?;
        Ok(HelloReply::decode(&reply).expect("a hello"))
    }

    /// True if a ping is answered.
    pub fn answers(&mut self) -> bool {
        let mut ping = bytes::BytesMut::new();
        frame::encode_empty(&mut ping, frame::FrameKind::Ping, 7);
        let mut pong = bytes::BytesMut::new();
        frame::encode_empty(&mut pong, frame::FrameKind::Pong, 7);
        let mut answer = vec![0; pong.len()];
        let asked = self.0.write_all(&ping);
        asked.and_then(|()| self.0.read_exact(&mut answer)).is_ok() && answer == pong
    }

    /// What the broker proves to be.
    pub fn certificate(&self) -> Vec<u8> {
        let chain = self.0.conn.peer_certificates();
        chain
            .and_then(<[_]>::first)
            .expect("a certificate")
            .to_vec()
    }

    /// Names a mechanism as Kafka's clients do, and returns the error code and the mechanisms that are taken.
    pub fn sasl_handshake(&mut self, mechanism: &str) -> io::Result<(i16, Vec<String>)> {
        let length = u8::try_from(mechanism.len()).expect("a short name");
        // API 17, version 1, correlation 7, no client id.
        let mut request = vec![0, 0, 0, 12 + length, 0, 17, 0, 1, 0, 0, 0, 7, 0xff, 0xff];
        request.extend([0, length]);
        request.extend(mechanism.as_bytes());
        self.0.write_all(&request)?;
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut reply = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut reply)?;
        let mut names = &reply[10..];
        let mut taken = Vec::new();
        while let Some((length, rest)) = names.split_at_checked(2) {
            let (name, rest) = rest.split_at(length[1].into());
            taken.push(String::from_utf8(name.to_vec()).expect("a name"));
            names = rest;
        }
        Ok((i16::from_be_bytes([reply[4], reply[5]]), taken))
    }

    /// Asks for the versions of Kafka's APIs, and returns the error code.
    pub fn kafka_versions(&mut self) -> io::Result<i16> {
        // Length, API 18, version 0, correlation 7, no client id.
        let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
        self.0.write_all(&request)?;
        let mut reply = [0; 10];
        self.0.read_exact(&mut reply)?;
        Ok(i16::from_be_bytes([reply[8], reply[9]]))
    }
}
