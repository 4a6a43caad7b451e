//! How wide a line may be.

/// Columns of the terminal that standard output goes to, or what `COLUMNS` says; `None` where output goes to a
/// file or a program, which get lines as long as they are.
pub(super) fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok();
    if let Some(columns) = told.and_then(|text| text.parse().ok()) {
        return Some(columns);
    }
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(usize::from(columns))
}
