//! DescribeAcls, CreateAcls and DeleteAcls, as Kafka's tools send them.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::{
    ApiKey, CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsRequest, DescribeAclsResponse,
};
use kera_broker::access;

use crate::common::{Client, World};
use crate::words;

const TOPIC: i8 = 2;
const GROUP: i8 = 3;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;
const ANY: i8 = 1;
const MATCH: i8 = 2;
const READ: i8 = 3;
const WRITE: i8 = 4;
const ALLOW: i8 = 3;

fn creation(kind: i8, pattern: i8, name: &str, operation: i8) -> AclCreation {
    AclCreation::default()
        .with_resource_type(kind)
        .with_resource_name(words(name))
        .with_resource_pattern_type(pattern)
        .with_principal(words("User:ann"))
        .with_host(words("*"))
        .with_operation(operation)
        .with_permission_type(ALLOW)
}

async fn create(client: &mut Client, version: i16, rules: Vec<AclCreation>) -> Vec<i16> {
    let request = CreateAclsRequest::default().with_creations(rules);
    let reply: CreateAclsResponse = client.call(ApiKey::CreateAcls, version, &request).await;
    reply.results.iter().map(|one| one.error_code).collect()
}

/// The names of the rules that a filter finds, in order.
async fn found(client: &mut Client, version: i16, name: Option<&str>, pattern: i8) -> Vec<String> {
    let request = DescribeAclsRequest::default()
        .with_resource_type_filter(TOPIC)
        .with_resource_name_filter(name.map(words))
        .with_pattern_type_filter(pattern)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(ANY)
        .with_permission_type(ANY);
    let reply: DescribeAclsResponse = client.call(ApiKey::DescribeAcls, version, &request).await;
    assert_eq!(reply.error_code, 0);
    let names = reply.resources.iter();
    names
        .map(|one| format!("{}/{}", one.pattern_type, one.resource_name.as_str()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_made_found_and_removed() {
    let world = World::start().await;
    let mut client = world.client().await;
    for version in 1..=3 {
        let rules = vec![
            creation(TOPIC, LITERAL, "clicks", READ),
            creation(TOPIC, LITERAL, "*", READ),
            creation(TOPIC, PREFIXED, "cl", WRITE),
            creation(TOPIC, LITERAL, "views", READ),
            creation(GROUP, LITERAL, "clicks", READ),
        ];
        // Twice: what is there stays.
        for _ in 0..2 {
            let made = create(&mut client, version, rules.clone()).await;
            assert_eq!(made, [0; 5]);
        }
        let all = found(&mut client, version, None, ANY).await;
        assert_eq!(all, ["3/*", "4/cl", "3/clicks", "3/views"]);
        let named = found(&mut client, version, Some("clicks"), LITERAL).await;
        assert_eq!(named, ["3/clicks"]);
        let about = found(&mut client, version, Some("clicks"), MATCH).await;
        assert_eq!(about, ["3/*", "4/cl", "3/clicks"]);

        let filter = DeleteAclsFilter::default()
            .with_resource_type_filter(TOPIC)
            .with_resource_name_filter(Some(words("clicks")))
            .with_pattern_type_filter(MATCH)
            .with_principal_filter(None)
            .with_host_filter(None)
            .with_operation(READ)
            .with_permission_type(ANY);
        let everything = DeleteAclsFilter::default()
            .with_resource_type_filter(ANY)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(ANY)
            .with_principal_filter(Some(words("User:ann")))
            .with_host_filter(None)
            .with_operation(ANY)
            .with_permission_type(ANY);
        let request = DeleteAclsRequest::default().with_filters(vec![filter, everything]);
        let reply: DeleteAclsResponse = client.call(ApiKey::DeleteAcls, version, &request).await;
        let removed: Vec<_> = reply
            .filter_results
            .iter()
            .map(|one| (one.error_code, one.matching_acls.len()))
            .collect();
        assert_eq!(
            removed,
            [(0, 2), (0, 3)],
            "each with the first filter that finds it"
        );
        assert_eq!(
            found(&mut client, version, None, ANY).await,
            Vec::<String>::new()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_could_match_is_refused_and_the_rest_is_made() {
    let world = World::start().await;
    let mut client = world.client().await;
    let good = creation(TOPIC, LITERAL, "clicks", READ);
    let rules = vec![
        good.clone(),
        good.clone().with_host(words("10.0.0.0/8")),
        good.clone().with_principal(words("ann")),
        // There is no such role: the rule would be about nobody.
        good.clone().with_principal(words("Role:readers")),
        good.clone().with_resource_type(0),
        good.clone().with_resource_type(99),
        good.clone().with_operation(-1),
        good.clone().with_permission_type(1),
        good.clone().with_resource_pattern_type(2),
        good.clone().with_resource_name(words(&"x".repeat(10_000))),
    ];
    let invalid = ResponseError::InvalidRequest.code();
    let made = create(&mut client, 3, rules).await;
    assert_eq!(made[0], 0);
    assert!(made[1..].iter().all(|code| *code == invalid), "{made:?}");
    let rules = access::list(world.broker.shared(), access::Filter::default())
        .await
        .unwrap();
    assert_eq!(rules.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_so_many_rules_and_no_more() {
    let world = World::start().await;
    let mut client = world.client().await;
    let many = |from: usize, count: usize| {
        let names = (from..from + count).map(|number| format!("topic-{number}"));
        names
            .map(|name| creation(TOPIC, LITERAL, &name, READ))
            .collect::<Vec<_>>()
    };
    let most = kera_metadata::access::MAX_RULES;
    let made = create(&mut client, 3, many(0, most)).await;
    assert!(made.iter().all(|code| *code == 0));
    let invalid = ResponseError::InvalidRequest.code();
    let made = create(&mut client, 3, many(most, 1)).await;
    assert_eq!(made, [invalid]);
    let rules = access::list(world.broker.shared(), access::Filter::default())
        .await
        .unwrap();
    assert_eq!(rules.len(), most, "those that were there stay");
}
