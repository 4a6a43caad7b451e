//! A browser that a test drives, by steps that `broker/console/browser/visit.mjs` carries out.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use kera_testkit::command::lines_of;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::machine;
use crate::node_folder;

/// For a step: a busy machine draws a page slowly.
const STEP: Duration = Duration::from_secs(90);

pub struct Browser {
    child: Option<Child>,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Browser {
    /// A browser with an empty profile; `None`, and said so, where there is none.
    pub fn start(test: &str) -> Option<Self> {
        Self::begin(test, None)
    }

    /// The same, whose user gives this name and password where a page asks for them.
    pub fn start_as(test: &str, user: [&str; 2]) -> Option<Self> {
        Self::begin(test, Some(user))
    }

    fn begin(test: &str, user: Option<[&str; 2]>) -> Option<Self> {
        let chromium = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
        let Some(chromium) = chromium
            .iter()
            .find(|path| std::path::Path::new(path).is_file())
        else {
            machine::skip(test, "needs chromium (see scripts/needs.sh)");
            return None;
        };
        let Some(folder) = node_folder("broker/console/browser", &["visit.mjs"]) else {
            machine::skip(test, "needs npm and its registry");
            return None;
        };
        let mut node = Command::new("node");
        if let Some([name, password]) = user {
            node.env("KERA_LOGIN_NAME", name);
            node.env("KERA_LOGIN_PASSWORD", password);
        }
        let mut child = node
            .arg(folder.join("visit.mjs"))
            .env("KERA_CHROMIUM", chromium)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("node can be run");
        let input = child.stdin.take().expect("it is piped");
        let lines = lines_of(child.stdout.take().expect("it is piped"));
        let browser = Self {
            child: Some(child),
            input: Some(input),
            lines,
        };
        assert_eq!(browser.answer()["ready"], true);
        Some(browser)
    }

    fn answer(&self) -> Value {
        let line = self.lines.recv_timeout(STEP).expect("the browser answers");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the browser said {line}"))
    }

    /// Does a step.
    pub fn step(&mut self, step: &str, mut arguments: Value) -> Value {
        arguments["step"] = step.into();
        let mut input = self.input.as_ref().expect("the browser runs");
        writeln!(input, "{arguments}").expect("the browser takes a step");
        let answer = self.answer();
        assert_eq!(
            answer["ok"], true,
            "{step} {arguments}: {} {}",
            answer["error"], answer["content"]
        );
        answer
    }

    pub fn open(&mut self, url: &str) {
        self.step("open", json!({ "url": url }));
    }

    /// Waits for a text; milliseconds that it took.
    pub fn sees(&mut self, text: &str) -> u64 {
        let seen = self.step("text", json!({ "text": text, "within": 60_000 }));
        seen["ms"].as_u64().expect("a number")
    }

    /// Waits until health tells a problem. It need not be the first one: the disk of the machine that runs this test may be
    /// nearly full. Milliseconds that it took.
    pub fn sees_problem(&mut self, text: &str) -> u64 {
        let told = self.step("problem", json!({ "text": text, "within": 60_000 }));
        told["ms"].as_u64().expect("a number")
    }

    /// Waits for something with a role and a name, as a screen reader tells them.
    pub fn sees_role(&mut self, role: &str, name: &str) {
        self.step(
            "role",
            json!({ "role": role, "name": name, "within": 60_000 }),
        );
    }

    /// Waits until something with a role has a text; milliseconds that it took.
    pub fn hears(&mut self, role: &str, text: &str) -> u64 {
        let heard = self.step(
            "role",
            json!({ "role": role, "text": text, "within": 60_000 }),
        );
        heard["ms"].as_u64().expect("a number")
    }

    pub fn keys(&mut self, keys: &[&str]) -> String {
        let pressed = self.step("keys", json!({ "keys": keys }));
        pressed["focused"].as_str().unwrap_or_default().to_owned()
    }

    pub fn click(&mut self, role: &str, name: &str) {
        self.step("click", json!({ "role": role, "name": name }));
    }

    pub fn content(&mut self) -> String {
        self.step("content", json!({}))["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Opens an address at a width, in a theme.
    pub fn open_at(&mut self, url: &str, (width, height): (u32, u32), theme: &str) {
        self.step(
            "open",
            json!({ "url": url, "width": width, "height": height, "theme": theme }),
        );
    }

    /// Makes the window so large, and the theme this one.
    pub fn look(&mut self, (width, height): (u32, u32), theme: &str) {
        self.step(
            "size",
            json!({ "width": width, "height": height, "theme": theme }),
        );
    }

    /// That the page breaks no rule of accessibility and is no wider than its window.
    pub fn audit(&mut self, what: &str) {
        self.audit_by(what, json!({}));
    }

    /// The same, of these rules alone: what else there is to find was looked for in the other theme or width.
    pub fn audit_of(&mut self, rules: &[&str], what: &str) {
        self.audit_by(what, json!({ "rules": rules }));
    }

    fn audit_by(&mut self, what: &str, rules: Value) {
        let found = self.step("audit", rules);
        assert_eq!(found["violations"], json!([]), "{what}");
        assert_eq!(
            found["wide"], 0,
            "{what} is wider than the window: {}",
            found["widest"]
        );
        assert_eq!(found["hidden"], json!([]), "{what} hides columns");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends the browser, and itself, once its input ends or it is told to; both also in a test that failed.
        self.input.take();
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = Pid::from_child(&child);
        let (ended, waiting) = sync_channel(1);
        std::thread::spawn(move || ended.send(child.wait().is_ok()));
        for signal in [Signal::TERM, Signal::KILL] {
            if waiting.recv_timeout(STEP / 3).is_ok() {
                return;
            }
            let _ = kill_process(pid, signal);
        }
    }
}
