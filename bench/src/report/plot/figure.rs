//! What a plot shows: values by series and place, before anything is drawn.

use anyhow::{Result, bail, ensure};

use crate::report::tables::{DIMENSIONS, Dimension};
use crate::report::text;
use crate::results::{CaseRuns, Results};
use crate::scenario::{Axis, Case, Contender, Measure, Plot, PlotKind};
use crate::statistics::Summary;

/// A plot's contents.
pub(super) struct Figure {
    pub kind: PlotKind,
    pub log_y: bool,
    pub title: String,
    pub caption: String,
    /// Along the horizontal axis, in order; the same in every panel.
    pub places: Vec<Place>,
    /// What the places are, such as `partitions`; none if there is one place only.
    pub across: Option<String>,
    pub panels: Vec<Panel>,
}

/// A place along the horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub label: String,
    /// Where it lies: a number of the dimension, its logarithm to base 2, or its turn.
    pub at: f64,
}

/// One quantity.
pub(super) struct Panel {
    /// The quantity with its unit.
    pub quantity: String,
    pub series: Vec<Series>,
}

/// One line, or the bars of one colour.
pub(super) struct Series {
    pub contender: Contender,
    /// Which of the contender's series it is, from 0.
    pub variant: usize,
    pub label: String,
    /// By place; in the unit that the panel names.
    pub values: Vec<Option<Summary>>,
}

impl Figure {
    /// Gathers what `plot` shows of a session; an error if there is nothing to show.
    pub(super) fn of(results: &Results, plot: &Plot) -> Result<Self> {
        let cases: Vec<&CaseRuns> = results
            .cases
            .iter()
            .filter(|runs| runs.case.scenario == plot.scenario)
            .filter(|runs| {
                let name = runs.case.name();
                plot.cases.iter().all(|part| name.contains(part))
            })
            .collect();
        ensure!(
            !cases.is_empty(),
            "there is no case of `{}` to draw",
            plot.scenario
        );
        let over = plot.over.as_deref().map(dimension).transpose()?;
        // What differs between cases of one place; what only goes along with the place does not.
        let place = |runs: &CaseRuns| over.map(|(_, show)| show(&runs.case));
        let apart = |show: fn(&Case) -> String| {
            cases.iter().enumerate().any(|(turn, one)| {
                let others = cases[..turn]
                    .iter()
                    .filter(|other| place(other) == place(one));
                others
                    .into_iter()
                    .any(|other| show(&other.case) != show(&one.case))
            })
        };
        let varies: Vec<Dimension> = DIMENSIONS
            .into_iter()
            .filter(|(name, show)| over.is_none_or(|(over, _)| over != *name) && apart(*show))
            .collect();
        let places = places(&cases, over, plot)?;
        let contenders = contenders(&cases, plot);
        let mut panels = Vec::new();
        for &measure in &plot.measure {
            let mut series = Vec::new();
            for &contender in &contenders {
                series.extend(lines(
                    &cases,
                    (contender, &contenders),
                    measure,
                    over,
                    &varies,
                    &places,
                )?);
            }
            panels.push(Panel {
                quantity: text::title(measure).to_owned(),
                series,
            });
        }
        number_variants(&mut panels);
        let figure = Self {
            kind: plot.kind,
            log_y: plot.is_log(Axis::Y),
            title: plot.title.clone(),
            caption: plot.caption.clone(),
            places,
            across: plot.over.clone(),
            panels,
        };
        figure.check()?;
        Ok(figure)
    }

    fn check(&self) -> Result<()> {
        for panel in &self.panels {
            let values = || {
                panel
                    .series
                    .iter()
                    .flat_map(|one| one.values.iter().flatten())
            };
            ensure!(
                values().next().is_some(),
                "no run told the {} of what it draws",
                panel.quantity
            );
            ensure!(
                !self.log_y || values().all(|value| value.least > 0.0),
                "{}: a value of 0 has no place on a logarithmic axis",
                panel.quantity
            );
        }
        Ok(())
    }
}

fn dimension(name: &str) -> Result<Dimension> {
    match DIMENSIONS.into_iter().find(|(one, _)| *one == name) {
        Some(found) => Ok(found),
        None => {
            let names = DIMENSIONS.map(|(name, _)| name).join(", ");
            bail!("`over` names {name}, which is none of {names}")
        }
    }
}

/// Those that the plot names, in its order; all of the cases' without.
fn contenders(cases: &[&CaseRuns], plot: &Plot) -> Vec<Contender> {
    if !plot.contenders.is_empty() {
        return plot.contenders.clone();
    }
    let all = cases.iter().flat_map(|runs| runs.case.contenders.clone());
    let mut all: Vec<_> = all.collect();
    all.sort();
    all.dedup();
    all
}

