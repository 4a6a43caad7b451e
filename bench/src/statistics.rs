//! Median and spread.

use serde::{Deserialize, Serialize};

/// The middle of several values, with the least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    /// How many values there were.
    pub values: usize,
}

impl Summary {
    /// `None` if there are no values, or if one of them is no number.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self {
            median,
            least: values[0],
            most: values[values.len() - 1],
            values: values.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_both_ends() {
        let summary = Summary::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!(
            (summary.least, summary.median, summary.most),
            (1.0, 3.0, 5.0)
        );
        assert_eq!(Summary::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Summary::of([7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn nothing_has_no_middle() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([1.0, f64::NAN]), None);
    }
}
