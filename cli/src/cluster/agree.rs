//! Asking before an act that changes a cluster.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::Failure;

/// Asks whoever sits at the terminal; elsewhere `--yes` is what agrees to `act`. A no says what was `spared`.
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
