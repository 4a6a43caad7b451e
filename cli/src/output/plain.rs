//! Names that other programs chose, as a terminal may show them: they move no cursor, and turn no text around.

/// Whether a terminal or its reader would take a letter for something else than a letter.
fn acts(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || letter.is_control()
}

/// A text within a line. What is no letter is escaped, line ends too.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match acts(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Lines with colours of our own, which are the only commands to the terminal in them.
pub(super) fn plain_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let colour = colour(rest);
        let taken = colour.unwrap_or(letter.len_utf8());
        match colour.is_none() && letter != '\n' && acts(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    shown
}

/// The bytes of a colour or its end that a text begins with.
fn colour(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    (numbers[end..].starts_with('m')).then_some(end + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_do_nothing_to_a_terminal() {
        assert_eq!(
            plain("\u{1b}]0;owned\u{7}\u{1b}[2Jx\r\ny"),
            r"\u{1b}]0;owned\u{7}\u{1b}[2Jx\u{d}\u{a}y"
        );
        assert_eq!(plain("g\u{202e}gpj.exe"), r"g\u{202e}gpj.exe");
        assert_eq!(plain("Gdańsk 日本"), "Gdańsk 日本");
        let coloured = "\u{1b}[31m\u{1b}[1mNOT HEALTHY\u{1b}[0m, 2\nx";
        assert_eq!(plain_lines(coloured), coloured);
        assert_eq!(plain_lines("\u{1b}[2Jx\u{1b}["), r"\u{1b}[2Jx\u{1b}[");
        assert_eq!(plain_lines("a\rb\u{9b}1m"), r"a\u{d}b\u{9b}1m");
    }
}
