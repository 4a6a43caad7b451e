//! `kera calibrate`: what a broker can do, as its latency objectives count it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use kera_load::native::NativeClients;
use kera_load::process::cpu_of;
use kera_load::{Done, Load, Work};
use kera_metadata::quota::QuotaKind;
use kera_protocol::v1;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::bench::is_this_machine;
use crate::connect::{ConnectArgs, Control, refused};
use crate::failure::{Failure, Outcome};
use crate::members::working;
use crate::output::{OutputArgs, print_json, print_line};
use crate::stream::Ack;

/// Bytes of the records that are sent.
const RECORD: u32 = 1000;
/// Batches that hold one of them, and batches that hold as many as are worth a request of their own.
const SMALL: usize = 1 << 10;
const LARGE: usize = 128 << 10;
/// Records a second that are timed.
const PROBES: u64 = 200;
/// No fewer records than this are read.
const LEAST_READ: u64 = 1000;

/// Arguments of `kera calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera calibrate
  kera calibrate --load 40 --write objectives.toml
  kera calibrate --seconds 30 --json

Sends and reads records for a while, and prints the settings that the broker's latency objectives count by \
(`kera quota set --objective-latency`), to be put into its file. A broker on this machine is measured by the time that its \
cores take, one elsewhere by what gets through. Run it against a broker that does nothing else.")]
pub(crate) struct CalibrateArgs {
    /// How much of what the broker can do clients shall use at most while there are objectives, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100))]
    load: u32,
    /// Seconds of each of four measurements
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// What an acknowledgement of the stream promises that is made for it
    #[arg(long, value_enum, default_value_t = Ack::Written)]
    ack: Ack,
    /// Write the settings into this file too, which must not be there
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What was found: the settings of `[objectives]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Settings {
    requests_per_second: u64,
    append_bytes_per_second: u64,
    read_bytes_per_second: u64,
    /// What the load was, which is less than asked for if this machine could not send as much.
    load: u64,
    /// Rounded up.
    latency_us: u64,
}

impl Settings {
    fn toml(&self) -> String {
        format!(
            "[objectives]\nrequests_per_second = {}\nappend_bytes_per_second = {}\nread_bytes_per_second = {}\nload = {}\nlatency = \"{}us\"\n",
            self.requests_per_second,
            self.append_bytes_per_second,
            self.read_bytes_per_second,
            self.load,
            self.latency_us
        )
    }
}

/// What something took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    records: u64,
    bytes: u64,
    /// Seconds of the whole broker.
    seconds: f64,
}

/// What a broker can do of small requests and of large ones.
fn settings(small: Taken, large: Taken, read: Taken) -> Settings {
    let per_second = |amount: u64, taken: Taken| amount as f64 / taken.seconds.max(1e-6);
    let append_bytes = per_second(large.bytes, large);
    // A small request without what its bytes cost.
    let bytes = small.bytes as f64 / append_bytes;
    let requests = small.records as f64 / (small.seconds - bytes).max(small.seconds / 10.0);
    Settings {
        requests_per_second: (requests as u64).max(1),
        append_bytes_per_second: (append_bytes as u64).max(1024),
        read_bytes_per_second: (per_second(read.bytes, read) as u64).max(1024),
        load: 0,
        latency_us: 0,
    }
}

/// The broker that is measured, and the stream that was made there.
struct Measured<'a> {
    args: &'a CalibrateArgs,
    stream: String,
    /// Its process, if it is on this machine, and how many cores that may use.
    local: Option<(u32, f64)>,
}

impl Measured<'_> {
    fn load(&self, work: Work) -> Load {
        Load {
            work,
            records: 0,
            record_bytes: RECORD,
            keyed: false,
            different_keys: None,
            partitions: 1,
            rate: None,
            at_once: None,
            time: None,
            most: None,
            producers: 1,
            consumers: 0,
            subscriptions: 1,
            group: false,
            busy: Duration::ZERO,
            timed: false,
            warm: false,
            sample: 0,
        }
    }

    /// A load in this process, and what the broker took for it.
    fn run(&self, load: &Load, batch: usize) -> Result<(Done, Taken), Failure> {
        let connect = &self.args.connect;
        let mut clients = NativeClients::new(
            load,
            Handle::current(),
            &connect.bootstrap,
            &self.stream,
            &connect.options()?,
        );
        let producer = clients.producer.batch_size(batch);
        clients.producer = producer.linger(Duration::from_millis(1));
        let cpu = || self.local.and_then(|(pid, _)| cpu_of(pid).ok());
        let mut before = None;
        // The clients of a load have threads of their own, which wait for what this runtime does.
        let done = tokio::task::block_in_place(|| {
            kera_load::run(&clients, load, || {
                before = cpu();
                Ok(Instant::now())
            })
        })?;
        let cpu = cpu().zip(before).map(|(after, before)| after - before);
        let seconds = match (cpu, self.local) {
            (Some(cpu), Some((_, cores))) if !cpu.is_zero() => cpu.as_secs_f64() / cores,
            _ => done.seconds,
        };
        let taken = Taken {
            records: done.records,
            bytes: done.bytes,
            seconds,
        };
        Ok((done, taken))
    }

    fn measure(&self) -> Result<Settings, Failure> {
        let time = Some(Duration::from_secs(self.args.seconds));
        let produce = |producers| Load {
            producers,
            time,
            ..self.load(Work::Produce)
        };
        let (_, large) = self.run(&produce(1), LARGE)?;
        let read = Load {
            records: large.records.max(LEAST_READ),
            consumers: 1,
            producers: 0,
            ..self.load(Work::Consume)
        };
        let (_, read) = self.run(&read, LARGE)?;
        let (_, small) = self.run(&produce(4), SMALL)?;
        let found = settings(small, large, read);
        // As much as clients may send, in large batches, and a few small ones that are timed.
        let bytes = found.append_bytes_per_second as f64 * f64::from(self.args.load) / 100.0;
        let rate = (bytes as u64 / u64::from(RECORD)).max(1);
        let at = |rate: u64| Load {
            records: rate.saturating_mul(self.args.seconds).max(1),
            rate: Some(rate),
            most: time,
            ..self.load(Work::Produce)
        };
        let (loads, probes) = (at(rate), at(PROBES));
        let handle = Handle::current();
        let (loaded, probed) = std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                let _in_runtime = handle.enter();
                self.run(&loads, LARGE)
            });
            let probed = self.run(&probes, SMALL);
            let loaded = beside.join();
            (loaded, probed)
        });
        let (loaded, _) =
            loaded.map_err(|_| Failure::message("a producer panicked".to_owned()))??;
        let (probed, _) = probed?;
        let latency = probed.sides.acks.map_or(0.0, |acks| acks.p99_us);
        let sent = loaded.records as f64 / loaded.seconds.max(self.args.seconds as f64);
        let load = f64::from(self.args.load) * (sent / rate as f64).min(1.0);
        Ok(Settings {
            load: (load.round() as u64).max(1),
            latency_us: (latency / 100.0).ceil() as u64 * 100,
            ..found
        })
    }
}

/// Runs `kera calibrate`.
pub(crate) async fn run(args: CalibrateArgs) -> Outcome {
    if let Some(file) = args.write.as_deref().filter(|file| file.exists()) {
        let shown = file.display();
        return Err(Failure::Usage(format!(
            "{shown} is there already; name another file, or move it away"
        )));
    }
    let mut control = args.connect.control().await?;
    refuse_objectives(&mut control).await?;
    let described = control
        .streams
        .describe_broker(v1::DescribeBrokerRequest {});
    let pid = described.await.map_err(|s| refused(&s))?.into_inner().pid;
    let local = is_this_machine(&control.address).then(|| (pid, cores_of(pid)));
    let stream = format!("kera-calibrate-{:08x}", rand::random::<u32>());
    let config = v1::StreamConfig {
        streamlets: Some(1),
        lanes: Some(1),
        ack: Some(v1::AckPolicy::from(args.ack) as i32),
        ..v1::StreamConfig::default()
    };
    let request = v1::CreateStreamRequest {
        name: stream.clone(),
        config: Some(config),
    };
    let made = control.streams.create_stream(request).await;
    let id = made.map_err(|s| refused(&s))?.into_inner().id;
    let bar = working(format!("four measurements of {} s", args.seconds));
    let measured = Measured {
        args: &args,
        stream: stream.clone(),
        local,
    };
    let found = measured.measure();
    bar.finish_and_clear();
    let request = v1::DeleteStreamRequest { name: stream, id };
    let deleted = control.streams.delete_stream(request).await;
    let found = found?;
    deleted.map_err(|s| refused(&s))?;
    if let Some(file) = &args.write {
        write(file, &found.toml())?;
    }
    if args.output.json {
        print_json(&found)?;
    } else {
        print_line(found.toml().trim_end())?;
        if found.load < u64::from(args.load) {
            eprintln!(
                "this machine could not send more than {} % of what the broker takes, so the load is that; send from another machine for more",
                found.load
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let written = std::fs::write(file, text);
    written
        .map_err(|error| Failure::message(format!("{} cannot be written: {error}", file.display())))
}

/// With an objective what is measured would wait for it.
async fn refuse_objectives(control: &mut Control) -> Result<(), Failure> {
    let listed = control.quotas.list_quotas(v1::ListQuotasRequest {}).await;
    let quotas = listed.map_err(|s| refused(&s))?.into_inner().quotas;
    let is_one = |name: &String| QuotaKind::named(name).is_some_and(QuotaKind::is_of_objective);
    match quotas.iter().any(|quota| quota.limits.keys().any(is_one)) {
        true => Err(Failure::message(
            "some user has a latency objective, for which others wait; delete it first (kera quota list)"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// How many cores a process of this machine may use.
fn cores_of(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let cores = status.ok().and_then(|text| cores_in(&text));
    cores.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)) as f64
}

/// The number of cores in the list of a process's status, such as `0-3,8`.
fn cores_in(status: &str) -> Option<usize> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let parts = list.trim().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    parts.sum::<Option<usize>>().filter(|cores| *cores > 0)
}

#[cfg(test)]
mod tests {
    use kera_broker::config::Sources;

    use super::*;

    fn taken(records: u64, bytes: u64, seconds: f64) -> Taken {
        Taken {
            records,
            bytes,
            seconds,
        }
    }

    #[test]
    fn a_small_request_costs_what_its_bytes_do_not() {
        let found = settings(
            taken(1000, 1_000_000, 0.02),
            taken(100_000, 100_000_000, 1.0),
            taken(100_000, 100_000_000, 0.25),
        );
        assert_eq!(found.append_bytes_per_second, 100_000_000);
        assert_eq!(found.read_bytes_per_second, 400_000_000);
        // Of 20 ms ten are for the bytes.
        assert_eq!(found.requests_per_second, 100_000);
        // Where bytes seem to cost all of it, a tenth is left for requests.
        let odd = settings(
            taken(1000, 1_000_000, 0.01),
            taken(1, 1_000_000, 0.01),
            taken(1, 1, 1.0),
        );
        assert_eq!(odd.requests_per_second, 1_000_000);
    }

    #[test]
    fn cores_are_counted() {
        assert_eq!(cores_in("a: 1\nCpus_allowed_list:\t0-3,8\n"), Some(5));
        assert_eq!(cores_in("Cpus_allowed_list:\t1\n"), Some(1));
        assert_eq!(cores_in("Cpus_allowed_list:\t3-1\n"), None);
        assert_eq!(cores_in(""), None);
    }

    #[test]
    fn what_is_written_is_taken_by_a_broker() {
        let found = Settings {
            requests_per_second: 7,
            append_bytes_per_second: 2048,
            read_bytes_per_second: 4096,
            load: 55,
            latency_us: 1200,
        };
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("objectives.toml");
        write(&file, &found.toml()).unwrap();
        let sources = Sources {
            file: Some(file),
            ..Sources::default()
        };
        let config = sources.resolve().unwrap().config.objectives;
        assert_eq!(config.requests_per_second, 7);
        assert_eq!(config.append_bytes_per_second, 2048);
        assert_eq!(config.read_bytes_per_second, 4096);
        assert_eq!(config.load, 55);
        assert_eq!(config.latency, Duration::from_micros(1200));
    }
}
