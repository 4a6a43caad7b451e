//! Records as text.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::failure::Failure;
use crate::output::rfc3339;

/// How records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OutputFormat {
    /// The value, and a newline.
    Lines,
    /// A JSON object a line: place, time, key, value, headers.
    Jsonl,
    /// A CSV row: place, time, key, value, headers; the first row is a heading.
    Csv,
    /// The value's bytes and nothing else.
    Raw,
}

/// A record with its place, borrowed from its batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    /// Its streamlet.
    pub streamlet: u32,
    /// Its lane.
    pub lane: u32,
    /// Its ordinal.
    pub ordinal: u64,
    /// Its time, milliseconds since 1970.
    pub timestamp_ms: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its headers.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// Bytes as text where they are UTF-8; otherwise as an object with their base64 form, so that
/// nothing is lost and nothing is taken for what it is not.
struct Text<'a>(Option<&'a [u8]>);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => serializer.serialize_none(),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => {
                    let mut map = serializer.serialize_map(Some(1))?;
                    map.serialize_entry("base64", &base64(bytes))?;
                    map.end()
                }
            },
        }
    }
}

struct Headers<'a>(&'a [(&'a str, Option<&'a [u8]>)]);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(name, value)| (name, Text(*value))))
    }
}

#[derive(Serialize)]
struct JsonRecord<'a> {
    streamlet: u32,
    lane: u32,
    ordinal: u64,
    timestamp: String,
    key: Text<'a>,
    value: Text<'a>,
    #[serde(skip_serializing_if = "no_headers")]
    headers: Headers<'a>,
}

fn no_headers(headers: &Headers<'_>) -> bool {
    headers.0.is_empty()
}

/// Writes records in one format.
#[derive(Debug)]
pub(super) struct Formatter {
    format: OutputFormat,
    metadata: bool,
    null_marker: String,
    begun: bool,
}

impl Formatter {
    /// A formatter; `metadata` puts place, time and key before each line, `null_marker` stands for
    /// a null value.
    pub(super) fn new(format: OutputFormat, metadata: bool, null_marker: String) -> Self {
        Self {
            format,
            metadata,
            null_marker,
            begun: false,
        }
    }

    /// Appends a record to `out`.
    pub(super) fn write(&mut self, record: &Shown<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        match self.format {
            OutputFormat::Raw => out.extend_from_slice(record.value.unwrap_or_default()),
            OutputFormat::Lines => {
                if self.metadata {
                    let key = record.key.map(String::from_utf8_lossy).unwrap_or_default();
                    let place = format!(
                        "{}/{}/{}\t{}\t{key}\t",
                        record.streamlet,
                        record.lane,
                        record.ordinal,
                        time(record.timestamp_ms)
                    );
                    out.extend_from_slice(place.as_bytes());
                }
                out.extend_from_slice(record.value.unwrap_or(self.null_marker.as_bytes()));
                out.push(b'\n');
            }
            OutputFormat::Jsonl => {
                let json = JsonRecord {
                    streamlet: record.streamlet,
                    lane: record.lane,
                    ordinal: record.ordinal,
                    timestamp: time(record.timestamp_ms),
                    key: Text(record.key),
                    value: Text(record.value),
                    headers: Headers(record.headers),
                };
                serde_json::to_writer(&mut *out, &json)?;
                out.push(b'\n');
            }
            OutputFormat::Csv => {
                let mut writer = csv::Writer::from_writer(&mut *out);
                if !self.begun {
                    writer.write_record([
                        "streamlet",
                        "lane",
                        "ordinal",
                        "timestamp",
                        "key",
                        "value",
                        "headers",
                    ])?;
                }
                writer.write_field(record.streamlet.to_string())?;
                writer.write_field(record.lane.to_string())?;
                writer.write_field(record.ordinal.to_string())?;
                writer.write_field(time(record.timestamp_ms))?;
                writer.write_field(record.key.unwrap_or_default())?;
                writer.write_field(record.value.unwrap_or(self.null_marker.as_bytes()))?;
                let headers: Vec<String> = record
                    .headers
                    .iter()
                    .map(|(name, value)| {
                        format!(
                            "{name}={}",
                            String::from_utf8_lossy(value.unwrap_or_default())
                        )
                    })
                    .collect();
                writer.write_field(headers.join(";"))?;
                writer.write_record(None::<&[u8]>)?;
                writer.flush()?;
            }
        }
        self.begun = true;
        Ok(())
    }
}

/// A record's time; records may carry none, which is negative.
fn time(ms: i64) -> String {
    u64::try_from(ms).map(rfc3339).unwrap_or_default()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            if position <= chunk.len() {
                let digit = (bits >> (18 - 6 * position)) & 63;
                out.push(char::from(DIGITS[digit as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Shown<'static> = Shown {
        streamlet: 1,
        lane: 2,
        ordinal: 30,
        timestamp_ms: 1_700_000_000_123,
        key: Some(b"k"),
        value: Some(b"a,\"b\""),
        headers: &[("h", Some(b"x"))],
    };

    fn written(format: OutputFormat, metadata: bool, records: &[Shown<'_>]) -> String {
        let mut formatter = Formatter::new(format, metadata, "NULL".into());
        let mut out = Vec::new();
        for record in records {
            formatter.write(record, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format() {
        let null = Shown {
            value: None,
            headers: &[],
            key: None,
            ordinal: 31,
            ..RECORD
        };
        let both = [RECORD, null];
        assert_eq!(
            written(OutputFormat::Lines, false, &both),
            "a,\"b\"\nNULL\n"
        );
        assert_eq!(
            written(OutputFormat::Lines, true, &[RECORD]),
            "1/2/30\t2023-11-14T22:13:20.123Z\tk\ta,\"b\"\n"
        );
        assert_eq!(written(OutputFormat::Raw, false, &both), "a,\"b\"");
        assert_eq!(
            written(OutputFormat::Csv, false, &both),
            "streamlet,lane,ordinal,timestamp,key,value,headers\n\
             1,2,30,2023-11-14T22:13:20.123Z,k,\"a,\"\"b\"\"\",h=x\n\
             1,2,31,2023-11-14T22:13:20.123Z,,NULL,\n"
        );
        assert_eq!(
            written(OutputFormat::Jsonl, false, &both),
            "{\"streamlet\":1,\"lane\":2,\"ordinal\":30,\"timestamp\":\"2023-11-14T22:13:20.123Z\",\"key\":\"k\",\"value\":\"a,\\\"b\\\"\",\"headers\":[[\"h\",\"x\"]]}\n\
             {\"streamlet\":1,\"lane\":2,\"ordinal\":31,\"timestamp\":\"2023-11-14T22:13:20.123Z\",\"key\":null,\"value\":null}\n"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_not_lost() {
        let record = Shown {
            value: Some(&[0xff, 0x00]),
            headers: &[],
            ..RECORD
        };
        assert!(written(OutputFormat::Jsonl, false, &[record]).contains("{\"base64\":\"/wA=\"}"));
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foo"), "Zm9v");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
