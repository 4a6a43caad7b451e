//! The stream under test, and what is measured around a run.

use std::path::Path;
use std::time::{Duration, Instant};

use kera_protocol::v1;
use tonic::Code;

use super::disk::{self, Disk};
use super::{CommonArgs, cpu};
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
            .then(|| disk::look(Path::new(&broker.data_dir), !args.no_disk))
            .flatten();
        Ok(Self {
            control,
            info,
            broker,
            local,
            disk,
        })
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
        match self.info.config.unwrap_or_default().ack() {
            v1::AckPolicy::Memory => "memory",
            v1::AckPolicy::Written => "written",
            v1::AckPolicy::Synced => "synced",
        }
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
        let broker = self
            .local
            .then(|| cpu::of_process(self.broker.pid))
            .flatten();
        Meter {
            pid: self.broker.pid,
            broker,
            own: cpu::own(),
            begin: Instant::now(),
        }
    }
}

/// Time and CPU time from one moment on.
pub(super) struct Meter {
    pid: u32,
    broker: Option<Duration>,
    own: Duration,
    begin: Instant,
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub time: Duration,
    pub own_cpu: Duration,
    /// None if the broker is elsewhere.
    pub broker_cpu: Option<Duration>,
}

impl Meter {
    /// What it took since.
    pub(super) fn stop(&self) -> Taken {
        let time = self.begin.elapsed();
        let own_cpu = cpu::own().saturating_sub(self.own);
        let broker_cpu = self
            .broker
            .and_then(|before| Some(cpu::of_process(self.pid)?.saturating_sub(before)));
        Taken {
            time,
            own_cpu,
            broker_cpu,
        }
    }
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
fn is_this_machine(address: &str) -> bool {
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
    fn loopback_is_this_machine() {
        for address in ["127.0.0.1:7600", "127.1.2.3:1", "localhost:1", "[::1]:1"] {
            assert!(is_this_machine(address), "{address}");
        }
        for address in ["10.0.0.1:1", "broker:1", "127.example.org:1"] {
            assert!(!is_this_machine(address), "{address}");
        }
    }
}
