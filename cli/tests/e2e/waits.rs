//! Commands that wait say what for; those that cannot go on say why.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;

use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, crc32c};
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use kera_testkit::http::get;

use crate::common::raw::{Raw, batch_of, frame_of, stream_id};
use crate::common::{Broker, PATIENCE, kera};
use crate::stream_metrics::metric;

/// A command that goes on, and the lines that it says on standard error.
struct Waiting {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Waiting {
    fn start(broker: &Broker, words: &[&str]) -> Self {
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", broker.address());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("kera starts");
        let said = BufReader::new(child.stderr.take().expect("it is piped"));
        let (sender, lines) = mpsc::sync_channel(1024);
        thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Waits until it says something that holds all of `parts`.
    fn says(&self, parts: &[&str]) {
        let mut all = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            let found = parts.iter().all(|part| line.contains(part));
            all.push(line);
            if found {
                return;
            }
        }
        panic!("it says nothing of {parts:?}, but {all:?}");
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_say_what_they_wait_for_while_the_broker_is_away() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"one\n");
    let mut producer = Waiting::start(&broker, &["produce", "s", "-q"]);
    let mut input = producer.child.stdin.take().expect("it is piped");
    input.write_all(b"two\n").expect("it reads");
    let mut reader = Waiting::start(&broker, &["consume", "s", "--follow"]);
    let mut output = BufReader::new(reader.child.stdout.take().expect("it is piped"));
    let mut read = String::new();
    while read != "one\ntwo\n" {
        output.read_line(&mut read).expect("records come");
    }
    let address = broker.address().to_owned();
    broker.kill();
    input.write_all(b"three\n").expect("it reads");
    producer.says(&["stream s: streamlet 0", &address]);
    reader.says(&["stream s: streamlet 0 lane 0", &address]);
    broker.restart();
    drop(input);
    let ended = producer.child.wait().expect("it ends");
    assert!(
        ended.success(),
        "the record is sent once the broker is back"
    );
    while read != "one\ntwo\nthree\n" {
        output.read_line(&mut read).expect("records come");
    }
}

#[test]
fn commands_say_which_broker_does_not_answer() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.pause(true);
    let describe = Waiting::start(&broker, &["stream", "describe", "s", "--json"]);
    let call = "has not answered DescribeStream yet";
    describe.says(&["warning: ", broker.address(), call]);
    broker.pause(false);
    let mut describe = describe;
    let output = describe.child.stdout.take().expect("it is piped");
    let described: serde_json::Value = serde_json::from_reader(output).expect("nothing but JSON");
    assert_eq!(described["name"], "s");
    assert!(describe.child.wait().expect("it ends").success());
}

/// A compressed batch of `count` records with garbage behind the codec's own header.
fn poison(count: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for _ in 0..count {
        let record = NewRecord {
            value: Some(&[b'x'; 1_000]),
            ..NewRecord::default()
        };
        builder.push(&record).expect("a record fits");
    }
    let batch = builder.finish(Compression::Gzip, ProducerStamp::NONE);
    let mut batch = batch.expect("a batch").to_vec();
    let body = 61 + 10..batch.len() - 8;
    batch[body].fill(0xff);
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

#[test]
fn a_batch_that_does_not_decode_is_told_and_skipped_if_that_is_wanted() {
    let broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"before\n");
    let mut raw = Raw::open(&broker);
    let request = v1::AppendRequest {
        stream: stream_id(&broker, "s"),
        ..v1::AppendRequest::default()
    };
    raw.send(&frame_of(FrameKind::Append, 1, &request, &poison(3)));
    let answer = raw.append_answer().1;
    assert_eq!(
        (answer.error, answer.base_ordinal),
        (0, 1),
        "{}",
        answer.message
    );
    broker.feed(&["produce", "s", "-q"], b"after\n");
    for how in [&["consume", "s"][..], &["consume", "s", "--group", "g"]] {
        let ended = broker.attempt(how, b"");
        assert_eq!(ended.text(), "before\n");
        assert!(!ended.status.success());
        for part in [
            "stream s: ",
            "/0/0 at ordinals 1 to 3 cannot be read",
            "--skip-damaged",
        ] {
            assert!(ended.stderr.contains(part), "{}", ended.stderr);
        }
    }
    let skipped = broker.attempt(&["consume", "s", "--skip-damaged"], b"");
    assert_eq!(skipped.text(), "before\nafter\n");
    assert!(
        skipped.stderr.contains("skipped ordinals 1 to 3 of lane"),
        "{}",
        skipped.stderr
    );
    // What was before it was committed.
    let skipped = broker.attempt(&["consume", "s", "--group", "g", "--skip-damaged"], b"");
    assert_eq!(
        (skipped.text(), skipped.status.success()),
        ("after\n".to_owned(), true)
    );
}

/// The one file of a group that holds this.
fn file_with(broker: &Broker, text: &[u8]) -> std::path::PathBuf {
    let streams = broker.data_dir().join("streams");
    let mut files: Vec<_> = std::fs::read_dir(streams)
        .expect("there are streams")
        .flat_map(|stream| std::fs::read_dir(stream.expect("a stream").path().join("0")))
        .flatten()
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .filter(|path| {
            let bytes = std::fs::read(path).expect("a file");
            bytes.windows(text.len()).any(|found| found == text)
        })
        .collect();
    let (file, None) = (files.pop().expect("a group"), files.pop()) else {
        panic!("one group holds the record");
    };
    file
}

