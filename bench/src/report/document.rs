//! A generated section within a document that people write.

use anyhow::{Result, bail};

/// Puts `section` between the marks of `title`; at the end, with marks, if there are none.
pub fn replace(document: &str, title: &str, section: &str) -> Result<String> {
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
        (None, None) => Ok(format!(
            "{}\n\n{begin}\n{section}\n{end}\n",
            document.trim_end()
        )),
        _ => bail!("only one of the two marks of `{title}` is there"),
    }
}
