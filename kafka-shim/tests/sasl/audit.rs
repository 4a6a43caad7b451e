//! The audit log of what Kafka's clients do: logins, denials and changes.

use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, CreateAclsRequest, CreateAclsResponse,
    CreateTopicsRequest, CreateTopicsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse, OffsetDeleteRequest, OffsetDeleteResponse, TopicName,
};
use kera_broker::config::AuditTarget;
use serde_json::Value;

use super::*;

const TOPIC: i8 = 2;
const LITERAL: i8 = 3;
const READ: i8 = 3;
const ALLOW: i8 = 3;
const SET: i8 = 0;

async fn create_topic(client: &mut Client) {
    let topic = CreatableTopic::default()
        .with_name(TopicName(words("orders")))
        .with_num_partitions(3)
        .with_replication_factor(-1);
    // Once it is only checked whether it could be made.
    for validate_only in [true, false] {
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic.clone()])
            .with_validate_only(validate_only);
        let reply: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 5, &request).await;
        assert_eq!(reply.topics[0].error_code, 0);
    }
}

async fn delete_topic(client: &mut Client, name: &str) -> i16 {
    let names = vec![TopicName(words(name))];
    let request = DeleteTopicsRequest::default().with_topic_names(names);
    let reply: DeleteTopicsResponse = client.call(ApiKey::DeleteTopics, 5, &request).await;
    reply.responses[0].error_code
}

