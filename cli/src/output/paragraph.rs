//! Sentences that fit the terminal.

use super::colour::marked;
use super::columns::columns_of;
use super::width;

/// Words in lines of `room` letters; a word that is longer has a line of its own.
pub(super) fn wrapped(text: &str, room: usize) -> Vec<String> {
    if columns_of(text) <= room {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if columns_of(line) + 1 + columns_of(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The text within the terminal's width, further lines set in by two; as it is where nobody says how wide lines may be.
fn fitted(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width > 8) else {
        return text.to_owned();
    };
    wrapped(text, width - 2).join("\n  ")
}

/// A sentence for standard output.
pub(crate) fn paragraph(text: &str) -> String {
    fitted(text, width())
}

/// Where the value of a fact begins.
const VALUE: usize = 17;

/// A fact of a description: its name, and its value, which goes on below itself where it is longer than the terminal is wide.
pub(crate) fn fact(name: &str, value: &str) -> String {
    fact_within(name, value, width())
}

fn fact_within(name: &str, value: &str, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(VALUE).max(8));
    let lines = wrapped(value, room);
    let name_room = VALUE - 3;
    format!(
        "  {name:<name_room$} {}",
        lines.join(&format!("\n{:VALUE$}", ""))
    )
}

/// A sentence on standard error, as wide as the terminal there.
pub(crate) fn say(text: &str) {
    let columns = console::Term::stderr().size_checked();
    let fitted = fitted(text, columns.map(|(_, columns)| columns.into()));
    eprintln!("{}", marked(&fitted));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_go_on_below_themselves() {
        assert_eq!(fact_within("host", "vm", Some(40)), "  host           vm");
        let value = "tcp; rdma not usable: this build has it not";
        assert_eq!(
            fact_within("transport", value, Some(40)),
            "  transport      tcp; rdma not usable:\n                 this build has it not"
        );
        assert_eq!(fact_within("transport", value, None).lines().count(), 1);
    }

    #[test]
    fn sentences_fit_and_lose_no_word() {
        let text = "created: stream a-long-name, 1 streamlet with 1 lane, by key, ack written";
        let shown = fitted(text, Some(40));
        assert!(
            shown.lines().count() > 1 && shown.lines().all(|line| line.len() <= 40),
            "{shown}"
        );
        let words: Vec<&str> = shown.split_whitespace().collect();
        assert_eq!(words.join(" "), text);
        assert_eq!(fitted(text, None), text);
    }
}