#[test]
fn a_file_that_is_gone_is_told_and_passed_by_if_that_is_wanted() {
    let mut broker = Broker::start();
    let small = ["--segment-size", "64KiB", "--segments-per-group", "1"];
    broker.run(&[&["stream", "create", "s"], &small[..]].concat());
    let input: String = (0..20_000).map(|number| format!("{number:08}\n")).collect();
    let all: Vec<&str> = input.lines().collect();
    broker.feed(
        &["produce", "s", "-q", "--batch-size", "4KiB"],
        input.as_bytes(),
    );
    assert!(broker.stop().success());
    let file = file_with(&broker, b"00010000");
    std::fs::remove_file(&file).expect("it can be removed");
    broker.restart();
    let ended = broker.attempt(&["consume", "s"], b"");
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("(DAMAGED)"), "{}", ended.stderr);
    // What is no file, to be read for ever in vain.
    std::fs::create_dir(&file).expect("a directory");
    let ended = broker.attempt(&["consume", "s"], b"");
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("(DAMAGED)"), "{}", ended.stderr);
    let read = ended.text();
    assert!(input.starts_with(&read) && read.lines().count() < 10_001);
    for how in [&["consume", "s"][..], &["consume", "s", "--group", "g"]] {
        let ended = broker.attempt(&[how, &["--skip-damaged"]].concat(), b"");
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("skipped what cannot be read"),
            "{}",
            ended.stderr
        );
        let read = ended.text();
        let read: Vec<&str> = read.lines().collect();
        // Nothing else is missing.
        let first = all
            .iter()
            .zip(&read)
            .take_while(|(all, read)| all == read)
            .count();
        let rest = &read[first..];
        assert!(!rest.is_empty() && all.ends_with(rest));
        assert!(first <= 10_000 && all.len() - rest.len() > 10_000);
    }
}

#[test]
fn damage_right_behind_a_gap_is_passed_by_if_that_is_wanted() {
    let mut broker = Broker::start();
    let small = ["--segment-size", "64KiB", "--segments-per-group", "1"];
    broker.run(&[&["stream", "create", "s"], &small[..]].concat());
    broker.feed(&["produce", "s", "-q"], b"gone\n");
    broker.kill();
    std::fs::remove_file(file_with(&broker, b"gone")).expect("it can be removed");
    broker.restart();
    let input: String = (0..20_000).map(|number| format!("{number:08}\n")).collect();
    let produce = ["produce", "s", "-q", "--batch-size", "4KiB"];
    broker.feed(&produce, input.as_bytes());
    assert!(broker.stop().success());
    let file = file_with(&broker, b"00000000");
    let mut bytes = std::fs::read(&file).expect("a file");
    let place = bytes.windows(8).position(|text| text == b"00000000");
    bytes[place.expect("a record")] ^= 1;
    std::fs::write(&file, bytes).expect("it is written");
    broker.restart();
    let ended = broker.attempt(&["consume", "s", "--skip-damaged"], b"");
    assert!(ended.status.success(), "{}", ended.stderr);
    let read = ended.text();
    assert!(!read.is_empty() && input.ends_with(&read));
}

/// A directory in its place reads as a disk does that has gone bad there.
#[test]
fn a_streamlet_whose_open_file_cannot_be_read_waits_alone_and_says_so() {
    let mut broker = Broker::with(&["--http-listen", "127.0.0.1:0"]);
    for name in ["s", "t"] {
        broker.run(&["stream", "create", name]);
        broker.feed(&["produce", name, "-q"], format!("old {name}\n").as_bytes());
    }
    broker.kill();
    let file = file_with(&broker, b"old s");
    let aside = broker.data_dir().with_file_name("aside");
    std::fs::rename(&file, &aside).expect("it is moved");
    std::fs::create_dir(&file).expect("a directory");
    broker.restart();

    broker.feed(&["produce", "t", "-q"], b"new t\n");
    assert_eq!(broker.run(&["consume", "t"]), "old t\nnew t\n");
    assert!(get(broker.http(), "/readyz").contains("ready"));
    let of = |stream: &str| {
        let name = format!("kera_stream_unrecovered_streamlets{{stream=\"{stream}\"}}");
        metric(&broker, &name)
    };
    assert_eq!((of("s"), of("t")), (Some(1.0), Some(0.0)));
    let told = broker.run(&["stream", "describe", "s"]);
    let name = file.display().to_string();
    for part in [
        "not served",
        "its files cannot be read",
        &name,
        "os error 21",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let mut raw = Raw::open(&broker);
    let request = v1::AppendRequest {
        stream: stream_id(&broker, "s"),
        ..v1::AppendRequest::default()
    };
    raw.send(&frame_of(FrameKind::Append, 1, &request, &batch_of(b"no")));
    let (_, refused) = raw.append_answer();
    let code = ErrorCode::from_number(refused.error);
    assert_eq!(code, Some(ErrorCode::StorageError), "{refused:?}");
    assert!(refused.message.contains(&name), "{refused:?}");
    let waiting = Waiting::start(&broker, &["consume", "s"]);
    waiting.says(&["its files cannot be read", &name]);
    drop(waiting);

    // What can be read of it is put back, and nobody restarts anything.
    std::fs::remove_dir(&file).expect("it is empty");
    std::fs::rename(&aside, &file).expect("it is moved back");
    broker.feed(&["produce", "s", "-q"], b"new s\n");
    assert_eq!(broker.run(&["consume", "s"]), "old s\nnew s\n");
    assert_eq!(of("s"), Some(0.0));
}
