//! The terminal: draws what is chosen, and takes keys.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use console::{Key, Style, Term};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::ask::Place;
use super::look::Look;
use super::state::{State, View, title};
use crate::failure::Outcome;

/// A terminal's second screen, and back to the first.
const OTHER_SCREEN: &str = "\u{1b}[?1049h";
const FIRST_SCREEN: &str = "\u{1b}[?1049l";
/// To the corner; from here on nothing in the line, and on the screen.
const HOME: &str = "\u{1b}[H";
const REST_OF_LINE: &str = "\u{1b}[K";
const REST_OF_SCREEN: &str = "\u{1b}[J";
/// Columns are no wider than this, the last one excepted.
const WIDEST: usize = 36;
/// Rows that PgUp and PgDn move by.
const PAGE: usize = 10;
/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(100);

/// What is known: the last look, and why there is no newer one.
#[derive(Default)]
struct Known {
    look: Look,
    at: Option<Instant>,
    error: Option<String>,
}

/// A line, and how it looks.
struct Line(Style, String);

/// The second screen, until it is dropped.
struct Screen(Term);

impl Screen {
    fn open() -> std::io::Result<Self> {
        let screen = Self(Term::stdout());
        screen.0.write_str(OTHER_SCREEN)?;
        screen.0.hide_cursor()?;
        Ok(screen)
    }

    fn draw(&self, lines: &[Line]) -> std::io::Result<()> {
        let mut text = HOME.to_owned();
        for (index, Line(style, line)) in lines.iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(&style.apply_to(line).to_string());
            text.push_str(REST_OF_LINE);
        }
        text.push_str(REST_OF_SCREEN);
        self.0.write_str(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone there is nothing to put back.
        let _ = self.0.show_cursor();
        let _ = self.0.write_str(FIRST_SCREEN);
    }
}

