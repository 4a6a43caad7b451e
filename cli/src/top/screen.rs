//! The terminal: draws what is chosen, and takes keys.

use std::pin::Pin;
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
use crate::output::{columns_of, cut, padded};

/// A terminal's second screen, and back to the first.
const OTHER_SCREEN: &str = "\u{1b}[?1049h";
const FIRST_SCREEN: &str = "\u{1b}[?1049l";
/// To the corner; from here on nothing in the line, and on the screen.
const HOME: &str = "\u{1b}[H";
const REST_OF_LINE: &str = "\u{1b}[K";
const REST_OF_SCREEN: &str = "\u{1b}[J";
/// Columns are no wider than this, the last one excepted.
const WIDEST: usize = 36;
/// Where there is too little room names are cut to this, and the last column to that, before others go.
const NAME: usize = 28;
const LAST: usize = 16;
/// Between two columns.
const BETWEEN: &str = "  ";
/// Of this many rows one is for what is said above the list.
const OF_HEAD: usize = 3;
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
    let draw = |state: &State, known: &Known| {
        let (rows, columns) = screen.0.size();
        let size = (rows.into(), columns.into());
        screen.draw(&lines(&place.address, state, known, size))
    };
    let state = State::new(view);
    drive(state, every, &mut keys, || Look::take(place), draw).await?;
    Ok(ExitCode::SUCCESS)
}

/// A question that is on its way to the broker.
type Asked<F> = Option<Pin<Box<F>>>;