/// The places of all cases: by number where every label is one, in order of appearance elsewhere.
fn places(cases: &[&CaseRuns], over: Option<Dimension>, plot: &Plot) -> Result<Vec<Place>> {
    let Some((name, show)) = over else {
        return Ok(vec![Place {
            label: String::new(),
            at: 0.0,
        }]);
    };
    let mut labels: Vec<String> = Vec::new();
    for label in cases.iter().map(|runs| show(&runs.case)) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    let mut numbers: Vec<(Option<f64>, String)> = labels
        .into_iter()
        .map(|label| (number(&label), label))
        .collect();
    let numeric = numbers.iter().all(|(number, _)| number.is_some());
    if numeric {
        numbers.sort_by(|(one, _), (other, _)| {
            one.unwrap_or_default()
                .total_cmp(&other.unwrap_or_default())
        });
    }
    let log = plot.is_log(Axis::X);
    let in_turn = plot.kind == PlotKind::Bars || !numeric;
    let mut places = Vec::new();
    for (turn, (number, label)) in numbers.into_iter().enumerate() {
        let at = match number {
            Some(number) if !in_turn && log => {
                ensure!(
                    number > 0.0,
                    "{name} {label} has no place on a logarithmic axis"
                );
                number.log2()
            }
            Some(number) if !in_turn => number,
            _ => turn as f64,
        };
        places.push(Place { label, at });
    }
    Ok(places)
}

/// The number that a label says, in base units: `16 KiB` is 16,384.
fn number(label: &str) -> Option<f64> {
    let (digits, unit) = label.split_once(' ').unwrap_or((label, ""));
    let factor = match unit {
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => 1.0,
    };
    let number: f64 = digits.replace(',', "").parse().ok()?;
    Some(number * factor)
}

/// Gives each of a contender's series a number that is the same in every panel.
fn number_variants(panels: &mut [Panel]) {
    let mut labels: Vec<(Contender, String)> = Vec::new();
    for series in panels.iter_mut().flat_map(|panel| &mut panel.series) {
        let entry = (series.contender, series.label.clone());
        if !labels.contains(&entry) {
            labels.push(entry.clone());
        }
        let ours = labels.iter().filter(|(one, _)| *one == series.contender);
        let variant = ours
            .into_iter()
            .position(|(_, label)| *label == series.label);
        series.variant = variant.unwrap_or(0);
    }
}

/// A contender as a legend calls it. Beside Kera's own clients it is said that others are others'.
fn name(contender: Contender, all: &[Contender]) -> &'static str {
    if contender == Contender::Kera && all.contains(&Contender::KeraNative) {
        "Kera, Kafka clients"
    } else {
        contender.title()
    }
}

/// A contender's series: one for each combination of what else varies.
fn lines(
    cases: &[&CaseRuns],
    (contender, all): (Contender, &[Contender]),
    measure: Measure,
    over: Option<Dimension>,
    varies: &[Dimension],
    places: &[Place],
) -> Result<Vec<Series>> {
    let mut out: Vec<Series> = Vec::new();
    for runs in cases {
        let Some(summary) = text::summary(runs, contender, measure) else {
            continue;
        };
        let mut label = name(contender, all).to_owned();
        for (name, show) in varies {
            label.push_str(&format!(", {name} {}", show(&runs.case)));
        }
        let place = over.map(|(_, show)| show(&runs.case)).unwrap_or_default();
        let Some(place) = places.iter().position(|one| one.label == place) else {
            continue;
        };
        let at = match out.iter().position(|one| one.label == label) {
            Some(at) => at,
            None => {
                out.push(Series {
                    contender,
                    variant: 0,
                    label,
                    values: vec![None; places.len()],
                });
                out.len() - 1
            }
        };
        let scaled = |value| text::scaled(measure, value);
        let value = Summary {
            median: scaled(summary.median),
            least: scaled(summary.least),
            most: scaled(summary.most),
            values: summary.values,
        };
        let old = out[at].values[place].replace(value);
        ensure!(
            old.is_none(),
            "two cases fall on one place ({}); choose between them with `cases`",
            runs.case.name()
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_numbers_where_they_can_be() {
        assert_eq!(number("16 KiB"), Some(16384.0));
        assert_eq!(number("10,000"), Some(10_000.0));
        assert_eq!(number("0.5 ms"), Some(0.5));
        assert_eq!(number("all"), None);
    }
}
