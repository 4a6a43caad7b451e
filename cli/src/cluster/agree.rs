//! Asking before an act that changes a cluster.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::Failure;

/// Asks for a yes on the terminal. Without a terminal the error says to add `--yes` to `act`; after a no it says what was
/// `spared`.
pub(super) fn agree(question: &str, act: &str, spared: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("add --yes to {act}")));
    }
    eprint!("{question} Type yes to go on: ");
    std::io::stderr().flush()?;
    let mut typed = String::new();
    std::io::stdin().lock().read_line(&mut typed)?;
    match typed.trim() {
        "yes" | "y" => Ok(()),
        _ => Err(Failure::message(spared)),
    }
}