/// Shows lists until somebody has had enough.
pub(super) async fn run(place: &Place, view: View, every: Duration) -> Outcome {
    let screen = Screen::open()?;
    let mut keys = Keys::read(screen.0.clone());
    let (mut state, mut known) = (State::new(view), Known::default());
    let mut ticks = interval(every.max(SHORTEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (rows, columns) = screen.0.size();
        screen.draw(&lines(
            &place.address,
            &state,
            &known,
            (rows.into(), columns.into()),
        ))?;
        tokio::select! {
            _ = ticks.tick() => {
                if state.is_paused {
                    continue;
                }
                match Look::take(place).await {
                    Ok(look) => known = Known { look, at: Some(Instant::now()), error: None },
                    Err(error) => known.error = Some(error),
                }
            }
            key = keys.keys.recv() => {
                // Without a terminal nobody sees it.
                let Some(key) = key else {
                    return Ok(ExitCode::SUCCESS);
                };
                if !take_key(&mut state, key) {
                    return Ok(ExitCode::SUCCESS);
                }
                let rows = state.cells(&known.look).len();
                state.offset = state.offset.min(rows.saturating_sub(1));
                keys.next();
            }
        }
    }
}

/// Keys as they are pressed, from a thread that waits for them.
struct Keys {
    keys: mpsc::Receiver<Key>,
    wanted: std::sync::mpsc::SyncSender<()>,
}

impl Keys {
    /// The thread reads a key only once the one before was taken: while it reads the terminal is not as it was, and so
    /// it would stay if the program ended then.
    fn read(terminal: Term) -> Self {
        let (told, keys) = mpsc::channel(1);
        let (wanted, wants) = sync_channel::<()>(1);
        std::thread::spawn(move || {
            while let Ok(key) = terminal.read_key_raw() {
                if told.blocking_send(key).is_err() || wants.recv().is_err() {
                    return;
                }
            }
        });
        Self { keys, wanted }
    }

    fn next(&self) {
        // The thread has ended where there is no terminal any more, which the next look at it tells.
        let _ = self.wanted.try_send(());
    }
}

/// False: somebody has had enough.
fn take_key(state: &mut State, key: Key) -> bool {
    if key == Key::CtrlC {
        return false;
    }
    if state.is_typing {
        match key {
            Key::Enter => state.is_typing = false,
            Key::Escape => (state.is_typing, state.filter) = (false, String::new()),
            Key::Backspace => {
                state.filter.pop();
            }
            Key::Char(c) if !c.is_control() => state.filter.push(c),
            _ => {}
        }
        return true;
    }
    match key {
        Key::Char('q') => return false,
        Key::Escape => state.filter.clear(),
        Key::Tab => state.next_view(),
        Key::Char('1') => state.show(View::Streams),
        Key::Char('2') => state.show(View::Groups),
        Key::Char('3') => state.show(View::Brokers),
        Key::Char('s') => state.sort_next(),
        Key::Char('/') => state.is_typing = true,
        Key::Char(' ' | 'p') => state.is_paused = !state.is_paused,
        Key::ArrowDown | Key::Char('j') => state.offset += 1,
        Key::ArrowUp | Key::Char('k') => state.offset = state.offset.saturating_sub(1),
        Key::PageDown => state.offset += PAGE,
        Key::PageUp => state.offset = state.offset.saturating_sub(PAGE),
        Key::Home => state.offset = 0,
        _ => {}
    }
    true
}

/// All that is shown, in a terminal of so many rows and columns.
fn lines(
    address: &str,
    state: &State,
    known: &Known,
    (rows, columns): (usize, usize),
) -> Vec<Line> {
    let mut lines = head(known, columns);
    lines.push(Line(Style::new(), String::new()));
    lines.push(Line(Style::new(), views(state, &known.look)));
    let room = rows.saturating_sub(lines.len() + 2);
    let (heading, table) = table(state, &known.look, columns);
    lines.push(Line(Style::new().underlined(), heading));
    let shown = table.into_iter().skip(state.offset).take(room);
    lines.extend(shown.map(|(text, is_bad)| match is_bad {
        true => Line(Style::new().yellow().bold(), text),
        false => Line(Style::new(), text),
    }));
    lines.truncate(rows.saturating_sub(1));
    lines.resize_with(rows.saturating_sub(1), || Line(Style::new(), String::new()));
    lines.push(Line(Style::new().dim(), foot(address, state, known)));
    for Line(_, text) in &mut lines {
        *text = cut(text, columns);
    }
    lines
}

/// Whether all is well, and sums.
fn head(known: &Known, columns: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut say = |style: &Style, text: &str| {
        lines.extend(
            wrapped(text, columns)
                .into_iter()
                .map(|line| Line(style.clone(), line)),
        );
    };
    if let Some(error) = &known.error {
        let since = known.at.map_or_else(String::new, |at| {
            format!(
                "No answer; what you see is {} s old. ",
                at.elapsed().as_secs()
            )
        });
        say(&Style::new().red().bold(), &format!("{since}{error}"));
    }
    if known.at.is_none() {
        if known.error.is_none() {
            say(&Style::new(), "Asking the broker ...");
        }
        return lines;
    }
    let health = match known.look.health() {
        "ok" => Style::new().green().bold(),
        "attention" => Style::new().yellow().bold(),
        _ => Style::new().red().bold(),
    };
    for (index, text) in known.look.summary().iter().enumerate() {
        let style = if index == 0 { &health } else { &Style::new() };
        say(style, text);
    }
    lines
}

/// The lists there are, the one that is shown in brackets.
fn views(state: &State, look: &Look) -> String {
    let views = (1..).zip([View::Streams, View::Groups, View::Brokers]);
    let names = views.map(|(number, view)| {
        let name = format!("{number} {}", title(view, look));
        match state.view == view {
            true => format!("[{name}]"),
            false => format!(" {name} "),
        }
    });
    names.collect::<Vec<_>>().join(" ")
}

/// The heading and the rows of the list that is shown, and whether a row deserves a look.
fn table(state: &State, look: &Look, columns: usize) -> (String, Vec<(String, bool)>) {
    let headings = state.headings();
    let rows = state.cells(look);
    let last = headings.len() - 1;
    let widths: Vec<_> = (0..headings.len())
        .map(|column| {
            let cells = rows.iter().map(|(cells, _)| cells[column].chars().count());
            let heading = headings[column].trim_start_matches('>').chars().count();
            let width = cells.max().unwrap_or(0).max(heading);
            if column == last {
                columns
            } else {
                width.min(WIDEST)
            }
        })
        .collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().enumerate().map(|(column, text)| {
            let text = cut(text, widths[column]);
            match headings[column].starts_with('>') {
                true => format!("{text:>width$}", width = widths[column]),
                false if column == last => text,
                false => format!("{text:<width$}", width = widths[column]),
            }
        });
        padded.collect::<Vec<_>>().join("  ")
    };
    let names: Vec<_> = headings
        .iter()
        .map(|heading| heading.trim_start_matches('>'))
        .collect();
    let heading = line(&names);
    let rows = rows.iter().map(|(cells, is_bad)| {
        let cells: Vec<_> = cells.iter().map(String::as_str).collect();
        (line(&cells), *is_bad)
    });
    (heading, rows.collect())
}

