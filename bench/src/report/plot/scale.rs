//! Axes: which range they span, and where their marks are.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Marks that an axis has at most, or about.
const MARKS: f64 = 6.0;

/// An axis; every value that it was made of lies within it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    pub from: f64,
    pub to: f64,
    pub log: bool,
    pub marks: Vec<f64>,
}

impl Scale {
    /// From 0 to a round number above every value.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / MARKS;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(power * 10.0);
        let count = (most / step - 1e-9).ceil();
        Self {
            from: 0.0,
            to: count * step,
            log: false,
            marks: (0..=count as u32).map(|n| f64::from(n) * step).collect(),
        }
    }

    /// Between round numbers below and above every value; all must be above 0.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            least = least.min(value);
            most = most.max(value);
        }
        if !least.is_finite() || least <= 0.0 {
            (least, most) = (1.0, 10.0);
        }
        let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        let factors: &[f64] = if last - first > 3 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let all: Vec<f64> = (first..=last)
            .flat_map(|power| factors.iter().map(move |one| one * 10f64.powi(power)))
            .collect();
        let below = all.iter().copied().filter(|mark| *mark <= least);
        let from = below.fold(10f64.powi(first), f64::max);
        let above = all
            .iter()
            .copied()
            .filter(|mark| *mark >= most && *mark > from);
        let to = above.fold(10f64.powi(last + 1), f64::min);
        Self {
            from,
            to,
            log: true,
            marks: all
                .into_iter()
                .filter(|mark| (from..=to).contains(mark))
                .collect(),
        }
    }

    /// Over places, with room of `margin` at both ends.
    pub(super) fn places(at: &[f64], margin: f64) -> Self {
        let least = at.iter().copied().fold(f64::INFINITY, f64::min);
        let most = at.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self {
            from: least - margin,
            to: most + margin,
            log: false,
            marks: at.to_vec(),
        }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let place = |value: f64| if self.log { value.log10() } else { value };
        let (from, to) = (place(self.from), place(self.to));
        let share = (place(*value) - from) / (to - from);
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.marks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        mark(*value)
    }
}

/// A mark's number: no more digits than it needs.
pub(super) fn mark(value: f64) -> String {
    if value >= 1000.0 {
        return crate::report::text::thousands(value);
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_nothing_and_holds_all() {
        let scale = Scale::linear([3.0, 8.7].into_iter());
        assert_eq!((scale.from, scale.to), (0.0, 10.0));
        assert_eq!(scale.marks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::linear([10.0].into_iter()).to, 10.0);
        assert_eq!(Scale::linear(std::iter::empty()).to, 1.0);
    }

    #[test]
    fn a_logarithmic_axis_holds_all() {
        let scale = Scale::log([55.0, 7_860.0].into_iter());
        assert_eq!((scale.from, scale.to), (50.0, 10_000.0));
        assert_eq!(scale.marks[..4], [50.0, 100.0, 200.0, 500.0]);
        let one = Scale::log([10.0].into_iter());
        assert!(one.from <= 10.0 && one.to > one.from, "{one:?}");
        let far = Scale::log([1.0, 2_000_000.0].into_iter());
        assert_eq!(far.marks.len(), 8, "{far:?}");
        // From the bottom up, as pixels go.
        assert_eq!(scale.map(&50.0, (300, 0)), 300);
        assert_eq!(scale.map(&10_000.0, (300, 0)), 0);
    }

    #[test]
    fn marks_are_short() {
        let shown: Vec<String> = [0.0, 0.5, 2.0, 2500.0].map(mark).into();
        assert_eq!(shown, ["0", "0.5", "2", "2,500"]);
    }
}
