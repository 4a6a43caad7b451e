//! What a broker logs, changed while it runs.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse, ApiKey};
use parking_lot::Mutex;

use crate::common::{Client, World};
use crate::configs::{APPEND, DELETE, SET, change_some, describe, find};
use crate::{assert_code, versions, words};

const LOGGERS: i8 = 8;

/// A broker's filters, one after the other.
fn filters(world: &World) -> Arc<Mutex<Vec<String>>> {
    let filters: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = filters.clone();
    world.broker.shared().log_levels.applied_by(move |filter| {
        seen.lock().push(filter.to_owned());
        Ok(())
    });
    filters
}

async fn level(client: &mut Client, version: i16, name: &str) -> (String, i8) {
    let result = describe(client, version, LOGGERS, "1", Some(&[name])).await;
    assert_eq!((result.error_code, result.configs.len()), (0, 1), "{name}");
    let config = find(&result, name);
    assert!(!config.read_only, "{name}");
    let value = config.value.as_ref().expect("a level");
    (value.as_str().to_owned(), config.config_source)
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_are_told_changed_and_as_configured_again() {
    let world = World::with(|config| config.log.level = "warn,kera_rpc=debug".to_owned()).await;
    let filters = filters(&world);
    let mut client = world.client().await;
    let mut expected = Vec::new();
    for version in versions(ApiKey::IncrementalAlterConfigs) {
        let changes = [
            ("root", SET, Some("INFO")),
            ("kera_rpc", SET, Some("Trace")),
            ("kera_broker::cluster", SET, Some("FATAL")),
        ];
        for (only_check, rpc) in [(true, ("DEBUG", 5)), (false, ("TRACE", 6))] {
            let (code, text) =
                change_some(&mut client, version, LOGGERS, "1", &changes, only_check).await;
            assert_eq!(code, 0, "{text}");
            for version in versions(ApiKey::DescribeConfigs) {
                let told = level(&mut client, version, "kera_rpc").await;
                assert_eq!(told, (rpc.0.to_owned(), rpc.1));
            }
        }
        let told = level(&mut client, 4, "kera_broker::cluster").await;
        assert_eq!(told, ("ERROR".to_owned(), 6));
        assert_eq!(level(&mut client, 4, "kera_broker").await.0, "INFO");
        let back = [
            ("kera_rpc", DELETE, None),
            ("kera_broker::cluster", DELETE, None),
        ];
        let (code, text) = change_some(&mut client, version, LOGGERS, "1", &back, false).await;
        assert_eq!(code, 0, "{text}");
        assert_eq!(
            level(&mut client, 4, "kera_rpc").await,
            ("DEBUG".to_owned(), 5)
        );
        let root = [("root", SET, Some("WARN"))];
        change_some(&mut client, version, LOGGERS, "1", &root, false).await;
        let configured = "warn,kera_rpc=debug";
        expected.extend([
            format!("{configured},kera_broker::cluster=error,kera_rpc=trace,info,kera_audit=warn"),
            format!("{configured},info,kera_audit=warn"),
            format!("{configured},warn,kera_audit=warn"),
        ]);
    }
    assert_eq!(*filters.lock(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_changes_change_nothing() {
    let world = World::start().await;
    let filters = filters(&world);
    let mut client = world.client().await;
    let wrong = [
        (
            "kera_nobody",
            SET,
            Some("INFO"),
            ResponseError::InvalidConfig,
        ),
        (
            "kera_rpc=debug,kera",
            SET,
            Some("INFO"),
            ResponseError::InvalidConfig,
        ),
        ("kera_rpc", SET, Some("loud"), ResponseError::InvalidConfig),
        ("kera_rpc", SET, None, ResponseError::InvalidRequest),
        (
            "kera_rpc",
            APPEND,
            Some("INFO"),
            ResponseError::InvalidRequest,
        ),
        ("root", DELETE, None, ResponseError::InvalidRequest),
    ];
    for (name, operation, value, error) in wrong {
        let changes = [
            ("kera_broker", SET, Some("DEBUG")),
            (name, operation, value),
        ];
        let (code, text) = change_some(&mut client, 1, LOGGERS, "1", &changes, false).await;
        assert_code(code, error);
        assert!(!text.is_empty(), "{name}");
    }
    for broker in ["", "2"] {
        let changes = [("kera_broker", SET, Some("DEBUG"))];
        let (code, _) = change_some(&mut client, 1, LOGGERS, broker, &changes, false).await;
        assert_code(code, ResponseError::InvalidRequest);
        let result = describe(&mut client, 4, LOGGERS, broker, None).await;
        assert_code(result.error_code, ResponseError::InvalidRequest);
    }
    let config = AlterableConfig::default()
        .with_name(words("kera_broker"))
        .with_value(Some(words("DEBUG")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(LOGGERS)
        .with_resource_name(words("1"))
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    let response: AlterConfigsResponse = client.call(ApiKey::AlterConfigs, 2, &request).await;
    assert_code(
        response.responses[0].error_code,
        ResponseError::InvalidRequest,
    );
    assert!(filters.lock().is_empty());
}