fn foot(address: &str, state: &State, known: &Known) -> String {
    if state.is_typing {
        return format!("filter: {}_  (Enter keeps it, Esc clears it)", state.filter);
    }
    let mut parts = Vec::new();
    if state.is_paused {
        let ago = known.at.map_or(0, |at| at.elapsed().as_secs());
        parts.push(format!("PAUSED, {ago} s ago"));
    }
    parts.push(format!("sorted by {}", state.sorted_by()));
    if !state.filter.is_empty() {
        parts.push(format!("filter {}", state.filter));
    }
    parts.push(address.to_owned());
    format!(
        "{} | Tab lists, s sort, / filter, space pause, q quit",
        parts.join(" | ")
    )
}

/// The text's beginning, no longer than so many letters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept = text.chars().take(most.saturating_sub(1));
    kept.chain(std::iter::once('…').take(most)).collect()
}

/// The text in lines of at most so many letters, cut between words.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= most {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(state: &State, known: &Known, size: (usize, usize)) -> Vec<String> {
        let lines = lines("localhost:7680", state, known, size);
        lines.into_iter().map(|Line(_, text)| text).collect()
    }

    #[test]
    fn what_is_shown_fits_the_terminal() {
        let streams: Vec<_> = (0..100)
            .map(|number| json!({"name": format!("a-stream-of-a-long-name-{number:03}"), "groups_total": 0}))
            .collect();
        let known = Known {
            look: Look {
                overview: json!({"health": {"state": "ok", "sentence": "All is well: 3 brokers serve 100 streams, and all 7 consumer groups keep up."}}),
                streams: json!({"total": 100, "items": streams}),
                ..Look::default()
            },
            at: Some(Instant::now()),
            error: None,
        };
        let mut state = State::new(View::Streams);
        for size in [(24, 80), (50, 200), (10, 40), (3, 10), (1, 1)] {
            let shown = texts(&state, &known, size);
            assert_eq!(shown.len(), size.0, "{size:?}");
            for line in &shown {
                assert!(line.chars().count() <= size.1, "{size:?}: {line}");
            }
        }
        state.offset = 99;
        let shown = texts(&state, &known, (24, 80));
        assert!(
            shown
                .iter()
                .any(|line| line.starts_with("a-stream-of-a-long-name-099")),
            "{shown:?}"
        );
        // Without a look it says so.
        assert_eq!(
            texts(&state, &Known::default(), (24, 80))[0],
            "Asking the broker ..."
        );
    }

    #[test]
    fn keys_choose_and_end() {
        let mut state = State::new(View::Streams);
        for key in "/ab".chars().map(Key::Char) {
            assert!(take_key(&mut state, key));
        }
        // While a filter is typed q is a letter.
        assert!(take_key(&mut state, Key::Char('q')) && state.filter == "abq");
        assert!(take_key(&mut state, Key::Backspace) && state.filter == "ab");
        assert!(take_key(&mut state, Key::Enter) && !state.is_typing);
        assert!(take_key(&mut state, Key::Char(' ')) && state.is_paused);
        assert!(take_key(&mut state, Key::Escape) && state.filter.is_empty());
        assert!(!take_key(&mut state, Key::Char('q')));
        assert!(!take_key(&mut state, Key::CtrlC));
    }
}
