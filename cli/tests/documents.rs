//! The documents against the program: every `kera` command that they tell to type is one that the
//! program understands.

use std::process::Command;

use kera_xtask::files;

/// The simple commands of a line of shell, each as its words: split at pipes and lists, without
/// quotes, redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '&') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    for words in &mut all {
        if let Some(at) = words.iter().position(|word| word.starts_with(['<', '>'])) {
            words.truncate(at);
        }
    }
    all.retain(|words| !words.is_empty());
    all
}

/// The arguments for `kera` if `words` run it.
fn kera_arguments(words: &[String]) -> Option<&[String]> {
    // Variables set for one command: `KERA_BOOTSTRAP=... kera ...`.
    let start = words
        .iter()
        .position(|word| !word.contains('=') || word.starts_with('-'))?;
    let words = &words[start..];
    if words[0] == "kera" || words[0].ends_with("/kera") {
        return Some(&words[1..]);
    }
    if words[0] == "cargo" && words.get(1).is_some_and(|word| word == "run") {
        let dashes = words.iter().position(|word| word == "--")?;
        return Some(&words[dashes + 1..]);
    }
    None
}

/// The commands in blocks marked `sh`, with the line they start at.
fn block_commands(markdown: &str) -> Vec<(usize, Vec<String>)> {
    let mut out = Vec::new();
    let (mut in_shell, mut in_other) = (false, false);
    let mut joined = String::new();
    for (at, line) in markdown.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        if let Some(language) = fence {
            if in_shell || in_other {
                (in_shell, in_other) = (false, false);
            } else {
                in_shell = matches!(language.trim(), "sh" | "bash" | "console");
                in_other = !in_shell;
            }
            continue;
        }
        if !in_shell {
            continue;
        }
        let line = line.trim().trim_start_matches("$ ");
        if let Some(part) = line.strip_suffix('\\') {
            joined.push_str(part);
            continue;
        }
        joined.push_str(line);
        for words in commands(&joined) {
            out.push((at + 1, words));
        }
        joined.clear();
    }
    out
}

/// Commands in running text, `kera like this`; those that only sketch a form are left out.
fn inline_commands(markdown: &str) -> Vec<(usize, Vec<String>)> {
    let mut out = Vec::new();
    for (at, line) in markdown.lines().enumerate() {
        for code in line.split('`').skip(1).step_by(2) {
            if code.starts_with("kera ") && !code.contains(['|', '[', '<', '…']) {
                out.extend(commands(code).into_iter().map(|words| (at + 1, words)));
            }
        }
    }
    out
}

#[test]
fn every_command_in_the_documents_is_one_the_program_understands() {
    let mut checked = 0;
    let mut broken = Vec::new();
    for file in files(&[".md"]) {
        let name = &file.path;
        let is_document = ["README.md", "ARCHITECTURE.md"].contains(&name.as_str());
        let is_below_docs = name
            .strip_prefix("docs/")
            .is_some_and(|rest| !rest.contains('/'));
        if !is_document && !is_below_docs {
            continue;
        }
        let (blocks, inline) = (block_commands(&file.text), inline_commands(&file.text));
        for (line, words) in blocks.into_iter().chain(inline) {
            let Some(arguments) = kera_arguments(&words) else {
                continue;
            };
            // With --help the program reads its arguments, then explains instead of doing.
            let output = Command::new(env!("CARGO_BIN_EXE_kera"))
                .args(arguments)
                .arg("--help")
                .output()
                .expect("the program can be started");
            checked += 1;
            if !output.status.success() {
                let error = String::from_utf8_lossy(&output.stderr);
                let error = error.lines().next().unwrap_or("no message").to_string();
                broken.push(format!(
                    "{name}:{line}: kera {}: {error}",
                    arguments.join(" ")
                ));
            }
        }
    }
    assert!(
        checked > 10,
        "only {checked} commands were found in the documents"
    );
    assert!(
        broken.is_empty(),
        "commands that do not work:\n  {}",
        broken.join("\n  ")
    );
}

#[test]
fn commands_are_found_in_blocks_and_in_running_text() {
    let text = "```sh\nprintf 'a | b' | kera produce s --key-separator , >out # note\n\
                A=1 kera stream \\\n  list & cargo run --release -- demo\n```\n\
                ```toml\nkera = 1\n```\nThen `kera config print`, not `kera group list|describe`.\n";
    let found: Vec<String> = block_commands(text)
        .into_iter()
        .chain(inline_commands(text))
        .filter_map(|(_, words)| kera_arguments(&words).map(|words| words.join(" ")))
        .collect();
    assert_eq!(
        found,
        [
            "produce s --key-separator ,",
            "stream list",
            "demo",
            "config print"
        ]
    );
}

#[test]
fn an_unknown_flag_is_seen() {
    let output = Command::new(env!("CARGO_BIN_EXE_kera"))
        .args(["stream", "list", "--no-such-flag", "--help"])
        .output()
        .expect("the program can be started");
    assert!(!output.status.success());
}
