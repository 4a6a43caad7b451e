//! `kera top`, for programs and in a terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::common::command::killed;
use crate::common::{Broker, PATIENCE, finish, kera};

const COLUMNS: usize = 100;
const ROWS: usize = 24;

fn broker() -> Broker {
    let broker = Broker::with(&["--http-listen", "127.0.0.1:0"]);
    broker.json(&["stream", "create", "orders", "--streamlets", "2"]);
    broker.json(&["stream", "create", "clicks"]);
    broker.feed(&["produce", "orders", "--quiet"], b"one\ntwo\nthree\n");
    broker.run(&["consume", "orders", "--group", "billing", "--max", "1"]);
    broker
}

#[test]
fn one_look_for_programs_and_for_people() {
    let mut broker = broker();
    let address = broker.http().to_owned();
    let top = |words: &[&str]| {
        let mut command = kera();
        command.args(["top", "--http", &address]).args(words);
        finish(command, b"")
    };
    let told: serde_json::Value = serde_json::from_slice(&top(&["--json"]).stdout).expect("JSON");
    assert_eq!(told["overview"]["health"]["state"], "attention");
    assert_eq!(told["streams"]["total"], 2);
    assert_eq!(told["groups"]["items"][0]["lag"], 2);
    assert_eq!(told["brokers"]["items"][0]["state"], "NORMAL");
    assert_eq!(told["overview"]["records_in"], 0.0);
    // Where there is no terminal one look is printed, asked for or not.
    let text = top(&[]).text();
    let first = text.lines().next().unwrap_or_default();
    // The disk of the machine that runs this test may be nearly full. Then that is the first problem shown.
    let lags = "Group billing is behind by 2 records; it has no member";
    assert!(
        first.starts_with(lags) || first.contains("of its disk free"),
        "{text}"
    );
    for wanted in [
        "What to do: ",
        "Streams: 2",
        "billing 2",
        "Brokers: 1",
        "never",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    broker.kill();
    let failed = top(&["--once"]);
    assert!(!failed.status.success());
    assert!(failed.stderr.contains("http.listen"), "{}", failed.stderr);
}

/// `kera top` in a terminal, and what that shows.
struct Terminal {
    child: Option<Child>,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    rest: Vec<u8>,
}

impl Terminal {
    fn start(address: &str) -> Self {
        let top = kera();
        let program = top.get_program().to_str().expect("a path").to_owned();
        // util-linux's script gives it a terminal of its own.
        let line = format!(
            "stty rows {ROWS} cols {COLUMNS} && exec {program} top --http {address} --interval 200ms"
        );
        let mut child = Command::new("script")
            .args([
                "--quiet",
                "--return",
                "--flush",
                "--command",
                &line,
                "/dev/null",
            ])
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("script can be run");
        let keys = child.stdin.take().expect("it is piped");
        let mut reader = child.stdout.take().expect("it is piped");
        let (told, output) = sync_channel(64);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if told.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child: Some(child),
            keys,
            output,
            cells: vec![vec![' '; COLUMNS]; ROWS],
            at: (0, 0),
            rest: Vec::new(),
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys
            .write_all(keys.as_bytes())
            .expect("keys can be pressed");
    }

    fn text(&self) -> String {
        let lines = self
            .cells
            .iter()
            .map(|line| line.iter().collect::<String>());
        lines.map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// Waits until the screen is as it is to be.
    fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        while !wanted(&self.text()) {
            assert!(
                begin.elapsed() < PATIENCE,
                "{what} does not come:\n{}",
                self.text()
            );
            match self.output.recv_timeout(Duration::from_millis(500)) {
                Ok(bytes) => self.take(&bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("kera top ended:\n{}", self.text()),
            }
        }
    }

    fn sees(&mut self, text: &str) {
        self.until(text, |screen| screen.contains(text));
    }

    /// What a terminal does with text and with the few commands that matter here.
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.rest);
        let text = match std::str::from_utf8(&all) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&all[..error.valid_up_to()]).expect("it is valid"),
        };
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            if c != '\u{1b}' {
                self.put(c);
                at += c.len_utf8();
                continue;
            }
            let Some(length) = command_length(&text[at..]) else {
                break;
            };
            self.command(&text[at..at + length]);
            at += length;
        }
        self.rest = all[at..].to_vec();
    }

    fn put(&mut self, c: char) {
        match c {
            '\r' => self.at.1 = 0,
            '\n' => self.at.0 += 1,
            c => {
                if let Some(cell) = self
                    .cells
                    .get_mut(self.at.0)
                    .and_then(|line| line.get_mut(self.at.1))
                {
                    *cell = c;
                }
                self.at.1 += 1;
            }
        }
    }

    fn command(&mut self, command: &str) {
        let Some(inner) = command.strip_prefix("\u{1b}[") else {
            return;
        };
        let (arguments, last) = inner.split_at(inner.len() - 1);
        match last {
            "H" => {
                let mut numbers = arguments.split(';').map(|n| n.parse().unwrap_or(1_usize));
                let (row, column) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
                self.at = (row.saturating_sub(1), column.saturating_sub(1));
            }
            "K" => {
                if let Some(line) = self.cells.get_mut(self.at.0) {
                    line.iter_mut().skip(self.at.1).for_each(|cell| *cell = ' ');
                }
            }
            _ => {}
        }
    }

    /// Waits for the end; whether it ended well.
    fn ends(mut self) -> bool {
        let child = self.child.take().expect("it runs");
        let ended = crate::common::command::ended_within(child, PATIENCE, "kera top");
        ended.status.success()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            killed(child);
        }
    }
}

/// How long a terminal's command at the start of `text` is; `None`: the rest of it has not come yet.
fn command_length(text: &str) -> Option<usize> {
    let second = text[1..].chars().next()?;
    if second != '[' {
        return Some(1 + second.len_utf8());
    }
    let end = text[2..].find(|c: char| ('@'..='~').contains(&c))?;
    Some(2 + end + 1)
}

#[test]
fn a_terminal_shows_lists_that_are_sorted_filtered_and_paused() {
    let mut broker = broker();
    let mut top = Terminal::start(broker.http());
    // As above.
    top.until("what to look at first", |screen| {
        let lags = "Group billing is behind by 2 records; it has no member";
        screen.contains(lags) || screen.contains("of its disk free")
    });
    top.sees("[1 Streams: 2]");
    top.sees("by records in");
    top.sees("billing 2");
    top.press("s");
    top.sees("by lag");
    let order = |screen: &str| Some((screen.find("\norders")?, screen.find("\nclicks")?));
    top.until("orders first", |screen| {
        order(screen).is_some_and(|(orders, clicks)| orders < clicks)
    });
    top.press("/cli");
    top.sees("filter: cli_");
    top.until("clicks alone", |screen| {
        screen.contains("\nclicks") && !screen.contains("\norders")
    });
    top.press("\u{1b}");
    top.sees("\norders");
    top.press("2");
    top.sees("catches up");
    top.sees("never");
    top.press("3");
    top.sees("NORMAL");
    top.press("1");
    top.press(" ");
    top.sees("PAUSED");
    broker.json(&["stream", "create", "later"]);
    top.press(" ");
    top.sees("\nlater");
    broker.kill();
    top.sees("No answer; what you see is");
    // What was known stays.
    top.sees("\norders");
    top.press("q");
    assert!(top.ends());
}
