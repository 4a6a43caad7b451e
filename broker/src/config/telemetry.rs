//! Kinds of keys about a collector of OpenTelemetry, and what they need of each other.

use kera_telemetry::Signal;

use super::kinds::{Kind, Limits};

/// The address of a collector, if there is one: `Option<String>`.
pub(super) enum CollectorOrOff {}

impl Kind for CollectorOrOff {
    type Value = Option<String>;
    const FORM: &'static str = "`http://host:port`, `https://host:port`, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(None);
        }
        let wrong = || {
            format!(
                "`{text}` is no address of a collector; write {}",
                Self::FORM
            )
        };
        let rest = text
            .strip_prefix("http://")
            .or_else(|| text.strip_prefix("https://"))
            .ok_or_else(wrong)?;
        let (host, port) = rest
            .trim_end_matches('/')
            .rsplit_once(':')
            .ok_or_else(wrong)?;
        let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
        match port.parse::<u16>() {
            Ok(1..) if is_host => Ok(Some(text.trim_end_matches('/').to_owned())),
            _ => Err(wrong()),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}

/// What a collector is told: `Vec<Signal>`.
pub(super) enum Signals {}

impl Kind for Signals {
    type Value = Vec<Signal>;
    const FORM: &'static str = "list of `metrics`, `logs`, `traces`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<Signal>, String> {
        let mut signals = Vec::new();
        for part in text.split(',').map(str::trim) {
            let signal = Signal::ALL.into_iter().find(|signal| signal.name() == part);
            let Some(signal) = signal else {
                return Err(format!(
                    "`{part}` is nothing that a collector is told; write metrics, logs, traces, or some of them"
                ));
            };
            if !signals.contains(&signal) {
                signals.push(signal);
            }
        }
        Ok(signals)
    }

    fn show(value: &Vec<Signal>) -> String {
        let names: Vec<_> = value.iter().map(|signal| signal.name()).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_with_a_port() {
        for text in ["off", "http://127.0.0.1:4317", "https://otel.example:443"] {
            let parsed = CollectorOrOff::parse(text, &Limits::NONE).unwrap();
            assert_eq!(CollectorOrOff::show(&parsed), text);
        }
        for wrong in [
            "",
            "localhost:4317",
            "http://localhost",
            "http://:4317",
            "http://a:0",
            "grpc://a:1",
            "http://a/b:1",
            "http://user@a:1",
        ] {
            assert!(
                CollectorOrOff::parse(wrong, &Limits::NONE).is_err(),
                "{wrong}"
            );
        }
        let some = Signals::parse("traces, logs,traces", &Limits::NONE).unwrap();
        assert_eq!(Signals::show(&some), "traces,logs");
        for wrong in ["", "off", "metrics,"] {
            assert!(Signals::parse(wrong, &Limits::NONE).is_err(), "{wrong}");
        }
    }
}
