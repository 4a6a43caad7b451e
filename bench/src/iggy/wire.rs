//! What goes over the wire. All numbers are little-endian.
//!
//! A request is its length, a code and what the code calls for; the length counts the code. An answer
//! is a status, which is 0 if all went well, the length of what follows, and that.

use anyhow::{Context, Result, ensure};

use super::{CONSUMER, STREAM};

/// Bytes before what a request, or an answer, is about.
pub(super) const HEAD: usize = 8;
/// Bytes of a message before its payload: checksum, id, offset, time at the server and at the client,
/// the lengths of headers and payload, and room.
const MESSAGE_HEAD: usize = 64;
/// Bytes of a message's place among those of a batch.
const INDEX: usize = 16;
/// Bytes of an answer to a poll before its messages: partition, offset of its last message, and how
/// many follow.
const POLLED_HEAD: usize = 16;
/// Where a message's offset is, and the lengths of its headers and of its payload.
const OFFSET_AT: usize = 24;
const HEADERS_AT: usize = 48;
const PAYLOAD_AT: usize = 52;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Code {
    Login = 38,
    Poll = 100,
    Send = 101,
    CreateStream = 202,
    CreateTopic = 302,
    DeleteTopic = 303,
    CreatePartitions = 402,
}

/// Puts a request together; `about` writes what the code calls for.
pub(super) fn request(out: &mut Vec<u8>, code: Code, about: impl FnOnce(&mut Vec<u8>)) {
    out.clear();
    out.extend_from_slice(&[0; HEAD]);
    about(out);
    let length = out.len() - HEAD;
    head(out, code, length);
}

/// Writes the beginning of a request, about which there are so many bytes.
fn head(out: &mut [u8], code: Code, length: usize) {
    // Far below 4 GiB: a batch is bounded where it is filled.
    let length = length as u32 + 4;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..HEAD].copy_from_slice(&(code as u32).to_le_bytes());
}

/// A text with its length, 255 bytes at most.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(255)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// A stream, topic or consumer by name.
fn named(out: &mut Vec<u8>, name: &str) {
    out.push(2);
    text(out, name);
}

/// A topic of the stream that is used here.
pub(super) fn topic(out: &mut Vec<u8>, topic: &str) {
    named(out, STREAM);
    named(out, topic);
}

/// What `Login` calls for.
pub(super) fn login(out: &mut Vec<u8>, user: &str, password: &str) {
    text(out, user);
    text(out, password);
    // The client's version, and what it says of itself: nothing.
    out.extend_from_slice(&[0; 8]);
}

/// What `CreateStream` calls for.
pub(super) fn create_stream(out: &mut Vec<u8>) {
    text(out, STREAM);
}

/// What `CreateTopic` calls for: not compressed, and the server's defaults.
pub(super) fn create_topic(out: &mut Vec<u8>, topic: &str, partitions: u32) {
    named(out, STREAM);
    out.extend_from_slice(&partitions.to_le_bytes());
    out.push(1);
    // When messages expire, how large it grows, how many copies: as the server is configured.
    out.extend_from_slice(&[0; 8 + 8 + 1]);
    text(out, topic);
}

/// What `Poll` calls for: `count` messages from an offset on; the server remembers nothing.
pub(super) fn poll(out: &mut Vec<u8>, name: &str, partition: u32, from: u64, count: u32) {
    // One consumer by itself, no group.
    out.push(1);
    named(out, CONSUMER);
    topic(out, name);
    out.push(1);
    out.extend_from_slice(&partition.to_le_bytes());
    // From an offset.
    out.push(1);
    out.extend_from_slice(&from.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.push(0);
}

/// Messages that go to one partition together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    indexes: Vec<u8>,
    messages: Vec<u8>,
    records: u32,
}

