//! What changes something: POST of a JSON body. Each act is the native call of the same name.

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use kera_grpc::serve::Caller;
use kera_protocol::ack::AckPolicy;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::act_settings::Settings;
use super::answer::{Answer, Api, ServedApi, answered, api_for, json, refusal};
use super::resource::{decoded, invalid};
use super::routes::{ACTS, Act, PREFIX, find};
use super::views::StreamSettings;
use crate::http_listener::Peer;

/// Most bytes of a body.
const MOST_BYTES: usize = 16 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    #[serde(default)]
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alter {
    settings: Settings,
}

/// To where, of one lane or all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    to: String,
    at: Option<Number>,
    streamlet: Option<u32>,
    lane: Option<u32>,
    stream: Option<String>,
    partition: Option<u32>,
}

/// A number as JSON has it, or as text: browsers have no integers above 2^53.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    draining: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Serialize)]
struct StreamView {
    name: String,
    partitions: u32,
    replicas: u32,
    ack: &'static str,
    settings: StreamSettings,
}

#[derive(Serialize)]
struct Trimmed {
    lanes_total: usize,
    freed_bytes: u64,
}

#[derive(Serialize)]
struct Reset {
    lanes_total: usize,
    partitions_total: usize,
}

#[derive(Serialize)]
struct Changed {
    changed: bool,
}

/// Whether a page of this broker asks, or a program that is no browser. Browsers say with each POST which site its page is of;
/// they send a person's password with requests of pages of any site.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("-"));
    let host = text(header::HOST).unwrap_or_default();
    let is_same = |origin: &str| {
        let place = origin.split_once("://");
        place.is_some_and(|(_, place)| !place.is_empty() && place.eq_ignore_ascii_case(host))
    };
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    site.is_none_or(|site| site == "same-origin") && text(header::ORIGIN).is_none_or(is_same)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn refused(status: StatusCode, code: ErrorCode, text: &str) -> Response {
    let mut answer = refusal(&WireError::new(code, text));
    *answer.status_mut() = status;
    answer
}

