//! The addresses at which Kafka clients connect.

use std::net::SocketAddr;
use std::sync::Arc;

use kera_broker::config::{Listener, ListenerName, Via};
use kera_broker::counted::Counted;
use kera_broker::listener::set_up;
use kera_broker::principal::Principal;
use kera_broker::socket::{bind, next};
use kera_broker::{BrokerError, Shared};
use tokio::net::TcpListener;

use crate::apis::{self, APIS};
use crate::connection;
use crate::context::{Ctx, KafkaSettings, ListenerInfo, RequestMetrics};
use crate::fetch::SessionRoom;
use crate::reply_room::Turns;

/// Listeners that serve until the broker stops.
#[derive(Debug)]
pub struct Listeners {
    /// Their addresses, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
}

/// Listens for Kafka clients at every configured address, for as long as the broker runs.
///
/// # Errors
/// [`BrokerError::Listen`] if an address cannot be bound.
pub async fn start(shared: Arc<Shared>) -> Result<Listeners, BrokerError> {
    let kafka = &shared.config.kafka;
    let settings = Arc::new(KafkaSettings {
        max_reply_bytes: usize::try_from(kafka.max_reply_bytes).unwrap_or(usize::MAX),
        turns: Turns::default(),
        sessions: SessionRoom::new(kafka.max_fetch_session_partitions as usize),
        requests: APIS
            .iter()
            .map(|api| (api.key, RequestMetrics::new(&shared.data.metrics, api.name)))
            .collect(),
    });
    let mut bound = Vec::with_capacity(kafka.listen.len());
    for (listen, advertise) in kafka.listeners() {
        let address = &listen.address;
        let listener = bind(address, "kafka.listen").await?;
        let local = listener.local_addr().map_err(|error| BrokerError::Listen {
            address: address.clone(),
            key: "kafka.listen",
            error,
        })?;
        bound.push((listener, local, listen.name.clone(), advertise));
    }
    let mut addresses = Vec::with_capacity(bound.len());
    let mut told = Vec::with_capacity(bound.len());
    let mut serving = Vec::with_capacity(bound.len());
    for (number, (listener, local, name, advertise)) in bound.into_iter().enumerate() {
        let (advertised_host, advertised_port) = advertised(local, advertise);
        let advertised = format!("{advertised_host}:{advertised_port}");
        let security = shared.config.security_at(Listener::Kafka, name.as_ref());
        tracing::info!(address = %local, advertised, protocol = security.protocol().name(), "serving Kafka clients");
        addresses.push(local);
        let text = name.as_ref().map(|name| name.as_str().to_owned());
        told.push((text, advertised));
        let info = Arc::new(ListenerInfo {
            advertised_host,
            advertised_port,
            number,
            name,
            security,
        });
        serving.push(accept(listener, info, settings.clone(), shared.clone()));
    }
    shared.data.directory.announce_kafka(told);
    for accepting in serving {
        tokio::spawn(accepting);
    }
    Ok(Listeners { addresses })
}

/// What clients are told: what is configured, or the bound address, or loopback where it is bound
/// to every interface. Port 0 stands for the port that was bound.
fn advertised(local: SocketAddr, configured: Option<&str>) -> (String, i32) {
    let (host, port) = match configured.and_then(|text| text.rsplit_once(':')) {
        Some((host, port)) => (
            host.trim_start_matches('[')
                .trim_end_matches(']')
                .to_string(),
            port.parse()
                .ok()
                .filter(|port| *port != 0)
                .unwrap_or(local.port()),
        ),
        None if local.ip().is_unspecified() => ("127.0.0.1".to_string(), local.port()),
        None => (local.ip().to_string(), local.port()),
    };
    (host, i32::from(port))
}

async fn accept(
    listener: TcpListener,
    info: Arc<ListenerInfo>,
    settings: Arc<KafkaSettings>,
    shared: Arc<Shared>,
) {
    let mut stopping = shared.stopping.subscribe();
    let via = Via::new(
        Listener::Kafka,
        info.name.as_ref().map(ListenerName::as_str),
    );
    while let Some((stream, peer)) = next(&listener, &mut stopping).await {
        let admitted = match Counted::admit(&shared, via, peer.ip()) {
            Ok(admitted) => admitted,
            Err(reason) => {
                // The protocol has no way to say why.
                shared.refuse(via, peer.ip(), reason);
                continue;
            }
        };
        if let Err(error) = set_up(&stream) {
            tracing::debug!(%peer, %error, "a connection ended at once");
            continue;
        }
        let ctx = Ctx {
            principal: Principal::Anonymous,
            shared: shared.clone(),
            listener: info.clone(),
            settings: settings.clone(),
            client_id: None,
            peer,
            api: apis::PRODUCE,
            shares: Arc::default(),
            room: Arc::default(),
        };
        tokio::spawn(async move {
            if let Some((counted, wanted)) = admitted.turn().await {
                connection::serve(stream, ctx, counted, wanted).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(local: &str, configured: Option<&str>) -> (String, i32) {
        advertised(local.parse().unwrap(), configured)
    }

    #[test]
    fn what_clients_are_told() {
        assert_eq!(at("127.0.0.1:9092", None), ("127.0.0.1".into(), 9092));
        assert_eq!(at("0.0.0.0:9092", None), ("127.0.0.1".into(), 9092));
        assert_eq!(at("0.0.0.0:9092", Some("kera:9093")), ("kera".into(), 9093));
        assert_eq!(at("0.0.0.0:9092", Some("kera:0")), ("kera".into(), 9092));
        assert_eq!(at("[::1]:9092", Some("[::1]:1")), ("::1".into(), 1));
    }
}
