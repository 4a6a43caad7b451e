//! A server for tests: as much of the protocol as the client uses, in memory.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

const INVALID_CREDENTIALS: u32 = 42;
const STREAM_EXISTS: u32 = 1012;
const TOPIC_NOT_FOUND: u32 = 2010;
const TOPIC_EXISTS: u32 = 2013;
const PARTITION_NOT_FOUND: u32 = 3007;

/// Payloads of a partition.
type Partition = Vec<Vec<u8>>;

#[derive(Debug, Default)]
struct State {
    stream: bool,
    topics: BTreeMap<String, Vec<Partition>>,
    /// Messages of each batch, in the order in which they came.
    batches: Vec<u32>,
    /// Requests that will be answered before connections end.
    left: usize,
}

/// A server that runs until it is dropped.
pub(crate) struct Scripted {
    address: String,
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    /// Starts one that answers so many requests and then closes its connections.
    pub(crate) fn start(answers: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State {
            left: answers,
            ..State::default()
        }));
        let over = Arc::new(AtomicBool::new(false));
        let (kept, end) = (state.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(SeqCst) {
                    return;
                }
                let state = kept.clone();
                // Ends with its client.
                std::thread::spawn(move || serve(stream.unwrap(), &state));
            }
        });
        Self {
            address,
            state,
            over,
            thread: Some(thread),
        }
    }

    /// HOST:PORT.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Partitions of a topic, if it is there.
    pub(crate) fn partitions(&self, topic: &str) -> Option<usize> {
        lock(&self.state).topics.get(topic).map(Vec::len)
    }

    /// What a partition holds.
    pub(crate) fn payloads(&self, topic: &str, partition: usize) -> Vec<Vec<u8>> {
        lock(&self.state).topics[topic][partition].clone()
    }

    /// Messages of each batch so far.
    pub(crate) fn batches(&self) -> Vec<u32> {
        lock(&self.state).batches.clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        // Wakes whoever accepts.
        let _ = TcpStream::connect(&self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut head = [0; 8];
    while stream.read_exact(&mut head).is_ok() {
        let mut head = Request(&head);
        let (length, code) = (head.u32(), head.u32());
        let mut about = vec![0; length as usize - 4];
        if stream.read_exact(&mut about).is_err() {
            return;
        }
        let mut state = lock(state);
        let Some(left) = state.left.checked_sub(1) else {
            return;
        };
        state.left = left;
        let answer = state.answer(code, Request(&about));
        let (status, body) = match answer {
            Ok(body) => (0, body),
            Err(status) => (status, Vec::new()),
        };
        let mut out = u32::to_le_bytes(status).to_vec();
        out.extend(u32::to_le_bytes(body.len() as u32));
        out.extend(body);
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

impl State {
    fn answer(&mut self, code: u32, mut about: Request<'_>) -> Result<Vec<u8>, u32> {
        match code {
            38 => {
                let credentials = (about.text(), about.text());
                if credentials != ("iggy".to_owned(), "iggy".to_owned()) {
                    return Err(INVALID_CREDENTIALS);
                }
                about.ends_with(&[0; 8]);
                Ok(vec![0; 4])
            }
            100 => self.poll(about),
            101 => self.send(about),
            202 => {
                assert_eq!(about.text(), "kera-bench");
                if std::mem::replace(&mut self.stream, true) {
                    return Err(STREAM_EXISTS);
                }
                Ok(vec![1; 33])
            }
            302 => {
                assert_eq!(about.named(), "kera-bench");
                let partitions = about.u32();
                assert!((1..=1_000).contains(&partitions));
                assert_eq!(about.take(18), [&[1][..], &[0; 17]].concat());
                let topic = about.text();
                if self.topics.contains_key(&topic) {
                    return Err(TOPIC_EXISTS);
                }
                let partitions = vec![Partition::new(); partitions as usize];
                self.topics.insert(topic, partitions);
                Ok(vec![1; 50])
            }
            303 => {
                let topic = about.topic();
                let gone = self.topics.remove(&topic);
                gone.map(|_| Vec::new()).ok_or(TOPIC_NOT_FOUND)
            }
            402 => {
                let name = about.topic();
                let more = about.u32();
                let topic = self.topics.get_mut(&name).ok_or(TOPIC_NOT_FOUND)?;
                topic.resize(topic.len() + more as usize, Partition::new());
                Ok(Vec::new())
            }
            code => panic!("code {code} is not known"),
        }
    }

    fn partition(&mut self, topic: &str, partition: u32) -> Result<&mut Partition, u32> {
        let topic = self.topics.get_mut(topic).ok_or(TOPIC_NOT_FOUND)?;
        let partition = topic.get_mut(partition as usize);
        partition.ok_or(PARTITION_NOT_FOUND)
    }

    fn send(&mut self, mut about: Request<'_>) -> Result<Vec<u8>, u32> {
        let metadata = about.u32() as usize;
        let mut metadata = Request(about.take(metadata));
        let topic = metadata.topic();
        assert_eq!(metadata.take(2), [2, 4], "a partition is named");
        let (partition, messages) = (metadata.u32(), metadata.u32());
        metadata.ends_with(&[]);
        let indexes = about.take(messages as usize * 16);
        let mut at = 0;
        let mut payloads = Vec::new();
        for index in indexes.chunks(16) {
            let mut index = Request(index);
            assert_eq!(index.u32(), 0);
            let end = index.u32() as usize;
            index.ends_with(&[0; 8]);
            let mut message = Request(about.take(end - at));
            assert_eq!(message.take(48), [0; 48], "the server fills that in");
            assert_eq!(message.u32(), 0, "no headers");
            let length = message.u32() as usize;
            assert_eq!(message.take(8), [0; 8]);
            payloads.push(message.take(length).to_vec());
            message.ends_with(&[]);
            at = end;
        }
        about.ends_with(&[]);
        self.partition(&topic, partition)?.extend(payloads);
        self.batches.push(messages);
        Ok(Vec::new())
    }

    fn poll(&mut self, mut about: Request<'_>) -> Result<Vec<u8>, u32> {
        assert_eq!(about.take(1), [1], "a consumer without a group");
        about.named();
        let topic = about.topic();
        assert_eq!(about.take(1), [1], "a partition is named");
        let number = about.u32();
        assert_eq!(about.take(1), [1], "from an offset");
        let (from, count) = (about.u64() as usize, about.u32() as usize);
        about.ends_with(&[0]);
        let partition = self.partition(&topic, number)?;
        let found = partition.iter().enumerate().skip(from).take(count);
        let mut answer = number.to_le_bytes().to_vec();
        answer.extend((partition.len() as u64).saturating_sub(1).to_le_bytes());
        answer.extend((found.clone().count() as u32).to_le_bytes());
        for (offset, payload) in found {
            let mut head = [0xEE; 64];
            head[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            head[48..52].copy_from_slice(&[0; 4]);
            head[52..56].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            answer.extend(head);
            answer.extend(payload);
        }
        Ok(answer)
    }
}

/// What is left of a request.
struct Request<'a>(&'a [u8]);

impl<'a> Request<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn ends_with(&self, rest: &[u8]) {
        assert_eq!(self.0, rest);
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.take(1)[0];
        String::from_utf8(self.take(length as usize).to_vec()).unwrap()
    }

    fn named(&mut self) -> String {
        assert_eq!(self.take(1), [2], "a name");
        self.text()
    }

    fn topic(&mut self) -> String {
        assert_eq!(self.named(), "kera-bench");
        self.named()
    }
}