async fn alter_topic(client: &mut Client) {
    let config = AlterableConfig::default()
        .with_name(words("retention.ms"))
        .with_config_operation(SET)
        .with_value(Some(words("60000")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(words("orders"))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let reply: IncrementalAlterConfigsResponse = client
        .call(ApiKey::IncrementalAlterConfigs, 1, &request)
        .await;
    assert_eq!(reply.responses[0].error_code, 0);
}

/// Of a group that there is not, of a topic that there is and of one that there is not.
async fn delete_offsets(client: &mut Client) {
    let topic = |name| {
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(1);
        OffsetDeleteRequestTopic::default()
            .with_name(TopicName(words(name)))
            .with_partitions(vec![partition])
    };
    let request = OffsetDeleteRequest::default()
        .with_group_id(words("late").into())
        .with_topics(vec![topic("orders"), topic("nowhere")]);
    let reply: OffsetDeleteResponse = client.call(ApiKey::OffsetDelete, 0, &request).await;
    let of_topics = reply.topics.iter().flat_map(|topic| &topic.partitions);
    let refused = of_topics.filter(|partition| partition.error_code != 0);
    assert!(reply.error_code != 0 || refused.count() == 2);
}

async fn change_rules(client: &mut Client) {
    let creation = AclCreation::default()
        .with_resource_type(TOPIC)
        .with_resource_pattern_type(LITERAL)
        .with_resource_name(words("orders"))
        .with_principal(words("User:bob"))
        .with_host(words("*"))
        .with_operation(READ)
        .with_permission_type(ALLOW);
    let request = CreateAclsRequest::default().with_creations(vec![creation]);
    let reply: CreateAclsResponse = client.call(ApiKey::CreateAcls, 2, &request).await;
    assert_eq!(reply.results[0].error_code, 0);
    let filter = DeleteAclsFilter::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(Some(words("User:bob")))
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let request = DeleteAclsRequest::default().with_filters(vec![filter]);
    let reply: DeleteAclsResponse = client.call(ApiKey::DeleteAcls, 2, &request).await;
    assert_eq!(reply.filter_results[0].matching_acls.len(), 1);
}

async fn change_quota(client: &mut Client) {
    let entity = EntityData::default()
        .with_entity_type(words("user"))
        .with_entity_name(Some(words("bob")));
    let op = OpData::default()
        .with_key(words("producer_byte_rate"))
        .with_value(4096.0);
    let entry = EntryData::default()
        .with_entity(vec![entity])
        .with_ops(vec![op]);
    let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
    let reply: AlterClientQuotasResponse =
        client.call(ApiKey::AlterClientQuotas, 1, &request).await;
    assert_eq!(reply.entries[0].error_code, 0);
}

async fn change_user(client: &mut Client) -> Bytes {
    let salted = Bytes::from(made(Mechanism::Sha256, "new").salted);
    let put = ScramCredentialUpsertion::default()
        .with_name(words("eve"))
        .with_mechanism(1)
        .with_iterations(ROUNDS as i32)
        .with_salt(Bytes::from_static(b"sixteen bytes!!!"))
        .with_salted_password(salted.clone());
    let deletion = ScramCredentialDeletion::default()
        .with_name(words("nobody"))
        .with_mechanism(1);
    let request = AlterUserScramCredentialsRequest::default()
        .with_upsertions(vec![put])
        .with_deletions(vec![deletion]);
    let reply: AlterUserScramCredentialsResponse = client
        .call(ApiKey::AlterUserScramCredentials, 0, &request)
        .await;
    assert_eq!(reply.results.len(), 2);
    salted
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_says_who_logged_in_and_what_they_changed() {
    let logs = tempfile::tempdir().unwrap();
    let path = logs.path().join("audit.log");
    let to = AuditTarget::File(path.clone());
    let world = World::with(|config| {
        asking(config);
        config.acl.enabled = true;
        config.acl.super_users = vec!["User:ann".to_owned()];
        config.audit.to = to;
    })
    .await;
    user(&world, "ann", "right").await;
    user(&world, "bob", "right").await;

    let mut ann = world.client().await;
    assert_eq!(scram(&mut ann, Mechanism::Sha256, "ann", "right").await, 0);
    let mut wrong = world.client().await;
    assert_ne!(
        scram(&mut wrong, Mechanism::Sha512, "ann", "guessed").await,
        0
    );
    let mut wrong = world.client().await;
    assert_ne!(plain(&mut wrong, b"\0bob\0guessed").await, 0);
    let mut silent = world.client().await;
    let all = MetadataRequest::default().with_topics(None);
    silent.send(ApiKey::Metadata, 9, &all).await;
    assert!(silent.closed().await);

    create_topic(&mut ann).await;
    alter_topic(&mut ann).await;
    change_rules(&mut ann).await;
    change_quota(&mut ann).await;
    let salted = change_user(&mut ann).await;
    delete_offsets(&mut ann).await;
    let mut bob = world.client().await;
    assert_eq!(plain(&mut bob, b"\0bob\0right").await, 0);
    assert_ne!(delete_topic(&mut bob, "orders").await, 0);
    assert_eq!(delete_topic(&mut ann, "orders").await, 0);
    drop((ann, bob));
    world.broker.shutdown().await;

    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect();
    let shown = |line: &Value| {
        let keys = [
            "event",
            "result",
            "user",
            "mechanism",
            "action",
            "name",
            "detail",
        ];
        let values = keys.map(|key| line[key].as_str().unwrap_or("-").to_owned());
        values.join(" | ")
    };
    let told: Vec<_> = lines.iter().map(shown).collect();
    let rule = "allow User:bob";
    let expected = [
        "login | done | User:ann | SCRAM-SHA-256 | - | - | -",
        "login | refused | User:ann | SCRAM-SHA-512 | - | - | -",
        "login | refused | User:bob | PLAIN | - | - | -",
        "login | refused | - | - | - | - | -",
        "change | done | User:ann | - | create_stream | orders | ",
        "change | done | User:ann | - | alter_stream | orders | retention_ms=60000",
        "change | done | User:ann | - | add_rule | ",
        "change | done | User:ann | - | remove_rule | ",
        "change | done | User:ann | - | alter_quota | user bob | producer_byte_rate=4096",
        "change | failed | User:ann | - | delete_user | nobody | SCRAM-SHA-256",
        "change | done | User:ann | - | put_user | eve | SCRAM-SHA-256",
        "change | failed | User:ann | - | delete_offsets | late | orders [1]",
        "login | done | User:bob | PLAIN | - | - | -",
        "access | refused | User:bob | - | delete | orders | -",
        "change | done | User:ann | - | delete_stream | orders | -",
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}\nis not\n{expected}");
    }
    for rules in &told[6..8] {
        assert!(rules.contains(rule) && rules.contains("orders"), "{rules}");
    }
    assert!(lines.iter().all(|line| line["listener"] == "kafka"));
    assert!(lines.iter().all(|line| line["host"] == "127.0.0.1"));
    // Nothing that is as good as a password.
    let hex: String = salted.iter().map(|byte| format!("{byte:02x}")).collect();
    for secret in ["right", "guessed", "sixteen bytes", &hex] {
        assert!(!text.contains(secret), "{secret}");
    }
}
