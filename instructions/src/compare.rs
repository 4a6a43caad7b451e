//! What was counted against what is recorded.

use std::fmt;

/// How a count stands to the one that is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Within the tolerance.
    Same,
    /// More work than recorded, by this share.
    More { share: f64 },
    /// Less; to be recorded, so that it stays so.
    Less { share: f64 },
    /// Nothing is recorded.
    Unknown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => write!(f, "as recorded"),
            Self::More { share } => write!(f, "{:.1} % MORE than recorded", share * 100.0),
            Self::Less { share } => write!(f, "{:.1} % LESS than recorded", share * 100.0),
            Self::Unknown => write!(f, "NOT RECORDED"),
        }
    }
}

/// Compares `count` with the recorded one; `tolerance` is a share of that.
pub(crate) fn compare(recorded: Option<u64>, count: u64, tolerance: f64) -> Verdict {
    let Some(recorded) = recorded.filter(|&recorded| recorded > 0) else {
        return Verdict::Unknown;
    };
    let share = count as f64 / recorded as f64 - 1.0;
    if share > tolerance {
        Verdict::More { share }
    } else if share < -tolerance {
        Verdict::Less { share: -share }
    } else {
        Verdict::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_the_tolerance_is_the_same() {
        assert_eq!(compare(Some(1000), 1049, 0.05), Verdict::Same);
        assert_eq!(compare(Some(1000), 951, 0.05), Verdict::Same);
        assert!(matches!(
            compare(Some(1000), 1060, 0.05),
            Verdict::More { .. }
        ));
        assert!(matches!(
            compare(Some(1000), 940, 0.05),
            Verdict::Less { .. }
        ));
        assert_eq!(compare(None, 1, 0.05), Verdict::Unknown);
        assert_eq!(compare(Some(0), 1, 0.05), Verdict::Unknown);
    }
}
