//! A figure as SVG, by the crate `plotters`.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figure::{Figure, Panel, Place, Series};
use super::theme;
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
/// Marks that the vertical axis has at most, or about.
const MARKS: f64 = 6.0;

const SMALL: f64 = 12.0;
const PLAIN: f64 = 12.5;
const LARGE: f64 = 17.0;

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
        let title = font(LARGE, HPos::Left, VPos::Top, true);
        write(&root, &figure.title, &title, (EDGE, EDGE))?;
        for entry in &legend {
            entry.draw(&root)?;
        }
        let each = WIDTH / figure.panels.len().max(1) as i32;
        for (panel, turn) in figure.panels.iter().zip(0..) {
            let frame = Frame::of(figure, panel, (each * turn, top), each);
            draw_panel(&root, figure, panel, &contenders, &frame)?;
        }
        let faint = font(SMALL, HPos::Left, VPos::Top, false);
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
        theme::STYLE,
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

fn font(size: f64, h: HPos, v: VPos, bold: bool) -> TextStyle<'static> {
    let style = if bold {
        FontStyle::Bold
    } else {
        FontStyle::Normal
    };
    // The crate divides by this before it writes.
    let font = ("sans-serif", size * 1.24).into_font().style(style);
    TextStyle {
        font,
        color: theme::INK.to_backend_color(),
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
    colour: RGBColor,
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
                let line = PathElement::new(line, self.colour.stroke_width(2));
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
        let style = font(PLAIN, HPos::Left, VPos::Center, false);
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
fn bar_style(colour: RGBColor, variant: usize) -> ShapeStyle {
    let full = [1.0, 0.6, 0.35, 0.8][variant % 4];
    colour.mix(full).filled()
}

/// A point; one contender's series differ by its shape.
fn dot(root: &Root, (x, y): (i32, i32), colour: RGBColor, variant: usize) -> Result<()> {
    let corners = [(x - 4, y - 4), (x + 4, y + 4)];
    match variant % 4 {
        0 => root.draw(&Circle::new((x, y), 4, colour.filled())),
        1 => root.draw(&Rectangle::new(corners, colour.filled())),
        2 => root.draw(&Circle::new((x, y), 5, colour.stroke_width(2))),
        _ => root.draw(&Rectangle::new(corners, colour.stroke_width(2))),
    }
    .map_err(problem)
}

/// The span from least to most, with ends.
fn whisker(root: &Root, x: i32, (low, high): (i32, i32), colour: RGBColor) -> Result<()> {
    let style = colour.stroke_width(1);
    line(root, (x, low), (x, high), style)?;
    line(root, (x - 4, low), (x + 4, low), style)?;
    line(root, (x - 4, high), (x + 4, high), style)
}

/// Where a panel's values lie, in pixels.
struct Frame {
    /// Left, right, top and bottom.
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    places: Vec<Place>,
    /// Ends of the horizontal axis.
    across: (f64, f64),
    /// Marks of the vertical axis, from end to end.
    marks: Vec<f64>,
    log: bool,
}

impl Frame {
    fn of(figure: &Figure, panel: &Panel, (left, top): (i32, i32), wide: i32) -> Self {
        let values = panel.series.iter();
        let values = values.flat_map(|one| one.values.iter().flatten());
        let ends = values.flat_map(|value| [value.least, value.median, value.most]);
        let (least, most) = ends.fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| {
            (least.min(value), most.max(value))
        });
        let places = panel_places(figure, panel);
        let at = || places.iter().map(|place| place.at);
        let (first, last) = (at().fold(f64::MAX, f64::min), at().fold(f64::MIN, f64::max));
        let margin = match figure.kind {
            PlotKind::Bars => 0.5,
            PlotKind::Lines if last > first => (last - first) * 0.06,
            PlotKind::Lines => 1.0,
        };
        Self {
            left: left + LEFT,
            right: left + wide - EDGE,
            top: top + 30,
            bottom: top + PANEL - BELOW,
            places,
            across: (first - margin, last + margin),
            marks: match figure.log_y {
                true => log_marks(least, most),
                false => linear_marks(most),
            },
            log: figure.log_y,
        }
    }

    /// Where the vertical axis begins.
    fn base(&self) -> f64 {
        self.marks[0]
    }

    fn at(&self, x: f64, y: f64) -> (i32, i32) {
        let place = |value: f64| if self.log { value.log10() } else { value };
        let (low, high) = (place(self.base()), place(self.marks[self.marks.len() - 1]));
        let up = (place(y) - low) / (high - low) * f64::from(self.bottom - self.top);
        let (first, last) = self.across;
        let over = (x - first) / (last - first) * f64::from(self.right - self.left);
        (
            self.left + over.round() as i32,
            self.bottom - up.round() as i32,
        )
    }
}

