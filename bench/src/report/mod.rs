//! Tables of what a session measured.

mod document;
mod kept;
mod tables;
mod targets;
mod text;

pub use text::one_line;

use std::path::Path;

use anyhow::{Context, Result};

use crate::args::ReportArgs;
use crate::results::Results;

/// `kera-bench report`.
pub fn run(args: &ReportArgs) -> Result<()> {
    let results = Results::read(&args.results)?;
    match &args.document {
        None => print!("{}", render(&results)),
        Some(document) => {
            let folder = document.parent().unwrap_or(Path::new(""));
            let path = args.results.strip_prefix(folder).unwrap_or(&args.results);
            into_document(&results, document, &path.display().to_string())?;
        }
    }
    Ok(())
}

/// The section of a session, in Markdown.
pub fn render(results: &Results) -> String {
    let mut out = format!("## {}: `{}`\n\n", results.title, results.command);
    out.push_str(&text::conditions(results));
    out.push_str(&targets::summary(results));
    out.push_str(&tables::all(results));
    out
}

/// Writes the section into a document, with a link to the raw results; the rest of it stays.
pub fn into_document(results: &Results, path: &Path, link: &str) -> Result<()> {
    let old =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let section = format!(
        "{}\nEvery run, with configurations, client CPU, memory and bytes written: [{link}]({link}).\n",
        render(results)
    );
    let new = document::replace(&old, &results.title, &section)
        .with_context(|| format!("in {}", path.display()))?;
    std::fs::write(path, new).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests;
