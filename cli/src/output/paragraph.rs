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
    fn sentences_fit_and_lose_no_word() {
        let text = "created: stream a-long-name, 1 streamlet with 1 lane each, by key, ack written";
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
