//! How commands end: exit statuses and what is said about failures.

use std::fmt;
use std::process::ExitCode;

use crate::output::{marked, say};

/// What every command returns.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Exit status of a command that was not understood.
const NOT_UNDERSTOOD: u8 = 2;

/// Why a command did not succeed.
pub(crate) enum Failure {
    /// The command line or a configuration is wrong: exit status 2.
    Usage(String),
    /// The command failed: exit status 1.
    Failed(anyhow::Error),
}

impl Failure {
    /// A failure with a message for people: lowercase, no full stop, saying what to do.
    pub(crate) fn message(text: impl fmt::Display) -> Self {
        Failure::Failed(anyhow::anyhow!("{text}"))
    }

    /// What went wrong, in one line.
    pub(crate) fn text(&self) -> String {
        match self {
            Failure::Usage(text) => text.lines().collect::<Vec<_>>().join("; "),
            Failure::Failed(error) => chain(error),
        }
    }

    /// Says what went wrong on standard error.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::Usage(text) => {
                for line in text.lines() {
                    eprintln!("{}", marked(&format!("error: {line}")));
                }
                ExitCode::from(NOT_UNDERSTOOD)
            }
            // Whoever read our output has had enough, as `head` does. That is no failure.
            Failure::Failed(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
            Failure::Failed(error) => {
                say(&format!("error: {}", chain(&error)));
                ExitCode::FAILURE
            }
        }
    }
}

/// A text as a terminal may show it: some of it may be another program's words, which are to move no cursor.
fn shown(text: &str) -> String {
    let control = |c: char| c.is_control() && c != '\n';
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match control(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// The causes of an error in one line, without those that an outer one repeats.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = shown(&cause.to_string());
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Failed(error.into())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) => write!(f, "Usage({text})"),
            Failure::Failed(error) => write!(f, "Failed({error:#})"),
        }
    }
}

/// Standard output was closed by its reader.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for OutputClosed {}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_are_not_repeated() {
        let inner = std::io::Error::other("disk on fire");
        let error = Err::<(), _>(inner)
            .context("cannot write a.log: disk on fire")
            .context("cannot flush")
            .unwrap_err();
        assert_eq!(
            chain(&error),
            "cannot flush: cannot write a.log: disk on fire"
        );
    }

    #[test]
    fn what_another_program_says_moves_no_cursor() {
        let error = anyhow::anyhow!("refused: \u{1b}[31mred\u{7}\r");
        assert_eq!(chain(&error), "refused: \\u{1b}[31mred\\u{7}\\r");
    }

    #[test]
    fn statuses() {
        // ExitCode has no equality; its debug form tells them apart.
        let shown = |code: ExitCode| format!("{code:?}");
        assert_eq!(
            shown(Failure::Usage("x".into()).report()),
            shown(ExitCode::from(2))
        );
        assert_eq!(
            shown(Failure::message("x").report()),
            shown(ExitCode::from(1))
        );
        assert_eq!(
            shown(Failure::from(OutputClosed).report()),
            shown(ExitCode::SUCCESS)
        );
    }
}