pub(super) async fn act(
    State(served): State<ServedApi>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Response {
    if !is_own(&headers) {
        let text = "a page of another site changes nothing here: Origin must be the address that Host names, and Sec-Fetch-Site same-origin";
        return refusal(&WireError::new(ErrorCode::NotAuthorized, text));
    }
    let (api, caller) = match api_for(&served, peer, &headers).await {
        Ok(asked) => asked,
        Err(refused) => return *refused,
    };
    if !api.shared.live().api.acts {
        let text = "nothing can be changed here: api.acts is false at this broker. Set it, or use the command line: kera stream, kera group, kera broker";
        return refusal(&WireError::new(ErrorCode::NotAuthorized, text));
    }
    if !is_json(&headers) {
        let text = "the body must be JSON: send Content-Type: application/json";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return refused(status, ErrorCode::InvalidArgument, text);
    }
    let Ok(body) = to_bytes(body, MOST_BYTES).await else {
        let text = format!("the body did not come to its end, or has more than {MOST_BYTES} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        return refused(status, ErrorCode::FrameTooLarge, &text);
    };
    answered(api.act(&caller, uri.path(), &body).await)
}

impl Api {
    /// Does what a path and a body ask for.
    async fn act(&self, caller: &Caller, path: &str, body: &[u8]) -> Answer {
        let acts = &self.acts;
        let path = path.strip_prefix(PREFIX).unwrap_or_default();
        let parts: Vec<_> = path.split('/').map(decoded).collect::<Result<_, _>>()?;
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let Some((act, name)) = find(&ACTS, &parts) else {
            return Err(invalid(format!(
                "nothing can be changed at /api/v1/{path}; there are streams, streams/NAME/alter, trim and delete, groups/NAME/reset and brokers/NUMBER/drain, see docs/api.md"
            )));
        };
        match act {
            Act::CreateStream => {
                let Create { name, settings } = read(body)?;
                let config = Some(settings.config()?);
                let request = v1::CreateStreamRequest { name, config };
                json(&StreamView::new(acts.create_stream(caller, request).await?))
            }
            Act::AlterStream => {
                let Alter { settings } = read(body)?;
                let request = v1::AlterStreamRequest {
                    name: name.to_owned(),
                    config: Some(settings.config()?),
                };
                json(&StreamView::new(acts.alter_stream(caller, request).await?))
            }
            Act::TrimStream => {
                let request = read::<Place>(body)?.trim(name)?;
                let trimmed = acts.trim_stream(caller, request).await?;
                json(&Trimmed {
                    lanes_total: trimmed.lanes.len(),
                    freed_bytes: trimmed.freed_bytes,
                })
            }
            Act::DeleteStream => {
                let Nothing {} = read(body)?;
                let name = name.to_owned();
                acts.delete_stream(
                    caller,
                    v1::DeleteStreamRequest {
                        name,
                        ..Default::default()
                    },
                )
                .await?;
                json(&Changed { changed: true })
            }
            Act::ResetGroup => {
                let request = read::<Place>(body)?.reset(name)?;
                let reset = acts.reset_group(caller, request).await?;
                json(&Reset {
                    lanes_total: reset.lanes.len(),
                    partitions_total: reset.partitions.len(),
                })
            }
            Act::DrainBroker => {
                let Drain { draining } = read(body)?;
                let broker = name.parse();
                let request = v1::SetDrainingRequest {
                    broker: broker
                        .map_err(|_| invalid("a broker is named by its number".into()))?,
                    draining,
                    passed_on: false,
                };
                let changed = acts.set_draining(caller, request).await?.changed;
                json(&Changed { changed })
            }
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|error| invalid(format!("the body: {error}")))
}

impl Place {
    fn number(&self) -> Result<u64, WireError> {
        let number = match &self.at {
            Some(Number::Number(number)) => Some(*number),
            Some(Number::Text(text)) => text.parse().ok(),
            None => None,
        };
        number.ok_or_else(|| invalid(format!("to is \"{}\", so at must be a number", self.to)))
    }

    fn trim(self, name: &str) -> Result<v1::TrimStreamRequest, WireError> {
        use v1::trim_stream_request::To;
        if self.stream.is_some() || self.partition.is_some() {
            let text = "a stream is trimmed by streamlet and lane; leave stream and partition out";
            return Err(invalid(text.to_owned()));
        }
        let to = match self.to.as_str() {
            "everything" => To::Everything(true),
            "time" => To::TimestampMs(self.number()?),
            "ordinal" => To::Ordinal(self.number()?),
            other => {
                return Err(invalid(format!(
                    "to is \"{other}\"; write everything, time or ordinal"
                )));
            }
        };
        Ok(v1::TrimStreamRequest {
            name: name.to_owned(),
            streamlet: self.streamlet,
            lane: self.lane,
            to: Some(to),
            local: false,
        })
    }

    fn reset(self, group: &str) -> Result<v1::ResetGroupRequest, WireError> {
        use v1::start_at::At;
        let at = match self.to.as_str() {
            "earliest" => At::Earliest(true),
            "latest" => At::Latest(true),
            "time" => At::TimestampMs(self.number()?),
            "ordinal" => At::Ordinal(self.number()?),
            other => {
                return Err(invalid(format!(
                    "to is \"{other}\"; write earliest, latest, time or ordinal"
                )));
            }
        };
        Ok(v1::ResetGroupRequest {
            group: group.to_owned(),
            to: Some(v1::StartAt { at: Some(at) }),
            streamlet: self.streamlet,
            lane: self.lane,
            stream: self.stream,
            partition: self.partition,
        })
    }
}

impl StreamView {
    fn new(info: v1::StreamInfo) -> Self {
        let config = info.config.unwrap_or_default();
        Self {
            settings: StreamSettings::of(&info),
            name: info.name,
            partitions: config.partitions(),
            replicas: config.replicas(),
            ack: AckPolicy::from(config.ack()).text(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            let name = header::HeaderName::from_static(name);
            (name, header::HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_pages_of_this_broker_and_programs_may_act() {
        let host = ("host", "kera.example:7680");
        for own in [
            &[][..],
            &[("origin", "https://kera.example:7680")],
            &[("origin", "http://Kera.Example:7680")],
            &[("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_own(&headers(&[&[host], own].concat())), "{own:?}");
        }
        for other in [
            ("origin", "null"),
            ("origin", ""),
            ("origin", "https://kera.example"),
            ("origin", "https://kera.example:7680.evil.example"),
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "none"),
        ] {
            assert!(!is_own(&headers(&[host, other])), "{other:?}");
        }
        assert!(!is_own(&headers(&[("origin", "https://")])));
    }

    #[test]
    fn what_a_form_can_send_is_no_json() {
        for (kind, is) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data; boundary=application/json", false),
            ("", false),
        ] {
            assert_eq!(is_json(&headers(&[("content-type", kind)])), is, "{kind}");
        }
        assert!(!is_json(&headers(&[])));
    }

    #[test]
    fn a_place_is_a_word_and_a_number_of_any_size() {
        let place = |body: &str| read::<Place>(body.as_bytes()).unwrap();
        let large = place(r#"{"to":"ordinal","at":"18446744073709551615"}"#).reset("g");
        let at = large.unwrap().to.and_then(|to| to.at);
        assert_eq!(at, Some(v1::start_at::At::Ordinal(u64::MAX)));
        for body in [
            r#"{"to":"time"}"#,
            r#"{"to":"ordinal","at":"x"}"#,
            r#"{"to":"earliest"}"#,
            r#"{"to":"everything","partition":1}"#,
        ] {
            assert!(place(body).trim("s").is_err(), "{body}");
        }
    }
}
