//! Rules for the Rust sources and for every text file beside them.

use kera_xtask::{Source, check, files};

/// The only places for unsafe code: system calls on owned buffers, warm pages, files that are
/// received into, the verbs of network cards, and what stands in for the system in simulations.
const UNSAFE_MODULES: [&str; 5] = [
    "log-segments/src/io/",
    "log-segments/src/pool/",
    "replication/src/backup/mapping/",
    "replication/src/transport/rdma/verbs/",
    "sim/src/os/",
];

/// No source file is longer than this.
const MAX_LINES: usize = 800;

/// The member a path lies in.
fn member(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn holds_unsafe_modules(path: &str) -> bool {
    UNSAFE_MODULES
        .iter()
        .any(|module| member(module) == member(path))
}

/// True if `line` uses the keyword outside comments and quoted text.
fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    code.split('"').step_by(2).any(|code| {
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == "unsafe")
    })
}

#[test]
fn unsafe_code_lives_only_in_its_named_modules() {
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        if is_root && !file.is_generated() {
            let wanted = if holds_unsafe_modules(&file.path) {
                "#![deny(unsafe_op_in_unsafe_fn)]"
            } else {
                "#![forbid(unsafe_code)]"
            };
            if !file.text.contains(wanted) {
                broken.push(format!("{}: lacks {wanted}", file.path));
            }
        }
        if UNSAFE_MODULES
            .iter()
            .any(|module| file.path.starts_with(module))
        {
            continue;
        }
        for (number, line) in file.lines() {
            if uses_unsafe(line) {
                broken.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    check("unsafe code lives only in its named modules", broken);
}

#[test]
fn no_source_file_grows_beyond_what_one_reads_at_a_sitting() {
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        let lines = file.text.lines().count();
        if lines > MAX_LINES && !file.is_generated() {
            broken.push(format!(
                "{}: {lines} lines; split it along what it does",
                file.path
            ));
        }
    }
    check("a source file has at most 800 lines", broken);
}

#[test]
fn files_are_named_for_what_they_hold() {
    let vague = ["utils", "util", "helpers", "misc"];
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        let mut parts = file.path.split('/');
        if parts.any(|part| vague.contains(&part.trim_end_matches(".rs"))) {
            broken.push(file.path);
        }
    }
    check("a file is named for what it holds", broken);
}

/// True if `line` holds `mark` as a word, and not within a longer one such as a file's random name.
fn holds_word(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let within_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let ends_as_word = mark.ends_with(char::is_alphanumeric);
        let goes_on = ends_as_word && within_word(line[at + mark.len()..].chars().next());
        !within_word(line[..at].chars().next_back()) && !goes_on
    })
}

#[test]
fn nothing_is_left_undone_or_switched_off() {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[ign", "ore"),
    ];
    let mut broken = Vec::new();
    for file in files(&[".rs", ".sh", ".py", ".toml", ".proto", "Makefile"]) {
        for (number, line) in file.lines() {
            let found = marks.iter().any(|mark| holds_word(line, mark));
            if found {
                broken.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    check("nothing is left undone or switched off", broken);
}

#[test]
fn no_file_speaks_of_the_machine_it_was_written_on() {
    let places = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut broken = Vec::new();
    for file in files(&[]) {
        for (number, line) in file.lines() {
            if places.iter().any(|place| line.contains(place)) {
                let shown: String = line.trim().chars().take(100).collect();
                broken.push(format!("{}:{number}: {shown}", file.path));
            }
        }
    }
    check("no file names a path of one machine", broken);
}

/// The literal of each `error` attribute in `text`, with its line.
fn error_messages(text: &str) -> Vec<(usize, String)> {
    let mark = concat!("#[err", "or(");
    let mut out = Vec::new();
    for (at, _) in text.match_indices(mark) {
        let rest = text[at + mark.len()..].trim_start();
        let Some(rest) = rest.strip_prefix('"') else {
            continue;
        };
        let mut message = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => break,
                // A backslash at a line's end joins the lines.
                '\\' => match chars.next() {
                    Some('\n') => {
                        let tail = chars.as_str().trim_start();
                        chars = tail.chars();
                    }
                    Some(escaped) => message.push(escaped),
                    None => break,
                },
                c => message.push(c),
            }
        }
        out.push((text[..at].lines().count() + 1, message));
    }
    out
}

/// What is wrong with an error message, if anything.
fn message_fault(message: &str) -> Option<&'static str> {
    let mut chars = message.chars();
    let (first, second) = (chars.next()?, chars.next());
    // An acronym or the name of a code may lead: `CRC ...`, `NOFILE ...`.
    let lone_capital = first.is_uppercase() && !second.is_some_and(|c| c.is_uppercase());
    if lone_capital {
        return Some("starts with a capital");
    }
    if message.ends_with(['.', '!']) {
        return Some("ends with a full stop");
    }
    None
}

#[test]
fn error_messages_are_parts_of_sentences() {
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        for (line, message) in error_messages(&file.text) {
            if let Some(fault) = message_fault(&message) {
                broken.push(format!("{}:{line}: {message:?} {fault}", file.path));
            }
        }
    }
    check(
        "an error message is lowercase and without a full stop",
        broken,
    );
}

#[test]
fn the_checks_see_what_they_look_for() {
    assert!(uses_unsafe("    let a = unsafe { read(\"b\") };"));
    assert!(!uses_unsafe("#![forbid(unsafe_code)] // unsafe"));
    let quoted = format!("check({0}unsafe code{0});", '"');
    assert!(!uses_unsafe(&quoted));
    assert!(holds_word("// AB: later", "AB") && !holds_word("tABx", "AB"));

    let planted = format!(
        "x\n{}\n    \"Bad \\\n    thing.\"\n)]",
        concat!("#[err", "or(")
    );
    assert_eq!(error_messages(&planted), [(2, "Bad thing.".to_string())]);
    assert!(message_fault("Bad thing").is_some());
    assert!(message_fault("bad thing.").is_some());
    assert!(message_fault("CRC of the batch does not match").is_none());
    assert!(message_fault("{0} is gone").is_none());

    let generated = Source {
        path: "a.rs".into(),
        text: "// This file is @generated by".into(),
    };
    assert!(generated.is_generated());
}

#[test]
fn protocol_touches_neither_files_nor_sockets() {
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        if !file.path.starts_with("protocol/src/") {
            continue;
        }
        for (number, line) in file.lines() {
            let code = line.split("//").next().unwrap_or(line);
            if code.contains("std::fs") || code.contains("std::net") {
                broken.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    check("protocol does no I/O", broken);
}
