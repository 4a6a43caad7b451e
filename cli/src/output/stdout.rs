//! Standard output that ends quietly when its reader goes away.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde::Serialize;

use super::paragraph;
use super::plain::plain_lines;
use crate::failure::{Failure, OutputClosed};

/// Buffered standard output. A reader that goes away becomes [`OutputClosed`].
pub(crate) struct Out<W: Write = StdoutLock<'static>> {
    inner: BufWriter<W>,
}

impl Out {
    /// Takes standard output.
    pub(crate) fn stdout() -> Self {
        Self::new(io::stdout().lock())
    }
}

impl<W: Write> Out<W> {
    /// Writes to any writer; for tests.
    pub(crate) fn new(writer: W) -> Self {
        Self {
            inner: BufWriter::with_capacity(64 << 10, writer),
        }
    }

    /// Writes bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        closed(self.inner.write_all(bytes))
    }

    /// Writes a line, or several, for people. Names that other programs chose do nothing to their terminal.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        closed(writeln!(self.inner, "{}", plain_lines(&text.to_string())))
    }

    /// Hands everything to the reader.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        closed(self.inner.flush())
    }
}

fn closed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        Err(error) => Err(Failure::message(format!(
            "cannot write to standard output: {error}; check what it is connected to"
        ))),
    }
}

/// Prints a line.
pub(crate) fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = Out::stdout();
    out.line(text)?;
    out.flush()
}

/// Prints bytes as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = Out::stdout();
    out.bytes(bytes)?;
    out.flush()
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_bytes(format!("{}\n", serde_json::to_string_pretty(value)?).as_bytes())
}

/// Commands that come next, each with what it does. Only people are told.
pub(crate) fn next(out: &mut Out, steps: &[(String, &str)]) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        return Ok(());
    }
    out.line("\nnext:")?;
    for (command, what) in steps {
        out.line(paragraph(&format!("  {what}:")))?;
        out.line(format_args!("    {command}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_goes_away_is_told_from_other_failures() {
        let mut out = Out::new(Gone);
        out.line("x").unwrap();
        let Err(Failure::Failed(error)) = out.flush() else {
            panic!("the flush cannot have worked")
        };
        assert!(error.is::<OutputClosed>());
        // Nothing is left for the drop to write.
        std::mem::forget(out);
    }
}