impl Batch {
    /// Adds a message. Iggy has no keys: one goes ahead of the value.
    pub(crate) fn push(&mut self, key: Option<&[u8]>, value: &[u8]) {
        let key = key.unwrap_or_default();
        let payload = (key.len() + value.len()) as u32;
        // What the server fills in is 0: checksum, id, offset and time; so are the time here, which is
        // nobody's business, and the length of headers, of which there are none.
        let mut head = [0; MESSAGE_HEAD];
        head[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&payload.to_le_bytes());
        self.messages.extend_from_slice(&head);
        self.messages.extend_from_slice(key);
        self.messages.extend_from_slice(value);
        let mut index = [0; INDEX];
        index[4..8].copy_from_slice(&(self.messages.len() as u32).to_le_bytes());
        self.indexes.extend_from_slice(&index);
        self.records += 1;
    }

    /// Messages in it.
    pub(crate) fn records(&self) -> u32 {
        self.records
    }

    /// Bytes of its messages, as they go over the wire.
    pub(crate) fn bytes(&self) -> usize {
        self.indexes.len() + self.messages.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Leaves it empty; its memory stays.
    pub(crate) fn clear(&mut self) {
        self.indexes.clear();
        self.messages.clear();
        self.records = 0;
    }

    /// The parts of a request that sends it; the first one is written to `out`.
    pub(crate) fn send<'a>(
        &'a self,
        out: &'a mut Vec<u8>,
        name: &str,
        partition: u32,
    ) -> [&'a [u8]; 3] {
        request(out, Code::Send, |out| {
            out.extend_from_slice(&[0; 4]);
            topic(out, name);
            // To a partition that is named, in four bytes.
            out.extend_from_slice(&[2, 4]);
            out.extend_from_slice(&partition.to_le_bytes());
            out.extend_from_slice(&self.records.to_le_bytes());
            let length = (out.len() - HEAD - 4) as u32;
            out[HEAD..HEAD + 4].copy_from_slice(&length.to_le_bytes());
        });
        let length = out.len() - HEAD + self.bytes();
        head(out, Code::Send, length);
        [out.as_slice(), &self.indexes, &self.messages]
    }
}

/// The status of an answer, and how many bytes follow.
pub(super) fn answer_head(head: [u8; HEAD]) -> (u32, usize) {
    let [a, b, c, d, e, f, g, h] = head;
    let length = u32::from_le_bytes([e, f, g, h]);
    (u32::from_le_bytes([a, b, c, d]), length as usize)
}

/// Messages that were polled.
#[derive(Debug)]
pub(crate) struct Polled<'a> {
    left: u32,
    rest: &'a [u8],
}

impl<'a> Polled<'a> {
    /// Takes the answer to a poll of `partition` apart.
    pub(crate) fn parse(answer: &'a [u8], partition: u32) -> Result<Self> {
        let (head, rest) = answer
            .split_at_checked(POLLED_HEAD)
            .context("the answer to a poll is too short")?;
        let of = number(head, 0)?;
        ensure!(
            of == partition,
            "the answer to a poll of partition {partition} is about partition {of}"
        );
        let left = number(head, 12)?;
        Ok(Self { left, rest })
    }

