//! Records from text: lines, CSV, JSON lines, or one record of raw bytes.

use std::io::{BufRead, Read};

use super::json;
use crate::failure::Failure;
use crate::output::plural;

/// The longest line, row or raw input accepted: more than any frame can hold.
const LONGEST: u64 = 1 << 30;

/// How the input is cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum InputFormat {
    /// A record for each line.
    Lines,
    /// A record for each row after the heading; its value is the row.
    Csv,
    /// A record for each line of JSON; its value is the line. Blank lines are passed over.
    Jsonl,
    /// One record: the whole input.
    Raw,
}

/// What the input holds besides values.
#[derive(Clone, Debug)]
pub(super) struct InputRules {
    /// How the input is cut.
    pub format: InputFormat,
    /// The column (CSV) or field (JSON lines) that is the key.
    pub key_field: Option<String>,
    /// What stands between key and value of a line.
    pub key_separator: Option<String>,
    /// The text that stands for a null value.
    pub null_marker: Option<String>,
}

impl InputRules {
    /// Refuses rules that contradict each other, before anything is read.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong = match (self.format, &self.key_field, &self.key_separator) {
            (InputFormat::Lines | InputFormat::Raw, Some(_), _) => {
                "--key names a field, which only --format csv and jsonl have; for lines use --key-separator"
            }
            (InputFormat::Csv | InputFormat::Jsonl | InputFormat::Raw, _, Some(_)) => {
                "--key-separator is for --format lines; for csv and jsonl name the field with --key"
            }
            (_, _, Some(separator)) if separator.is_empty() => {
                "--key-separator is empty; name the text between key and value"
            }
            _ => return Ok(()),
        };
        Err(Failure::Usage(wrong.into()))
    }

    /// Whether a value is the text that stands for null.
    fn is_null(&self, value: &[u8]) -> bool {
        let marker = self.null_marker.as_ref();
        marker.is_some_and(|marker| marker.as_bytes() == value)
    }
}

/// A record's own bytes. Buffers are reused from record to record.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InputRecord {
    /// The key; none if the record has none.
    pub key: Option<Vec<u8>>,
    /// The value; none is null.
    pub value: Option<Vec<u8>>,
}

/// Cuts an input into records.
pub(super) struct Input<R: BufRead> {
    rules: InputRules,
    source: Source<R>,
    /// Records read, for messages.
    place: u64,
}

enum Source<R: BufRead> {
    Lines(R),
    Csv {
        reader: Box<csv::Reader<R>>,
        key_column: Option<usize>,
        row: csv::ByteRecord,
    },
    Raw(Option<R>),
}

impl<R: BufRead> Input<R> {
    /// Begins to read. For CSV this reads the heading.
    pub(super) fn new(rules: InputRules, reader: R) -> Result<Self, Failure> {
        let source = match rules.format {
            InputFormat::Lines | InputFormat::Jsonl => Source::Lines(reader),
            InputFormat::Raw => Source::Raw(Some(reader)),
            InputFormat::Csv => {
                let mut reader = csv::Reader::from_reader(reader);
                let headings = reader.headers().map_err(|error| unreadable(1, &error))?;
                if headings.is_empty() {
                    return Err(Failure::message(
                        "the input is empty; csv begins with a heading that names the columns",
                    ));
                }
                let key_column = match &rules.key_field {
                    None => None,
                    Some(field) => Some(
                        headings
                            .iter()
                            .position(|heading| heading == field)
                            .ok_or_else(|| {
                                let all: Vec<&str> = headings.iter().collect();
                                Failure::message(format!(
                                    "no column `{field}` in the heading; the columns are {}",
                                    all.join(", ")
                                ))
                            })?,
                    ),
                };
                Source::Csv {
                    reader: Box::new(reader),
                    key_column,
                    row: csv::ByteRecord::new(),
                }
            }
        };
        Ok(Self {
            rules,
            source,
            place: 0,
        })
    }