/// Round numbers from 0 to above the most.
fn linear_marks(most: f64) -> Vec<f64> {
    let most = if most > 0.0 { most } else { 1.0 };
    let rough = most / MARKS;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(power * 10.0);
    let count = (most / step - 1e-9).ceil() as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

/// Round numbers from below the least to above the most; both are above 0.
fn log_marks(least: f64, most: f64) -> Vec<f64> {
    let decades = least.log10().floor() as i32..=most.log10().floor() as i32 + 1;
    let factors: &[f64] = match decades.clone().count() {
        0..=5 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let decade = |power| factors.iter().map(move |one| one * 10f64.powi(power));
    let mut marks: Vec<f64> = decades.flat_map(decade).collect();
    let below = marks.iter().filter(|mark| **mark <= least).count();
    marks.drain(..below.saturating_sub(1));
    let within = marks.iter().filter(|mark| **mark < most).count();
    marks.truncate((within + 1).max(2));
    marks
}

/// A mark's number: no more digits than it needs.
fn mark(value: f64) -> String {
    if value >= 1000.0 {
        return text::thousands(value);
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn line(root: &Root, from: (i32, i32), to: (i32, i32), style: ShapeStyle) -> Result<()> {
    root.draw(&PathElement::new([from, to], style))
        .map_err(problem)
}

fn draw_panel(
    root: &Root,
    figure: &Figure,
    panel: &Panel,
    contenders: &[Contender],
    frame: &Frame,
) -> Result<()> {
    let quantity = font(PLAIN, HPos::Left, VPos::Top, false);
    let above = (frame.left - LEFT + EDGE, frame.top - 24);
    write(root, &panel.quantity, &quantity, above)?;
    let number = font(SMALL, HPos::Right, VPos::Center, false);
    for value in &frame.marks {
        let (_, y) = frame.at(0.0, *value);
        let style = theme::GRID.mix(0.35).stroke_width(1);
        line(root, (frame.left, y), (frame.right, y), style)?;
        write(root, &mark(*value), &number, (frame.left - 8, y))?;
    }
    let (left, axis) = (frame.left, theme::INK.stroke_width(1));
    line(root, (left, frame.top), (left, frame.bottom), axis)?;
    line(
        root,
        (left, frame.bottom),
        (frame.right, frame.bottom),
        axis,
    )?;
    draw_places(root, frame)?;
    if let Some(across) = &figure.across {
        let style = font(SMALL, HPos::Center, VPos::Top, false);
        let middle = (frame.left + frame.right) / 2;
        write(root, across, &style, (middle, frame.bottom + BELOW - 22))?;
    }
    match figure.kind {
        PlotKind::Lines => {
            for series in &panel.series {
                draw_line(root, frame, series, contenders)?;
            }
        }
        PlotKind::Bars => draw_bars(root, frame, figure, panel, contenders)?,
    }
    Ok(())
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
fn draw_places(root: &Root, frame: &Frame) -> Result<()> {
    let style = font(SMALL, HPos::Center, VPos::Top, false);
    for place in &frame.places {
        let (x, y) = frame.at(place.at, frame.base());
        line(root, (x, y), (x, y + 5), theme::INK.stroke_width(1))?;
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

fn draw_line(root: &Root, frame: &Frame, series: &Series, contenders: &[Contender]) -> Result<()> {
    let colour = theme::colour(series.contender, contenders);
    let known = || {
        let values = frame.places.iter().zip(&series.values);
        values.filter_map(|(place, value)| Some((place.at, value.as_ref()?)))
    };
    let points: Vec<_> = known()
        .map(|(at, value)| frame.at(at, value.median))
        .collect();
    let line = PathElement::new(points.clone(), colour.stroke_width(2));
    root.draw(&line).map_err(problem)?;
    for ((at, value), point) in known().zip(points) {
        let (_, low) = frame.at(at, value.least);
        let (_, high) = frame.at(at, value.most);
        whisker(root, point.0, (low, high), colour)?;
        dot(root, point, colour, series.variant)?;
    }
    Ok(())
}

fn draw_bars(
    root: &Root,
    frame: &Frame,
    figure: &Figure,
    panel: &Panel,
    contenders: &[Contender],
) -> Result<()> {
    let labelled = labelled_bars(figure);
    let count = panel.series.len().max(1) as f64;
    let wide = if labelled { 0.56 } else { 0.8 / count };
    let number = font(SMALL, HPos::Center, VPos::Bottom, false);
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
            let (left, bottom) = frame.at(middle - half, frame.base());
            let (right, top) = frame.at(middle + half, value.median);
            let style = bar_style(colour, series.variant);
            let bar = Rectangle::new([(left, top), (right, bottom)], style);
            root.draw(&bar).map_err(problem)?;
            let (x, low) = frame.at(middle, value.least);
            let (_, high) = frame.at(middle, value.most);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_nothing_and_holds_all() {
        assert_eq!(linear_marks(8.7), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear_marks(10.0).last(), Some(&10.0));
        assert_eq!(linear_marks(0.0).last(), Some(&1.0));
    }

    #[test]
    fn a_logarithmic_axis_holds_all() {
        let marks = log_marks(55.0, 7_860.0);
        assert_eq!(marks[..4], [50.0, 100.0, 200.0, 500.0]);
        assert_eq!(marks.last(), Some(&10_000.0));
        let one = log_marks(10.0, 10.0);
        assert!(
            one.len() == 2 && one[0] <= 10.0 && one[1] >= 10.0,
            "{one:?}"
        );
        assert_eq!(log_marks(1.0, 2_000_000.0).len(), 8);
    }

    #[test]
    fn marks_are_short() {
        let shown: Vec<String> = [0.0, 0.5, 2.0, 2500.0].map(mark).into();
        assert_eq!(shown, ["0", "0.5", "2", "2,500"]);
    }
}
