//! Colour where it helps, on a terminal alone, and not where `NO_COLOR` is set.

use console::Style;

/// Words that a line on standard error begins with, and how they look.
fn of_prefix(word: &str) -> Option<Style> {
    match word {
        "error" => Some(Style::new().red().bold()),
        "warning" => Some(Style::new().yellow().bold()),
        _ => None,
    }
}

/// A line for standard error: `error` and `warning` at its beginning stand out.
pub(crate) fn marked(text: &str) -> String {
    let prefix = text.split_once(": ");
    match prefix.and_then(|(word, rest)| Some((word, of_prefix(word)?, rest))) {
        Some((word, style, rest)) => format!("{}: {rest}", style.for_stderr().apply_to(word)),
        None => text.to_owned(),
    }
}

/// A verdict for standard output by its first words: whether all is well, or what is not.
pub(crate) fn verdict(text: &str) -> String {
    let style = |word: &str| match word {
        "healthy" => Style::new().green(),
        _ => Style::new().red().bold(),
    };
    let end = text.find([':', ',']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    format!("{}{rest}", style(word).apply_to(word))
}

/// How the state of a broker looks: what somebody should do something about stands out.
pub(crate) fn of_state(state: &str) -> Style {
    let word = state.split([' ', ',']).next().unwrap_or_default();
    match word {
        "NORMAL" => Style::new().green(),
        "SILENT" | "REFUSED" | "GONE" => Style::new().red().bold(),
        _ => Style::new().yellow(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text without escape sequences: the tests may run in a terminal.
    fn plain(text: &str) -> String {
        let mut parts = text.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest));
        first + &rest.collect::<String>()
    }

    #[test]
    fn colours_change_no_letter() {
        for text in [
            "error: no",
            "warning: so",
            "error:no",
            "note: x",
            "errors: 1",
        ] {
            assert_eq!(plain(&marked(text)), text);
        }
        for text in ["healthy: all", "NOT HEALTHY, 2 problems: x", "well"] {
            assert_eq!(plain(&verdict(text)), text);
        }
    }

    #[test]
    fn what_is_not_well_stands_out() {
        let coloured = |state| {
            of_state(state)
                .force_styling(true)
                .apply_to(state)
                .to_string()
        };
        assert!(coloured("NORMAL").starts_with("\u{1b}[32m"));
        assert!(coloured("DRAINING, 12 left").starts_with("\u{1b}[33m"));
        assert!(coloured("SILENT").starts_with("\u{1b}[31m"));
    }
}
