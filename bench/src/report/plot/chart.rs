//! A figure as SVG, by the crate `plotters`.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figure::{Figure, Panel, Place, Series};
use super::scale::{Scale, mark};
use super::theme::{self, Colour};
use crate::report::text;
use crate::scenario::{Contender, PlotKind};

/// Pixels; a document scales it to its width.
const WIDTH: i32 = 760;
const PANEL: i32 = 320;
const EDGE: i32 = 14;
const TITLE: i32 = 38;
const LINE: i32 = 18;
/// Below the bars' axis: labels of two lines.
const BELOW: i32 = 46;
/// Left of the axis: its numbers.
const LEFT: i32 = 58;

const SMALL: f64 = 12.0;
const PLAIN: f64 = 12.5;
const LARGE: f64 = 17.0;

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// Draws a figure. The same figure gives the same bytes.
pub(super) fn draw(figure: &Figure) -> Result<String> {
    let contenders = contenders(figure);
    let legend = if labelled_bars(figure) {
        Vec::new()
    } else {
        legend(figure, &contenders)
    };
    let caption = wrap(
        &figure.caption,
        (f64::from(WIDTH - 2 * EDGE) / width("n", SMALL)) as usize,
    );
    let rows = legend.iter().map(|entry| entry.row + 1).max().unwrap_or(0);
    let top = TITLE + rows * LINE;
    let height = top + PANEL + LINE * caption.len() as i32 + EDGE;
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, height as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let title = font(LARGE, theme::INK, HPos::Left, VPos::Top, true);
        write(&root, &figure.title, &title, (EDGE, EDGE))?;
        for entry in &legend {
            entry.draw(&root)?;
        }
        let each = WIDTH / figure.panels.len().max(1) as i32;
        for (turn, panel) in figure.panels.iter().enumerate() {
            let left = each * turn as i32;
            let area = root
                .clone()
                .shrink((left, top), (each as u32, PANEL as u32));
            draw_panel(&root, &area, figure, panel, &contenders, (left, top))?;
        }
        let faint = font(SMALL, theme::FAINT, HPos::Left, VPos::Top, false);
        for (turn, line) in caption.iter().enumerate() {
            let y = top + PANEL + 2 + LINE * turn as i32;
            write(&root, line, &faint, (EDGE, y))?;
        }
        root.present().map_err(problem)?;
    }
    Ok(finish(&svg, figure))
}

/// Adds what the crate does not write: the words for those who cannot see it, and the style.
fn finish(svg: &str, figure: &Figure) -> String {
    let (head, body) = svg.split_once('>').unwrap_or((svg, ""));
    format!(
        "{head} role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n{}{}",
        escape(&figure.title),
        escape(&figure.caption),
        theme::style(),
        body.trim_start()
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn problem<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

fn font(size: f64, colour: Colour, h: HPos, v: VPos, bold: bool) -> TextStyle<'static> {
    let style = if bold {
        FontStyle::Bold
    } else {
        FontStyle::Normal
    };
    // The crate divides by this before it writes.
    let font = ("sans-serif", size * 1.24).into_font().style(style);
    TextStyle {
        font,
        color: colour.rgb().to_backend_color(),
        pos: Pos::new(h, v),
    }
}

fn write(root: &Root, text: &str, style: &TextStyle, at: (i32, i32)) -> Result<()> {
    root.draw_text(text, style, at).map_err(problem)
}

/// About how wide a text is; there is no font to ask.
fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.54
}

/// Breaks a text into lines of at most `most` characters, where a word allows it.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// True if each bar has its contender's name below it, so that no legend is needed.
fn labelled_bars(figure: &Figure) -> bool {
    figure.kind == PlotKind::Bars && figure.across.is_none()
}

fn contenders(figure: &Figure) -> Vec<Contender> {
    let mut all = Vec::new();
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if !all.contains(&series.contender) {
            all.push(series.contender);
        }
    }
    all
}

/// A series' name with its mark.
struct Entry {
    label: String,
    colour: Colour,
    variant: usize,
    kind: PlotKind,
    x: i32,
    row: i32,
}

