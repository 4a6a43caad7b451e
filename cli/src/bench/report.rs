//! What a benchmark found, for people and for programs.

use std::time::Duration;

use kera_load::Latency;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Out, count, plural, print_json, rounded_bytes, short_time};

/// The disk below the broker's data directory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Disk {
    /// The file system's type, such as ext4.
    pub filesystem: String,
    /// What is mounted, such as /dev/vda1.
    pub device: String,
    /// MB (10^6 bytes) a second of sequential writing, flushed at the end; none if not measured.
    pub write_mb_per_second: Option<u64>,
}

/// What one benchmark found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub bench: &'static str,
    pub stream: String,
    pub ack: &'static str,
    pub lanes: u64,
    pub records: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub records_per_second: f64,
    /// 10^6 bytes of keys and values.
    pub mb_per_second: f64,
    pub record_size: Option<u32>,
    pub batch_size: Option<u32>,
    pub linger_us: Option<u64>,
    pub producers: Option<u32>,
    pub consumers: Option<u32>,
    pub rate: Option<f64>,
    /// CPU time of this process, user and system.
    pub client_cpu_ns_per_record: f64,
    /// CPU time of the broker; none if it runs elsewhere.
    pub broker_cpu_ns_per_record: Option<f64>,
    /// What the latency is of.
    pub latency_of: Option<String>,
    pub latency: Option<Latency>,
    pub disk: Option<Disk>,
    pub cores: usize,
    pub broker_version: String,
}

impl Report {
    /// Prints the report.
    pub(crate) fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        let mut out = Out::stdout();
        let mut what = format!(
            "{}: {} records, {}",
            self.bench,
            count(self.records),
            rounded_bytes(self.bytes)
        );
        if let Some(size) = self.record_size {
            what.push_str(&format!(", {size} B each"));
        }
        out.line(what)?;
        let mut setting = format!("ack {}, {}", self.ack, plural(self.lanes, "lane"));
        if let Some(batch) = self.batch_size {
            setting.push_str(&format!(", batches of {}", rounded_bytes(u64::from(batch))));
        }
        for (number, one) in [(self.producers, "producer"), (self.consumers, "consumer")] {
            if let Some(number) = number {
                setting.push_str(&format!(", {}", plural(u64::from(number), one)));
            }
        }
        if let Some(rate) = self.rate {
            setting.push_str(&format!(", {}/s wanted", count(rate.round() as u64)));
        }
        let mut lines = vec![
            ("setting", setting),
            (
                "throughput",
                format!(
                    "{} records/s, {:.1} MB/s, in {}",
                    count(self.records_per_second.round() as u64),
                    self.mb_per_second,
                    short_time(Duration::from_secs_f64(self.seconds))
                ),
            ),
            (
                "CPU",
                match self.broker_cpu_ns_per_record {
                    Some(broker) => format!(
                        "client {:.0} ns/record, broker {broker:.0} ns/record",
                        self.client_cpu_ns_per_record
                    ),
                    None => format!(
                        "client {:.0} ns/record (the broker is on another machine)",
                        self.client_cpu_ns_per_record
                    ),
                },
            ),
        ];
        if let (Some(latency), Some(of)) = (&self.latency, &self.latency_of) {
            let show = |us: f64| short_time(Duration::from_nanos((us * 1e3) as u64));
            lines.push((
                "latency",
                format!(
                    "p50 {}, p90 {}, p99 {}, p99.9 {}, max {} ({of})",
                    show(latency.p50_us),
                    show(latency.p90_us),
                    show(latency.p99_us),
                    show(latency.p999_us),
                    show(latency.max_us)
                ),
            ));
        }
        if let Some(disk) = &self.disk {
            let speed = match disk.write_mb_per_second {
                Some(speed) => format!("{speed} MB/s sequential writing today"),
                None => "not measured".into(),
            };
            lines.push((
                "disk",
                format!("{} on {}, {speed}", disk.filesystem, disk.device),
            ));
        }
        lines.push((
            "machine",
            format!(
                "{}, broker {}",
                plural(self.cores as u64, "core"),
                self.broker_version
            ),
        ));
        for (name, value) in lines {
            out.line(format_args!("  {name:<11} {value}"))?;
        }
        out.flush()
    }
}
