//! Plots of what sessions measured, as SVG.

mod chart;
mod figure;
mod theme;

use anyhow::{Context, Result};

use self::figure::Figure;
use crate::results::Results;
use crate::scenario::Plot;

/// A plot as SVG: readable on light and dark pages, text as text. The same results give the same
/// bytes. An error if there is nothing to draw.
pub(super) fn draw(results: &Results, plot: &Plot) -> Result<String> {
    let figure = Figure::of(results, plot).with_context(|| format!("plot {}", plot.name))?;
    chart::draw(&figure).with_context(|| format!("plot {}", plot.name))
}

#[cfg(test)]
mod tests;