    /// Reads the next record into `record`; false at the end of the input.
    pub(super) fn next_into(&mut self, record: &mut InputRecord) -> Result<bool, Failure> {
        self.place += 1;
        let mut value = record.value.take().unwrap_or_default();
        let mut key = record.key.take().unwrap_or_default();
        value.clear();
        key.clear();
        let mut has_key = false;
        match &mut self.source {
            Source::Lines(reader) => {
                if !read_line(reader, &mut value, self.place)? {
                    return Ok(false);
                }
                if self.rules.format == InputFormat::Jsonl {
                    // Such a line often ends a file.
                    while value.trim_ascii().is_empty() && !self.rules.is_null(&value) {
                        self.place += 1;
                        value.clear();
                        if !read_line(reader, &mut value, self.place)? {
                            return Ok(false);
                        }
                    }
                    has_key = json_key(&self.rules, &value, &mut key, self.place)?;
                } else {
                    has_key = split_key(&self.rules, &mut value, &mut key, self.place)?;
                }
            }
            Source::Csv {
                reader,
                key_column,
                row,
            } => {
                let more = reader
                    .read_byte_record(row)
                    .map_err(|error| not_a_row(self.place, &error))?;
                if !more {
                    return Ok(false);
                }
                if let Some(bytes) = key_column.and_then(|column| row.get(column)) {
                    key.extend_from_slice(bytes);
                    has_key = true;
                }
                write_row(row, &mut value)?;
            }
            Source::Raw(reader) => {
                let Some(reader) = reader.take() else {
                    return Ok(false);
                };
                let read = reader
                    .take(LONGEST + 1)
                    .read_to_end(&mut value)
                    .map_err(|error| unreadable(1, &error))?;
                if read as u64 > LONGEST {
                    return Err(too_long(1));
                }
            }
        }
        let null = self.rules.is_null(&value);
        record.key = has_key.then_some(key);
        record.value = (!null).then_some(value);
        Ok(true)
    }
}

fn unreadable(place: u64, error: &dyn std::fmt::Display) -> Failure {
    Failure::message(format!("cannot read record {place} of the input: {error}"))
}

/// `place`: the row's, the heading not counted.
fn not_a_row(place: u64, error: &csv::Error) -> Failure {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            let line = error.position().map_or(0, csv::Position::line);
            Failure::message(format!(
                "the row at line {line} has {}, and the heading {expected_len}; quote what holds commas",
                plural(*len, "field")
            ))
        }
        _ => unreadable(place, error),
    }
}

fn too_long(place: u64) -> Failure {
    Failure::message(format!(
        "record {place} of the input is longer than 1GiB; cut it into smaller ones"
    ))
}

/// Reads a line without its end (`\n` or `\r\n`); false at the end of the input.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>, place: u64) -> Result<bool, Failure> {
    let read = reader
        .by_ref()
        .take(LONGEST + 2)
        .read_until(b'\n', line)
        .map_err(|error| unreadable(place, &error))?;
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if read as u64 > LONGEST {
        return Err(too_long(place));
    }
    Ok(read > 0)
}

fn split_key(
    rules: &InputRules,
    value: &mut Vec<u8>,
    key: &mut Vec<u8>,
    place: u64,
) -> Result<bool, Failure> {
    let Some(separator) = rules.key_separator.as_deref().map(str::as_bytes) else {
        return Ok(false);
    };
    let at = value
        .windows(separator.len())
        .position(|window| window == separator)
        .ok_or_else(|| {
            Failure::message(format!(
                "line {place} has no key: `{}` does not occur in it",
                String::from_utf8_lossy(separator)
            ))
        })?;
    key.extend_from_slice(&value[..at]);
    value.drain(..at + separator.len());
    Ok(true)
}

/// Checks that the line is JSON and takes the key out of its field.
fn json_key(
    rules: &InputRules,
    line: &[u8],
    key: &mut Vec<u8>,
    place: u64,
) -> Result<bool, Failure> {
    if rules.is_null(line) {
        return Ok(false);
    }
    // To the parser each line is the first.
    let not_json = |error: serde_json::Error| {
        let error = error.to_string().replace(" at line 1 column", " at column");
        Failure::message(format!("line {place} is not JSON: {error}"))
    };
    let Some(field) = &rules.key_field else {
        json::check(line).map_err(not_json)?;
        return Ok(false);
    };
    match json::field(line, field).map_err(not_json)? {
        json::Field::Missing => Err(Failure::message(format!(
            "line {place} has no field `{field}` for the key"
        ))),
        json::Field::Null => Ok(false),
        json::Field::Text(text) => {
            key.extend_from_slice(text.as_bytes());
            Ok(true)
        }
    }
}