impl Entry {
    fn draw(&self, root: &Root) -> Result<()> {
        let y = TITLE + LINE * self.row + LINE / 2;
        match self.kind {
            PlotKind::Lines => {
                let line = [(self.x, y), (self.x + 22, y)];
                let line = PathElement::new(line, self.colour.rgb().stroke_width(2));
                root.draw(&line).map_err(problem)?;
                dot(root, (self.x + 11, y), self.colour, self.variant)?;
            }
            PlotKind::Bars => {
                let corners = [(self.x + 6, y - 6), (self.x + 20, y + 6)];
                let style = bar_style(self.colour, self.variant);
                root.draw(&Rectangle::new(corners, style))
                    .map_err(problem)?;
            }
        }
        let style = font(PLAIN, theme::INK, HPos::Left, VPos::Center, false);
        write(root, &self.label, &style, (self.x + 28, y))
    }
}

/// Every series once, in rows.
fn legend(figure: &Figure, contenders: &[Contender]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let (mut x, mut row) = (EDGE, 0);
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if entries.iter().any(|entry| entry.label == series.label) {
            continue;
        }
        let wide = 46 + width(&series.label, PLAIN) as i32;
        if x > EDGE && x + wide > WIDTH {
            (x, row) = (EDGE, row + 1);
        }
        entries.push(Entry {
            label: series.label.clone(),
            colour: theme::colour(series.contender, contenders),
            variant: series.variant,
            kind: figure.kind,
            x,
            row,
        });
        x += wide;
    }
    entries
}

/// Bars of one contender's series differ by how full they are.
fn bar_style(colour: Colour, variant: usize) -> ShapeStyle {
    let full = [1.0, 0.6, 0.35, 0.8][variant % 4];
    colour.rgb().mix(full).filled()
}

/// A point; one contender's series differ by its shape.
fn dot(root: &Root, (x, y): (i32, i32), colour: Colour, variant: usize) -> Result<()> {
    let rgb = colour.rgb();
    let corners = [(x - 4, y - 4), (x + 4, y + 4)];
    match variant % 4 {
        0 => root.draw(&Circle::new((x, y), 4, rgb.filled())),
        1 => root.draw(&Rectangle::new(corners, rgb.filled())),
        2 => root.draw(&Circle::new((x, y), 5, rgb.stroke_width(2))),
        _ => root.draw(&Rectangle::new(corners, rgb.stroke_width(2))),
    }
    .map_err(problem)
}

/// The span from least to most, with ends.
fn whisker(root: &Root, x: i32, (low, high): (i32, i32), colour: Colour) -> Result<()> {
    let style = colour.rgb().stroke_width(1);
    for line in [
        [(x, low), (x, high)],
        [(x - 4, low), (x + 4, low)],
        [(x - 4, high), (x + 4, high)],
    ] {
        root.draw(&PathElement::new(line, style)).map_err(problem)?;
    }
    Ok(())
}

fn draw_panel(
    root: &Root,
    area: &Root,
    figure: &Figure,
    panel: &Panel,
    contenders: &[Contender],
    (left, top): (i32, i32),
) -> Result<()> {
    let quantity = font(PLAIN, theme::INK, HPos::Left, VPos::Top, false);
    write(root, &panel.quantity, &quantity, (left + EDGE, top + 6))?;
    let values = panel
        .series
        .iter()
        .flat_map(|one| one.values.iter().flatten());
    let ends = values.flat_map(|value| [value.least, value.median, value.most]);
    let y = if figure.log_y {
        Scale::log(ends)
    } else {
        Scale::linear(ends)
    };
    let places = panel_places(figure, panel);
    let at: Vec<f64> = places.iter().map(|place| place.at).collect();
    let span = at.iter().copied().fold(0.0, f64::max) - at.iter().copied().fold(f64::MAX, f64::min);
    let margin = match figure.kind {
        PlotKind::Bars => 0.5,
        PlotKind::Lines if span > 0.0 => span * 0.06,
        PlotKind::Lines => 1.0,
    };
    let base = y.from;
    let mut chart = ChartBuilder::on(area)
        .margin_top(30)
        .margin_right(EDGE)
        .y_label_area_size(LEFT)
        .x_label_area_size(BELOW)
        .build_cartesian_2d(Scale::places(&at, margin), y)
        .map_err(problem)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(theme::grid())
        .light_line_style(TRANSPARENT)
        .axis_style(theme::FAINT.rgb())
        .label_style(font(SMALL, theme::INK, HPos::Left, VPos::Top, false))
        .x_label_formatter(&|_| String::new())
        .y_label_formatter(&|value| mark(*value))
        .draw()
        .map_err(problem)?;
    draw_places(root, &chart, &places, base)?;
    if let Some(across) = &figure.across {
        let (from, to) = chart.plotting_area().get_x_axis_pixel_range().into_ends();
        let style = font(SMALL, theme::FAINT, HPos::Center, VPos::Top, false);
        write(root, across, &style, ((from + to) / 2, top + PANEL - 22))?;
    }
    match figure.kind {
        PlotKind::Lines => {
            for series in &panel.series {
                draw_line(root, &chart, series, &places, contenders)?;
            }
        }
        PlotKind::Bars => draw_bars(root, &chart, figure, panel, contenders, base)?,
    }
    Ok(())
}