/// The answer, once there is one; without a question for ever.
async fn answer<F: Future>(asked: &mut Asked<F>) -> F::Output {
    match asked {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

/// Asks by `take`, every so often, and takes keys, also while no answer comes; draws what is known.
async fn drive<F: Future<Output = Result<Look, String>>>(
    mut state: State,
    every: Duration,
    keys: &mut Keys,
    take: impl Fn() -> F,
    draw: impl Fn(&State, &Known) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut known = Known::default();
    let mut asked: Asked<F> = None;
    let mut ticks = interval(every.max(SHORTEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        draw(&state, &known)?;
        tokio::select! {
            _ = ticks.tick() => {
                if asked.is_none() && !state.is_paused {
                    asked = Some(Box::pin(take()));
                }
            }
            look = answer(&mut asked) => {
                asked = None;
                match look {
                    Ok(look) => known = Known { look, at: Some(Instant::now()), error: None },
                    Err(error) => known.error = Some(error),
                }
            }
            key = keys.keys.recv() => {
                // Without a terminal nobody sees it.
                let Some(key) = key else {
                    return Ok(());
                };
                if !take_key(&mut state, key) {
                    return Ok(());
                }
                if state.is_paused {
                    asked = None;
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
    // The list is what somebody came for.
    let most = (rows / OF_HEAD).max(1);
    if lines.len() > most {
        lines.truncate(most);
        if let Some(Line(_, text)) = lines.last_mut() {
            *text = cut(&format!("{text} …"), columns);
        }
    }
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
fn table(state: &State, look: &Look, room: usize) -> (String, Vec<(String, bool)>) {
    let headings = state.headings();
    let rows = state.cells(look);
    let widths = widths(headings, &rows, state.dispensable(), room);
    let line = |cells: &[&str]| {
        let shown = widths.iter().map(|(column, width)| {
            let text = cut(cells[*column], *width);
            padded(&text, *width, headings[*column].starts_with('>'))
        });
        let line = shown.collect::<Vec<_>>().join(BETWEEN);
        line.trim_end().to_owned()
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

/// The columns that there is room for, and how wide they are. First long names become shorter, then columns go by the order of
/// `dispensable`; the last one has what is left.
fn widths(
    headings: &[&str],
    rows: &[(Vec<String>, bool)],
    dispensable: &[usize],
    room: usize,
) -> Vec<(usize, usize)> {
    let last = headings.len() - 1;
    let wanted = |column: usize| {
        let cells = rows.iter().map(|(cells, _)| columns_of(&cells[column]));
        let heading = columns_of(headings[column].trim_start_matches('>'));
        cells.max().unwrap_or(0).max(heading)
    };
    let least_of_last = wanted(last).min(LAST);
    let mut widths: Vec<_> = (0..last)
        .map(|column| (column, wanted(column).min(WIDEST)))
        .collect();
    let taken = |widths: &[(usize, usize)]| -> usize {
        let with_gap = widths.iter().map(|(_, width)| width + BETWEEN.len());
        with_gap.sum()
    };
    let mut dispensable = dispensable.iter();
    loop {
        let surplus = (taken(&widths) + least_of_last).saturating_sub(room);
        if surplus == 0 {
            break;
        }
        let name = &mut widths[0].1;
        if *name > NAME {
            *name = name.saturating_sub(surplus).max(NAME);
            continue;
        }
        match dispensable.next() {
            Some(column) => widths.retain(|(of, _)| of != column),
            None => break,
        }
    }
    let rest = room.saturating_sub(taken(&widths));
    if rest > 0 {
        widths.push((last, rest));
    }
    widths
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
    if !state.filter.is_empty() {
        parts.push(format!("filter {}", state.filter));
    }
    parts.push(format!("by {}", state.sorted_by()));
    parts.push("Tab list, s sort, / filter, space pause, q quit".to_owned());
    // What everybody sees in the command line goes first where there is no room.
    parts.push(address.to_owned());
    parts.join(" | ")
}

/// The text in lines of at most so many columns, cut between words.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if columns_of(line) + 1 + columns_of(word) <= most {
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
                assert!(columns_of(line) <= size.1, "{size:?}: {line}");
            }
        }
        // Also on a small terminal there is a part of the list, and the keys.
        let shown = texts(&state, &known, (10, 40));
        let rows = shown.iter().filter(|line| line.starts_with("a-stream-"));
        assert!(rows.count() > 2, "{shown:?}");
        let shown = texts(&state, &known, (24, 80));
        assert!(shown[23].contains("q quit"), "{shown:?}");
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
    fn what_matters_most_is_there_on_80_columns() {
        let name = "a-stream-with-quite-a-long-name-as-people-have-them.in.production.v2";
        let stream = json!({"name": name, "partitions": 1024, "records_in": 1234567.0, "bytes_in": 1e9, "bytes_out": 2e9,
            "bytes": 1u64 << 40, "lag": 12_345_678, "groups_total": 1, "groups": [{"group": "billing", "lag": 12_345_678}]});
        let group = json!({"group": name, "lag": 12_345_678, "members": 12, "records_consumed": 1234567.0, "catches_up_s": 90.0,
            "streams": [{"stream": name}], "why": "it is slow: its 12 members commit 10 records/s", "falls_behind": true});
        let look = Look {
            streams: json!({"total": 1, "items": [stream]}),
            groups: json!({"total": 1, "items": [group]}),
            ..Look::default()
        };
        for (view, wanted) in [
            (View::Streams, ["12,345,678", "1,234,567/s", "billing"]),
            (View::Groups, ["12,345,678", "in 90.00 s", "it is slow"]),
        ] {
            let state = State::new(view);
            let (heading, rows) = table(&state, &look, 80);
            let row = &rows[0].0;
            assert!(columns_of(row) <= 80 && columns_of(&heading) <= 80, "{row}");
            for part in wanted {
                assert!(row.contains(part), "{part}: {row}");
            }
            // Where there is room nothing is left out.
            let (heading, rows) = table(&state, &look, 200);
            for name in state.headings() {
                assert!(heading.contains(name.trim_start_matches('>')), "{heading}");
            }
            assert!(columns_of(&rows[0].0) <= 200);
        }
    }

    /// The broker has taken the question and says nothing.
    #[tokio::test]
    async fn keys_are_taken_while_no_answer_comes() {
        let (press, keys) = mpsc::channel(1);
        let (wanted, wants) = sync_channel(1);
        let mut keys = Keys { keys, wanted };
        let asked = std::cell::Cell::new(0);
        let take = || {
            asked.set(asked.get() + 1);
            std::future::pending()
        };
        let shown = std::cell::Cell::new(View::Streams);
        let draw = |state: &State, _: &Known| {
            shown.set(state.view);
            Ok(())
        };
        let pressed = async {
            while asked.get() == 0 {
                tokio::task::yield_now().await;
            }
            for key in ['2', '3', 'q'] {
                press.send(Key::Char(key)).await.expect("it is taken");
            }
        };
        let drive = drive(State::new(View::Streams), SHORTEST, &mut keys, take, draw);
        let both = async { tokio::join!(drive, pressed) };
        let both = tokio::time::timeout(Duration::from_secs(60), both).await;
        let (driven, ()) = both.expect("keys wait for the broker");
        driven.expect("it ends");
        assert_eq!((shown.get(), asked.get()), (View::Brokers, 1));
        drop(wants);
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