    /// Offset and payload of the next message.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &'a [u8])>> {
        if self.left == 0 {
            ensure!(
                self.rest.is_empty(),
                "{} bytes follow the messages of a poll",
                self.rest.len()
            );
            return Ok(None);
        }
        let short = "a message of a poll is cut off";
        let (head, rest) = self.rest.split_at_checked(MESSAGE_HEAD).context(short)?;
        let payload = number(head, PAYLOAD_AT)? as usize;
        let headers = number(head, HEADERS_AT)? as usize;
        let (payload, rest) = rest.split_at_checked(payload).context(short)?;
        let (_, rest) = rest.split_at_checked(headers).context(short)?;
        let offset = head[OFFSET_AT..].first_chunk().context(short)?;
        self.left -= 1;
        self.rest = rest;
        Ok(Some((u64::from_le_bytes(*offset), payload)))
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u32> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    let bytes = bytes.context("a number is cut off")?;
    Ok(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_it_says() {
        let mut out = vec![7; 3];
        request(&mut out, Code::Login, |out| login(out, "me", "pw"));
        let told = [18, 0, 0, 0, 38, 0, 0, 0];
        assert_eq!(out[..HEAD], told);
        assert_eq!(out[HEAD..], b"\x02me\x02pw\0\0\0\0\0\0\0\0"[..]);
        assert_eq!(out.len() - 4, 14 + 4);
    }

    #[test]
    fn a_poll_names_partition_offset_and_count() {
        let mut out = Vec::new();
        poll(&mut out, "t", 3, 258, 1_000);
        let names = b"\x01\x02\x0akera-bench\x02\x0akera-bench\x02\x01t";
        assert_eq!(out[..names.len()], names[..]);
        let rest = [1, 3, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0xE8, 3, 0, 0, 0];
        assert_eq!(out[names.len()..], rest);
    }

    #[test]
    fn a_batch_counts_its_messages_and_says_where_each_ends() {
        let mut batch = Batch::default();
        assert!(batch.is_empty());
        batch.push(Some(b"key"), b"value");
        batch.push(None, b"v");
        assert_eq!((batch.records(), batch.bytes()), (2, 2 * 80 + 9));
        let mut out = Vec::new();
        let [head, indexes, messages] = batch.send(&mut out, "t", 9);
        let sent = head.len() + indexes.len() + messages.len();
        assert_eq!(number(head, 0).unwrap() as usize, sent - 4);
        assert_eq!(number(head, 4).unwrap(), 101);
        // Stream, topic, partition and count.
        assert_eq!(number(head, 8).unwrap() as usize, head.len() - 12);
        assert_eq!(head[12..14], [2, 10]);
        assert_eq!(head[head.len() - 10..], [2, 4, 9, 0, 0, 0, 2, 0, 0, 0]);
        let ends = [number(indexes, 4).unwrap(), number(indexes, 20).unwrap()];
        assert_eq!(ends, [72, 72 + 65]);
        assert_eq!(messages[64..72], b"keyvalue"[..]);
        assert_eq!(number(messages, PAYLOAD_AT).unwrap(), 8);
        batch.clear();
        assert!(batch.is_empty() && batch.bytes() == 0);
    }

    fn answer(messages: &[(u64, &[u8], &[u8])]) -> Vec<u8> {
        let mut answer = vec![5, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        answer.extend((messages.len() as u32).to_le_bytes());
        for (offset, payload, headers) in messages {
            let mut head = [0; MESSAGE_HEAD];
            head[OFFSET_AT..OFFSET_AT + 8].copy_from_slice(&offset.to_le_bytes());
            head[HEADERS_AT] = headers.len() as u8;
            head[PAYLOAD_AT] = payload.len() as u8;
            answer.extend(head);
            answer.extend(*payload);
            answer.extend(*headers);
        }
        answer
    }

    #[test]
    fn messages_of_a_poll_are_visited() {
        let answer = answer(&[
            (41, b"one", b""),
            (42, b"", b"headers"),
            (43, b"three", b""),
        ]);
        let mut polled = Polled::parse(&answer, 5).unwrap();
        assert_eq!(polled.next().unwrap(), Some((41, &b"one"[..])));
        assert_eq!(polled.next().unwrap(), Some((42, &b""[..])));
        assert_eq!(polled.next().unwrap(), Some((43, &b"three"[..])));
        assert_eq!(polled.next().unwrap(), None);
    }

    #[test]
    fn an_odd_answer_to_a_poll_is_refused() {
        let good = answer(&[(1, b"one", b"")]);
        assert!(Polled::parse(&good, 6).is_err());
        for length in 0..good.len() {
            let cut = Polled::parse(&good[..length], 5).and_then(|mut polled| polled.next());
            assert!(cut.is_err(), "{length}");
        }
        let mut long = good;
        long.push(0);
        let mut polled = Polled::parse(&long, 5).unwrap();
        polled.next().unwrap();
        assert!(polled.next().is_err());
    }

    #[test]
    fn an_answer_says_how_it_went() {
        assert_eq!(answer_head([0, 0, 0, 0, 3, 1, 0, 0]), (0, 259));
        assert_eq!(answer_head([0xF4, 3, 0, 0, 0, 0, 0, 0]).0, 1012);
    }
}
