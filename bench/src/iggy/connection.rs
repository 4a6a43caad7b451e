//! A connection to a server.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::wire::{self, Batch, Code, HEAD, Polled};
use super::{PASSWORD, USER};

/// A server that says nothing for so long has failed.
const SILENCE: Duration = Duration::from_secs(30);
/// The longest answer that is taken.
const LONGEST: usize = 256 << 20;
/// Partitions that a request can make.
const AT_ONCE: u32 = 1_000;
/// The status of a request for a stream that is there.
const STREAM_EXISTS: u32 = 1012;

/// A user that is logged in.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects to the server at `address`, HOST:PORT, and logs in.
    pub(crate) fn open(address: &str) -> Result<Self> {
        let address: SocketAddr = address.parse().context("a server listens at an address")?;
        let stream = TcpStream::connect_timeout(&address, SILENCE)
            .with_context(|| format!("no Iggy server at {address}"))?;
        // Without it a request of several packets waits for what acknowledges the first of them.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut connection = Self {
            stream,
            request: Vec::new(),
            answer: Vec::new(),
        };
        connection
            .ask(Code::Login, |out| wire::login(out, USER, PASSWORD))
            .context("cannot log in")?;
        Ok(connection)
    }

    /// Makes a topic with so many partitions, counted from 0, and the stream that it is in.
    pub(crate) fn create(&mut self, topic: &str, partitions: u32) -> Result<()> {
        let status = self.ask_status(Code::CreateStream, wire::create_stream)?;
        if status != STREAM_EXISTS {
            went_well(status).context("the server refuses the stream")?;
        }
        let first = partitions.min(AT_ONCE);
        self.ask(Code::CreateTopic, |out| {
            wire::create_topic(out, topic, first);
        })?;
        let mut made = first;
        while made < partitions {
            let more = (partitions - made).min(AT_ONCE);
            self.ask(Code::CreatePartitions, |out| {
                wire::topic(out, topic);
                out.extend_from_slice(&more.to_le_bytes());
            })?;
            made += more;
        }
        Ok(())
    }

    /// Deletes a topic.
    pub(crate) fn delete(&mut self, topic: &str) -> Result<()> {
        self.ask(Code::DeleteTopic, |out| wire::topic(out, topic))
            .map(|_| ())
    }

    /// Sends a batch to a partition. [`Connection::acknowledged`] waits for what the server says of it,
    /// and comes before anything else is asked.
    pub(crate) fn send(&mut self, topic: &str, partition: u32, batch: &Batch) -> Result<()> {
        let parts = batch.send(&mut self.request, topic, partition);
        let mut parts = parts.map(IoSlice::new);
        write_all(&mut self.stream, &mut parts).context("cannot send")
    }

    /// Waits until the batch that was sent is acknowledged.
    pub(crate) fn acknowledged(&mut self) -> Result<()> {
        let status = self.hear()?;
        went_well(status).context("a batch was not acknowledged")
    }

    /// Asks for `count` messages of a partition, from an offset on; those that are there come at once.
    pub(crate) fn poll(
        &mut self,
        topic: &str,
        partition: u32,
        from: u64,
        count: u32,
    ) -> Result<Polled<'_>> {
        let answer = self.ask(Code::Poll, |out| {
            wire::poll(out, topic, partition, from, count);
        })?;
        Polled::parse(answer, partition)
    }

    /// Sends a request and waits for its answer; an error if the server refuses it.
    fn ask(&mut self, code: Code, about: impl FnOnce(&mut Vec<u8>)) -> Result<&[u8]> {
        let status = self.ask_status(code, about)?;
        went_well(status).with_context(|| format!("the server refuses {code:?}"))?;
        Ok(&self.answer)
    }

    /// The same; the status of the answer.
    fn ask_status(&mut self, code: Code, about: impl FnOnce(&mut Vec<u8>)) -> Result<u32> {
        wire::request(&mut self.request, code, about);
        self.stream
            .write_all(&self.request)
            .context("cannot send")?;
        self.hear()
    }

    /// Reads an answer; its status.
    fn hear(&mut self) -> Result<u32> {
        let mut head = [0; HEAD];
        self.stream
            .read_exact(&mut head)
            .context("the server does not answer")?;
        let (status, length) = wire::answer_head(head);
        ensure!(
            length <= LONGEST,
            "the server announces an answer of {length} bytes"
        );
        self.answer.resize(length, 0);
        self.stream
            .read_exact(&mut self.answer)
            .context("the server's answer is cut off")?;
        Ok(status)
    }
}

fn went_well(status: u32) -> Result<()> {
    if status != 0 {
        bail!("Iggy's error {status}, see `iggy_error.rs` in its sources");
    }
    Ok(())
}

/// Writes all parts, several at a time.
fn write_all(to: &mut impl Write, mut parts: &mut [IoSlice<'_>]) -> std::io::Result<()> {
    // Past those that are empty.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match to.write_vectored(parts) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::scripted::Scripted;
    use super::*;

    #[test]
    fn a_topic_is_made_in_several_steps_and_deleted() {
        let server = Scripted::start(usize::MAX);
        let mut connection = Connection::open(server.address()).unwrap();
        connection.create("wide", 2_500).unwrap();
        // The stream is there by now.
        connection.create("narrow", 1).unwrap();
        assert_eq!(server.partitions("wide"), Some(2_500));
        let error = connection.create("narrow", 1).unwrap_err();
        assert!(format!("{error:#}").contains("error 2013"), "{error:#}");
        connection.delete("wide").unwrap();
        assert_eq!(server.partitions("wide"), None);
        assert!(connection.delete("wide").is_err());
    }

    #[test]
    fn what_is_sent_is_polled() {
        let server = Scripted::start(usize::MAX);
        let mut connection = Connection::open(server.address()).unwrap();
        connection.create("t", 2).unwrap();
        let mut batch = Batch::default();
        for value in [&b"one"[..], b"two", b"three"] {
            batch.push(Some(b"k"), value);
        }
        connection.send("t", 1, &batch).unwrap();
        connection.acknowledged().unwrap();
        let mut polled = connection.poll("t", 1, 1, 100).unwrap();
        assert_eq!(polled.next().unwrap(), Some((1, &b"ktwo"[..])));
        assert_eq!(polled.next().unwrap(), Some((2, &b"kthree"[..])));
        assert_eq!(polled.next().unwrap(), None);
        let mut none = connection.poll("t", 0, 0, 100).unwrap();
        assert_eq!(none.next().unwrap(), None);
        connection.send("t", 2, &batch).unwrap();
        assert!(connection.acknowledged().is_err());
    }

    #[test]
    fn a_server_that_goes_away_is_an_error() {
        // It answers the login, and nothing else.
        let server = Scripted::start(1);
        let mut connection = Connection::open(server.address()).unwrap();
        assert!(connection.create("t", 1).is_err());
        let nobody = Scripted::start(0);
        let error = Connection::open(nobody.address()).unwrap_err();
        assert!(format!("{error:#}").contains("cannot log in"), "{error:#}");
        assert!(Connection::open("nowhere").is_err());
    }

    /// Takes three bytes at a time.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_parts_are_written_however_slowly() {
        let mut slow = Slow(Vec::new());
        let mut parts = [&b""[..], b"four", b"", b"seven and more", b""].map(IoSlice::new);
        write_all(&mut slow, &mut parts).unwrap();
        assert_eq!(slow.0, b"fourseven and more");
    }
}