/// Both ends of a range of pixels.
trait Ends {
    fn into_ends(self) -> (i32, i32);
}

impl Ends for std::ops::Range<i32> {
    fn into_ends(self) -> (i32, i32) {
        (self.start, self.end)
    }
}

/// The marks of the horizontal axis: places, or each bar.
fn panel_places(figure: &Figure, panel: &Panel) -> Vec<Place> {
    if !labelled_bars(figure) {
        return figure.places.clone();
    }
    let bars = panel.series.iter().zip(0u32..);
    bars.map(|(series, turn)| Place {
        label: series.label.clone(),
        at: f64::from(turn),
    })
    .collect()
}

/// Labels below the axis, in at most two lines each.
fn draw_places(root: &Root, chart: &Chart, places: &[Place], base: f64) -> Result<()> {
    let style = font(SMALL, theme::INK, HPos::Center, VPos::Top, false);
    for place in places {
        let (x, y) = chart.backend_coord(&(place.at, base));
        let lines = match place.label.parse::<u64>() {
            Ok(number) if number >= 10_000 => vec![text::thousands(number as f64)],
            _ => wrap(&place.label, 14),
        };
        let (first, rest) = lines
            .split_first()
            .map_or(("", String::new()), |(one, rest)| {
                (one.as_str(), rest.join(" "))
            });
        write(root, first, &style, (x, y + 7))?;
        if !rest.is_empty() {
            write(root, &rest, &style, (x, y + 22))?;
        }
    }
    Ok(())
}

fn draw_line(
    root: &Root,
    chart: &Chart,
    series: &Series,
    places: &[Place],
    contenders: &[Contender],
) -> Result<()> {
    let colour = theme::colour(series.contender, contenders);
    let known = || {
        let values = places.iter().zip(&series.values);
        values.filter_map(|(place, value)| Some((place.at, value.as_ref()?)))
    };
    let points: Vec<_> = known()
        .map(|(at, value)| chart.backend_coord(&(at, value.median)))
        .collect();
    let line = PathElement::new(points.clone(), colour.rgb().stroke_width(2));
    root.draw(&line).map_err(problem)?;
    for ((at, value), point) in known().zip(points) {
        let (_, low) = chart.backend_coord(&(at, value.least));
        let (_, high) = chart.backend_coord(&(at, value.most));
        whisker(root, point.0, (low, high), colour)?;
        dot(root, point, colour, series.variant)?;
    }
    Ok(())
}

fn draw_bars(
    root: &Root,
    chart: &Chart,
    figure: &Figure,
    panel: &Panel,
    contenders: &[Contender],
    base: f64,
) -> Result<()> {
    let labelled = labelled_bars(figure);
    let count = panel.series.len().max(1) as f64;
    let wide = if labelled { 0.56 } else { 0.8 / count };
    let number = font(SMALL, theme::INK, HPos::Center, VPos::Bottom, false);
    for (turn, series) in panel.series.iter().enumerate() {
        let colour = theme::colour(series.contender, contenders);
        for (place, value) in figure.places.iter().zip(&series.values) {
            let Some(value) = value else {
                continue;
            };
            let middle = if labelled {
                turn as f64
            } else {
                place.at + (turn as f64 - (count - 1.0) / 2.0) * wide
            };
            let half = wide * 0.46;
            let (left, bottom) = chart.backend_coord(&(middle - half, base));
            let (right, top) = chart.backend_coord(&(middle + half, value.median));
            let style = bar_style(colour, series.variant);
            let bar = Rectangle::new([(left, top), (right, bottom)], style);
            root.draw(&bar).map_err(problem)?;
            let (x, low) = chart.backend_coord(&(middle, value.least));
            let (_, high) = chart.backend_coord(&(middle, value.most));
            if value.values > 1 {
                whisker(root, x, (low, high), theme::INK)?;
            }
            write(
                root,
                &text::short(value.median),
                &number,
                (x, high.min(top) - 3),
            )?;
        }
    }
    Ok(())
}
