//! A generated section within a document that people write.

use anyhow::{Result, bail};

/// Sections that a document does not have yet go before this line, if it is there.
pub(crate) const MORE: &str = "<!-- kera-bench: further sections go above -->";

/// The section of [`super::summary`], which a document has only if it has its marks. A plot of this
/// name stands in it.
pub(crate) const SUMMARY: &str = "summary";

/// True if the document has marks of `title`.
pub(crate) fn has(document: &str, title: &str) -> bool {
    document.contains(&format!("<!-- kera-bench: {title}, "))
}

/// Puts `section` between the marks of `title`. If there are none it goes, with marks, before the
/// line of [`MORE`], or at the end.
pub(crate) fn replace(document: &str, title: &str, section: &str) -> Result<String> {
    let begin = format!("<!-- kera-bench: {title}, begin -->");
    let end = format!("<!-- kera-bench: {title}, end -->");
    let section = section.trim_end();
    match (document.split_once(&begin), document.split_once(&end)) {
        (Some((before, after_begin)), Some((before_end, after))) => {
            if document.matches(&begin).count() > 1 || document.matches(&end).count() > 1 {
                bail!("the marks of `{title}` come more than once");
            }
            if !after_begin.contains(&end) || before_end.len() < before.len() {
                bail!("the marks of `{title}` are in the wrong order");
            }
            Ok(format!("{before}{begin}\n{section}\n{end}{after}"))
        }
        (None, None) => Ok(match document.split_once(MORE) {
            Some((before, after)) => {
                format!("{before}{begin}\n{section}\n{end}\n\n{MORE}{after}")
            }
            None => format!("{}\n\n{begin}\n{section}\n{end}\n", document.trim_end()),
        }),
        _ => bail!("only one of the two marks of `{title}` is there"),
    }
}
