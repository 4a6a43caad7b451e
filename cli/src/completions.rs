//! `kera completions`.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::failure::Outcome;
use crate::output::print_bytes;

/// Arguments of `kera completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera completions bash > ~/.local/share/bash-completion/completions/kera
  kera completions zsh > ~/.zfunc/_kera
  kera completions fish > ~/.config/fish/completions/kera.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell to complete for.
    pub shell: Shell,
}

/// Prints the completions.
pub(crate) fn run<C: CommandFactory>(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "kera", &mut script);
    print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