fn write_row(row: &csv::ByteRecord, value: &mut Vec<u8>) -> Result<(), Failure> {
    let mut writer = csv::WriterBuilder::new().from_writer(&mut *value);
    writer.write_byte_record(row)?;
    writer.flush()?;
    drop(writer);
    while matches!(value.last(), Some(b'\n' | b'\r')) {
        value.pop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(format: InputFormat) -> InputRules {
        InputRules {
            format,
            key_field: None,
            key_separator: None,
            null_marker: None,
        }
    }

    type Pair = (Option<String>, Option<String>);

    fn read(rules: InputRules, text: &str) -> Result<Vec<Pair>, Failure> {
        rules.check()?;
        let mut input = Input::new(rules, text.as_bytes())?;
        let mut record = InputRecord::default();
        let mut all = Vec::new();
        let text = |bytes: &Option<Vec<u8>>| {
            bytes
                .as_ref()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        while input.next_into(&mut record)? {
            all.push((text(&record.key), text(&record.value)));
        }
        Ok(all)
    }

    fn pair(key: Option<&str>, value: Option<&str>) -> Pair {
        (key.map(Into::into), value.map(Into::into))
    }

    fn said(result: Result<Vec<Pair>, Failure>) -> String {
        format!("{:?}", result.unwrap_err())
    }

    #[test]
    fn lines() {
        assert_eq!(
            read(rules(InputFormat::Lines), "a\r\n\nlast").unwrap(),
            [
                pair(None, Some("a")),
                pair(None, Some("")),
                pair(None, Some("last"))
            ]
        );
        assert_eq!(read(rules(InputFormat::Lines), "").unwrap(), []);
    }

    #[test]
    fn lines_with_keys_and_nulls() {
        let rules = InputRules {
            key_separator: Some("::".into()),
            null_marker: Some("NULL".into()),
            ..rules(InputFormat::Lines)
        };
        assert_eq!(
            read(rules.clone(), "k::v::w\nx::NULL\n::v\n").unwrap(),
            [
                pair(Some("k"), Some("v::w")),
                pair(Some("x"), None),
                pair(Some(""), Some("v"))
            ]
        );
        assert!(said(read(rules, "a::b\nnothing\n")).contains("line 2 has no key"));
    }

    #[test]
    fn csv_rows_keep_their_quotes() {
        let rules = InputRules {
            key_field: Some("id".into()),
            ..rules(InputFormat::Csv)
        };
        assert_eq!(
            read(rules.clone(), "name,id\n\"a, b\",7\nc,8\n").unwrap(),
            [
                pair(Some("7"), Some("\"a, b\",7")),
                pair(Some("8"), Some("c,8"))
            ]
        );
        assert!(said(read(rules.clone(), "name,ident\n")).contains("the columns are name, ident"));
        assert!(said(read(rules.clone(), "")).contains("the input is empty"));
        let uneven = said(read(rules, "name,id\nb,1\na\n"));
        assert!(
            uneven.contains("the row at line 3 has 1 field, and the heading 2;"),
            "{uneven}"
        );
    }

    #[test]
    fn json_lines() {
        let rules = InputRules {
            key_field: Some("id".into()),
            ..rules(InputFormat::Jsonl)
        };
        assert_eq!(
            read(
                rules.clone(),
                "{\"id\": \"x\"}\n{\"id\": 5}\n{\"id\": null}\n"
            )
            .unwrap(),
            [
                pair(Some("x"), Some("{\"id\": \"x\"}")),
                pair(Some("5"), Some("{\"id\": 5}")),
                pair(None, Some("{\"id\": null}")),
            ]
        );
        assert!(said(read(rules.clone(), "{\"a\": 1}\n")).contains("line 1 has no field `id`"));
        assert!(
            said(read(rules, "{\"id\": 1}\n{\n"))
                .contains("line 2 is not JSON: EOF while parsing an object at column 1")
        );
    }

    #[test]
    fn blank_lines_of_json_are_passed_over() {
        let rules = rules(InputFormat::Jsonl);
        assert_eq!(
            read(rules.clone(), "\n{}\r\n \t\r\n\n[]\n\n").unwrap(),
            [pair(None, Some("{}")), pair(None, Some("[]"))]
        );
        assert!(said(read(rules.clone(), "{}\n\n{\n")).contains("line 3 is not JSON"));
        let rules = InputRules {
            null_marker: Some(String::new()),
            ..rules
        };
        assert_eq!(
            read(rules, "{}\n\n").unwrap(),
            [pair(None, Some("{}")), pair(None, None)],
            "an empty line that stands for null is a record"
        );
    }

    #[test]
    fn raw_is_one_record() {
        assert_eq!(
            read(rules(InputFormat::Raw), "a\nb\n").unwrap(),
            [pair(None, Some("a\nb\n"))]
        );
    }

    #[test]
    fn rules_that_contradict_each_other() {
        let with_key = InputRules {
            key_field: Some("x".into()),
            ..rules(InputFormat::Lines)
        };
        assert!(matches!(with_key.check(), Err(Failure::Usage(_))));
        let with_separator = InputRules {
            key_separator: Some(",".into()),
            ..rules(InputFormat::Csv)
        };
        assert!(matches!(with_separator.check(), Err(Failure::Usage(_))));
        let empty = InputRules {
            key_separator: Some(String::new()),
            ..rules(InputFormat::Lines)
        };
        assert!(matches!(empty.check(), Err(Failure::Usage(_))));
    }
}
