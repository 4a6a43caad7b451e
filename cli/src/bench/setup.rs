//! The stream under test, and what is measured around a run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use kera_load::disk::{mount_of, write_speed};
use kera_load::process::cpu_of;
use kera_protocol::ack::AckPolicy;
use kera_protocol::v1;
use tonic::Code;

use super::CommonArgs;
use super::report::Disk;
use crate::connect::{Control, refused};
use crate::failure::Failure;

/// The stream under test and its broker.
pub(super) struct Setup {
    pub control: Control,
    pub info: v1::StreamInfo,
    broker: v1::DescribeBrokerResponse,
    local: bool,
    disk: Option<Disk>,
}

impl Setup {
    /// Finds the stream, or makes it; looks at broker and disk.
    pub(super) async fn new(args: &CommonArgs) -> Result<Self, Failure> {
        let mut control = args.connect.control().await?;
        let info = find_or_make(&mut control, args).await?;
        let broker = control
            .streams
            .describe_broker(v1::DescribeBrokerRequest {})
            .await
            .map_err(|status| refused(&status))?
            .into_inner();
        let local = is_this_machine(&control.address);
        let disk = local
            .then(|| disk_below(Path::new(&broker.data_dir), !args.no_disk))
            .flatten();
        Ok(Self {
            control,
            info,
            broker,
            local,
            disk,
        })
    }

    /// Streamlets of the stream.
    pub(super) fn streamlets(&self) -> u32 {
        let config = self.info.config.unwrap_or_default();
        config.streamlets().max(1)
    }

    /// Lanes of all streamlets.
    pub(super) fn lanes(&self) -> u64 {
        let config = self.info.config.unwrap_or_default();
        match config.partitions {
            Some(partitions) => partitions.into(),
            None => u64::from(config.streamlets()) * u64::from(config.lanes()),
        }
    }

    /// What an acknowledgement of the stream promises.
    pub(super) fn ack(&self) -> &'static str {
        AckPolicy::from(self.info.config.unwrap_or_default().ack()).text()
    }

    /// The broker's disk.
    pub(super) fn disk(&self) -> Option<Disk> {
        self.disk.clone()
    }

    /// The broker's version.
    pub(super) fn broker_version(&self) -> String {
        self.broker.version.clone()
    }

    /// Begins to measure.
    pub(super) fn start(&self) -> Meter {
        let broker = self.local.then(|| cpu_of(self.broker.pid).ok()).flatten();
        Meter {
            pid: self.broker.pid,
            broker,
            own: own_cpu(),
        }
    }
}

/// CPU time from one moment on.
pub(super) struct Meter {
    pid: u32,
    broker: Option<Duration>,
    own: Duration,
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenTime {
    pub own_cpu: Duration,
    /// None if the broker is elsewhere.
    pub broker_cpu: Option<Duration>,
}

impl Meter {
    /// What it took since.
    pub(super) fn stop(&self) -> TakenTime {
        let own_cpu = own_cpu().saturating_sub(self.own);
        let broker_cpu = self
            .broker
            .and_then(|before| Some(cpu_of(self.pid).ok()?.saturating_sub(before)));
        TakenTime {
            own_cpu,
            broker_cpu,
        }
    }
}

/// CPU time that this process has used so far, user and system.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The disk below `data_dir`; `None` if the directory is not on this machine.
fn disk_below(data_dir: &Path, measure: bool) -> Option<Disk> {
    let metadata = fs::metadata(data_dir).ok()?;
    let (filesystem, device) = mount_of(data_dir)
        .unwrap_or_else(|| ("unknown file system".into(), "unknown device".into()));
    // Beside the data directory, never in it: what is in there is the broker's.
    let beside = data_dir
        .parent()
        .filter(|parent| fs::metadata(parent).is_ok_and(|parent| parent.dev() == metadata.dev()));
    Some(Disk {
        filesystem,
        device,
        write_mb_per_second: beside
            .filter(|_| measure)
            .and_then(|directory| write_speed(directory).ok()),
    })
}

async fn find_or_make(control: &mut Control, args: &CommonArgs) -> Result<v1::StreamInfo, Failure> {
    let request = v1::GetStreamRequest {
        name: args.stream.clone(),
    };
    match control.streams.get_stream(request).await {
        Ok(answer) => return Ok(answer.into_inner()),
        Err(status) if status.code() == Code::NotFound => {}
        Err(status) => return Err(refused(&status)),
    }
    let config = v1::StreamConfig {
        streamlets: Some(args.streamlets),
        lanes: Some(args.lanes),
        ack: Some(v1::AckPolicy::from(args.ack) as i32),
        ..v1::StreamConfig::default()
    };
    let request = v1::CreateStreamRequest {
        name: args.stream.clone(),
        config: Some(config),
    };
    let answer = control
        .streams
        .create_stream(request)
        .await
        .map_err(|status| refused(&status))?;
    eprintln!("made stream {}", args.stream);
    Ok(answer.into_inner())
}

/// Whether the address is one of this machine's loopback: then the broker's process can be looked at.
pub(crate) fn is_this_machine(address: &str) -> bool {
    let host = address
        .rsplit_once(':')
        .map_or(address, |(host, _)| host)
        .trim_matches(['[', ']']);
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_elsewhere_is_not_looked_at() {
        assert!(disk_below(Path::new("/nowhere/at/all"), false).is_none());
        assert!(disk_below(&std::env::temp_dir(), false).is_some());
    }

    #[test]
    fn loopback_is_this_machine() {
        for address in ["127.0.0.1:7600", "127.1.2.3:1", "localhost:1", "[::1]:1"] {
            assert!(is_this_machine(address), "{address}");
        }
        for address in ["10.0.0.1:1", "broker:1", "127.example.org:1"] {
            assert!(!is_this_machine(address), "{address}");
        }
    }
}
