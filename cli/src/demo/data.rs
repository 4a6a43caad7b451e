//! The demo's records: flights that left New York in January 2013.

use std::io::Read;

use crate::failure::Failure;

/// Columns: year, month, day, dep_time, sched_dep_time, dep_delay, arr_delay, carrier, flight,
/// tailnum, origin, dest, distance.
const FLIGHTS: &[u8] = include_bytes!("../../data/flights.csv.gz");
const CARRIERS: &str = include_str!("../../data/carriers.csv");

/// Where `arr_delay` and `carrier` stand in a row.
const DELAY_COLUMN: usize = 6;
const CARRIER_COLUMN: usize = 7;

/// The rows of the file, kept once.
pub(super) struct Flights {
    text: String,
    rows: Vec<(usize, usize)>,
}

impl Flights {
    /// Unpacks the file that is part of this binary.
    pub(super) fn load() -> Result<Self, Failure> {
        let mut text = String::new();
        flate2::read::GzDecoder::new(FLIGHTS).read_to_string(&mut text)?;
        let mut rows = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            rows.push((at, at + line.trim_end().len()));
            at += line.len();
        }
        // The heading is no flight.
        rows.remove(0);
        Ok(Self { text, rows })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row, counted round and round.
    pub(super) fn row(&self, number: u64) -> &str {
        let (start, end) = self.rows[(number % self.rows.len() as u64) as usize];
        &self.text[start..end]
    }
}

/// Writes a record's value: who sent it, its number there, and the flight.
pub(super) fn write_value(out: &mut Vec<u8>, producer: usize, sequence: u64, row: &str) {
    use std::io::Write;
    out.clear();
    // Writing to a vector does not fail.
    let _ = write!(out, "{producer},{sequence},{row}");
}

/// The carrier of a row.
pub(super) fn carrier(row: &str) -> &str {
    row.split(',').nth(CARRIER_COLUMN).unwrap_or_default()
}

/// A value, read back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flight<'a> {
    /// Which producer sent it.
    pub producer: usize,
    /// Its number there, from 0.
    pub sequence: u64,
    /// The carrier's code.
    pub carrier: &'a str,
    /// Minutes late at arrival; none if it never did.
    pub delay: Option<i64>,
}

impl<'a> Flight<'a> {
    /// Reads a value; none if it is none of ours.
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut columns = text.split(',');
        let producer = columns.next()?.parse().ok()?;
        let sequence = columns.next()?.parse().ok()?;
        let delay = columns.nth(DELAY_COLUMN)?.parse().ok();
        let carrier = columns.next()?;
        Some(Self {
            producer,
            sequence,
            carrier,
            delay,
        })
    }
}

/// A carrier's name.
pub(super) fn carrier_name(code: &str) -> &'static str {
    CARRIERS
        .lines()
        .filter_map(|line| line.split_once(','))
        .find(|(known, _)| *known == code)
        .map_or("", |(_, name)| name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flights_read_back() {
        let flights = Flights::load().unwrap();
        assert!(flights.len() > 10_000);
        let mut value = Vec::new();
        for number in [0, 1, flights.len() as u64, u64::MAX] {
            let row = flights.row(number);
            write_value(&mut value, 3, number, row);
            let flight = Flight::parse(&value).unwrap();
            assert_eq!((flight.producer, flight.sequence), (3, number));
            assert_eq!(flight.carrier, carrier(row));
            assert!(
                !carrier_name(flight.carrier).is_empty(),
                "{}",
                flight.carrier
            );
        }
        assert_eq!(flights.row(0), flights.row(flights.len() as u64));
        write_value(
            &mut value,
            0,
            7,
            "2013,1,1,517,515,2,11,UA,1545,N14228,EWR,IAH,1400",
        );
        assert_eq!(
            Flight::parse(&value),
            Some(Flight {
                producer: 0,
                sequence: 7,
                carrier: "UA",
                delay: Some(11)
            })
        );
        write_value(&mut value, 0, 7, "2013,1,1,,515,,,UA,1545,,EWR,IAH,1400");
        assert_eq!(Flight::parse(&value).unwrap().delay, None);
        assert_eq!(Flight::parse(b"hello"), None);
    }
}
