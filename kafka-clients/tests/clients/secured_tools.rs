//! Apache Kafka's own command-line tools, unchanged, over TLS with each way of logging in.
//!
//! All of them run in one process of Java, one after another: most of their time would be its start.

use std::fs;

use kera_testkit::issuer::Issuer;
use serde_json::{Value, json};

use crate::common::agent::{Agent, Client};
use crate::common::logins::{MECHANISMS, Secured, allowed};
use crate::common::{machine, tools};
use crate::share_tools;

/// What `kafka-acls.sh` and the others start.
const ACLS: &str = "org.apache.kafka.tools.AclCommand";
const CONFIGS: &str = "kafka.admin.ConfigCommand";
pub const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
pub const PRODUCER: &str = "org.apache.kafka.tools.ConsoleProducer";
const CONSUMER: &str = "org.apache.kafka.tools.consumer.ConsoleConsumer";

const PASSWORD: &str = "anns own";

pub struct Tools {
    agent: Agent,
    secured: Secured,
    /// A file with the settings of the user of a tool.
    user: String,
}

impl Tools {
    /// None where Java or Maven are missing, which is said.
    fn start(test: &str) -> Option<Self> {
        if let Some(reason) = tools::missing(&["java", "javac", "mvn"]) {
            machine::skip(&format!("{test}, Kafka's tools"), &reason);
            return None;
        }
        let class_path = tools::java("tools", "tools", &[]);
        let secured = Secured::start(&[
            "--acl-enabled",
            "true",
            "--acl-super-users",
            "User:admin",
            "--kafka-group-initial-rebalance-delay",
            "0ms",
        ]);
        let mut command = tools::java_command(&class_path);
        let tokens = format!("{},{}", secured.issuer.tokens(), token_url(&secured));
        command.args([&allowed(&tokens), "kera.Tools"]);
        Some(Self {
            agent: Agent::start(command),
            secured,
            user: String::new(),
        })
    }

    /// From now on the tools log in with these settings.
    fn log_in(&mut self, settings: &Value) {
        self.user = self.secured.path("user.properties");
        let settings = settings.as_object().expect("settings are an object");
        let lines = settings.iter().map(|(name, value)| {
            let value = value.as_str().expect("a setting is text");
            format!("{name}={}\n", value.replace('\\', "\\\\"))
        });
        fs::write(&self.user, lines.collect::<String>()).expect("a file can be written");
    }

    pub fn admin(&mut self, mechanism: &str) {
        let settings = self.secured.java_admin(mechanism);
        self.log_in(&settings);
    }

    /// Logs in as ann, whose password this is; or whose token, without any password.
    fn ann(&mut self, mechanism: &str) {
        let settings = match mechanism {
            "OAUTHBEARER" => self.secured.java_tokens(&token_url(&self.secured)),
            _ => self.secured.java(mechanism, "ann", PASSWORD),
        };
        self.log_in(&settings);
    }

    fn run(&mut self, tool: &str, words: &[&str], input: &str) -> Value {
        let begin = ["--bootstrap-server", self.secured.broker.kafka()];
        let begin = [&begin[..], &["--command-config", &self.user]].concat();
        let words = [&begin, words].concat();
        self.agent
            .answer(&json!({"class": tool, "words": words, "input": input}))
    }

    /// Runs a tool, which must succeed; what it wrote.
    pub fn feed(&mut self, tool: &str, words: &[&str], input: &str) -> String {
        let answer = self.run(tool, words, input);
        assert_eq!(answer["status"], 0, "{tool} {words:?}: {answer}");
        answer["out"].as_str().expect("text").to_owned()
    }

    pub fn does(&mut self, tool: &str, words: &[&str]) -> String {
        self.feed(tool, words, "")
    }

    /// Runs a tool, which must fail, and say this among other things.
    fn fails(&mut self, tool: &str, words: &[&str], input: &str, why: &str) {
        let answer = self.run(tool, words, input);
        let said = [&answer["out"], &answer["err"]].map(|text| text.as_str().expect("text"));
        let failed = answer["status"] != 0 && said.concat().contains(why);
        assert!(failed, "{tool} {words:?} is to fail with {why}: {answer}");
    }

    /// The same of a tool that changes or tells settings of something.
    pub fn alter(&mut self, of: &[&str], how: &[&str]) {
        let said = self.does(CONFIGS, &[&["--alter"], of, how].concat());
        assert!(
            said.contains("Completed updating"),
            "{of:?} {how:?}: {said}"
        );
    }

    pub fn describe(&mut self, of: &[&str]) -> String {
        self.does(CONFIGS, &[&["--describe"], of].concat())
    }

    /// Rules that are listed for these words, as they are written there, sorted.
    fn rules(&mut self, words: &[&str]) -> Vec<String> {
        let listed = self.does(ACLS, &[&["--list"], words].concat());
        let lines = listed
            .lines()
            .filter_map(|line| line.trim().strip_prefix('('));
        let mut rules: Vec<_> = lines
            .map(|line| line.trim_end_matches(')').to_owned())
            .collect();
        rules.sort();
        rules
    }
}

fn token_url(secured: &Secured) -> String {
    format!("file://{}", secured.path("token"))
}

fn rule(who: &str, host: &str, operation: &str, permission: &str) -> String {
    format!("principal={who}, host={host}, operation={operation}, permissionType={permission}")
}

fn allows(operations: &[&str]) -> Vec<String> {
    let rule = |operation: &&str| rule("User:ann", "*", operation, "ALLOW");
    operations.iter().map(rule).collect()
}

#[test]
fn kafkas_own_tools_over_tls_with_each_mechanism() {
    let Some(mut tools) = Tools::start("kafkas_own_tools_over_tls_with_each_mechanism") else {
        return;
    };
    write_token(&tools.secured, &tools.secured.issuer);
    for mechanism in MECHANISMS {
        a_user_comes_works_and_goes(&mut tools, mechanism);
    }
    tools.admin("SCRAM-SHA-512");
    rules_with_prefixes_and_denials(&mut tools);
    quotas(&mut tools);
    settings_of_topics_and_brokers(&mut tools);
    share_tools::a_share_group_works_and_is_set_back(&mut tools);
    assert!(!tools.secured.broker.log().contains("panicked"));
}

/// A token of ann's in a file, where the admin's come from the issuer.
fn write_token(secured: &Secured, issuer: &Issuer) {
    let token = issuer.sign(&issuer.claims("ann", 3600));
    fs::write(secured.path("token"), token).expect("a file can be written");
}

fn a_user_comes_works_and_goes(tools: &mut Tools, mechanism: &str) {
    let has_password = mechanism != "OAUTHBEARER";
    let topic = format!("orders-{}", mechanism.to_lowercase());
    let (topic, user) = (
        topic.as_str(),
        ["--entity-type", "users", "--entity-name", "ann"],
    );
    tools.admin(mechanism);
    tools.does(TOPICS, &["--create", "--topic", topic, "--partitions", "2"]);
    if has_password {
        let passwords = format!(
            "SCRAM-SHA-256=[iterations=8192,password={PASSWORD}],SCRAM-SHA-512=[password={PASSWORD}]"
        );
        tools.alter(&user, &["--add-config", &passwords]);
        let described = tools.describe(&user);
        let both = "'ann' are SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096";
        assert!(described.contains(both), "{described}");
        assert!(
            tools
                .describe(&user[..2])
                .contains("'admin' are SCRAM-SHA-256=")
        );
    }
    let produce = ["--topic", topic, "--sync"];
    tools.ann(mechanism);
    tools.fails(PRODUCER, &produce, "early\n", "AuthorizationException");

    tools.admin(mechanism);
    let ann = ["--allow-principal", "User:ann"];
    let add = |words: &[&str]| -> Vec<String> {
        let words = [&["--add", "--topic", topic], &ann[..], words].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    for words in [
        add(&["--producer"]),
        add(&["--consumer", "--group", "billing"]),
    ] {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        tools.does(ACLS, &words);
    }
    let listed = tools.rules(&["--topic", topic]);
    assert_eq!(listed, allows(&["CREATE", "DESCRIBE", "READ", "WRITE"]));
    let listed = tools.rules(&["--group", "billing"]);
    assert_eq!(listed, allows(&["READ"]));

    tools.ann(mechanism);
    tools.feed(PRODUCER, &produce[..2], "one\ntwo\n");
    let words = [
        "--from-beginning",
        "--max-messages",
        "2",
        "--group",
        "billing",
    ];
    let read = tools.does(CONSUMER, &[&words, &produce[..2]].concat());
    let mut read: Vec<_> = read.lines().collect();
    read.sort_unstable();
    assert_eq!(read, ["one", "two"]);

    tools.admin(mechanism);
    tools.does(ACLS, &["--remove", "--topic", topic, "--force"]);
    assert!(tools.rules(&["--topic", topic]).is_empty());
    let group = ["--remove", "--group", "billing", "--consumer", "--force"];
    tools.does(ACLS, &[&group[..], &ann, &["--topic", topic]].concat());
    assert!(tools.rules(&[]).is_empty());
    tools.ann(mechanism);
    tools.fails(PRODUCER, &produce, "late\n", "AuthorizationException");

    if has_password {
        tools.admin(mechanism);
        tools.alter(&user, &["--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512"]);
        assert!(!tools.describe(&user[..2]).contains("'ann'"));
        tools.ann(mechanism);
        tools.fails(PRODUCER, &produce, "gone\n", "SaslAuthenticationException");
    }
}

fn rules_with_prefixes_and_denials(tools: &mut Tools) {
    for topic in ["pay.in", "pay.secret"] {
        tools.does(TOPICS, &["--create", "--topic", topic]);
    }
    let prefixed = ["--topic", "pay.", "--resource-pattern-type", "prefixed"];
    let ann = ["--allow-principal", "User:ann"];
    let operations = ["--operation", "Write", "--operation", "Describe"];
    tools.does(
        ACLS,
        &[&["--add"], &ann[..], &operations, &prefixed].concat(),
    );
    let deny = ["--deny-principal", "User:ann", "--deny-host", "127.0.0.1"];
    let secret = ["--operation", "Write", "--topic", "pay.secret"];
    tools.does(ACLS, &[&["--add"], &deny[..], &secret].concat());
    tools.ann("OAUTHBEARER");
    tools.feed(PRODUCER, &["--topic", "pay.in", "--sync"], "in\n");
    let words = ["--topic", "pay.secret", "--sync"];
    tools.fails(PRODUCER, &words, "in\n", "TopicAuthorizationException");
    tools.fails(ACLS, &["--list"], "", "ClusterAuthorizationException");

    tools.admin("PLAIN");
    let denied = rule("User:ann", "127.0.0.1", "WRITE", "DENY");
    let mut all = allows(&["DESCRIBE", "WRITE"]);
    assert_eq!(tools.rules(&prefixed), all);
    assert_eq!(tools.rules(&secret[2..]), [denied.as_str()]);
    let matching = [&secret[2..], &["--resource-pattern-type", "match"]].concat();
    all.push(denied);
    all.sort();
    assert_eq!(tools.rules(&matching), all);
    assert_eq!(tools.rules(&["--principal", "User:ann"]), all);
    assert!(tools.rules(&["--principal", "User:bob"]).is_empty());

    let words = [
        &["--remove", "--force", "--operation", "Write"],
        &ann[..],
        &prefixed,
    ];
    tools.does(ACLS, &words.concat());
    assert_eq!(tools.rules(&prefixed), allows(&["DESCRIBE"]));
    for (what, operation) in [
        (vec!["--cluster"], "IdempotentWrite"),
        (vec!["--transactional-id", "*"], "Write"),
        (
            vec!["--group", "b", "--resource-pattern-type", "prefixed"],
            "Read",
        ),
    ] {
        let words = [&["--operation", operation], &ann[..], &what].concat();
        tools.does(ACLS, &[&["--add"], &words[..]].concat());
        let listed = tools.rules(&what);
        assert_eq!(listed.len(), 1, "{listed:?}");
        tools.does(ACLS, &[&["--remove", "--force"], &words[..]].concat());
        assert!(tools.rules(&what).is_empty(), "{what:?}");
    }
}

fn quotas(tools: &mut Tools) {
    let users = ["--entity-type", "users"];
    let clients = ["--entity-type", "clients"];
    let ips = ["--entity-type", "ips"];
    let named = |kind: &[&'static str], name| [kind, &["--entity-name", name]].concat();
    let default = |kind: &[&'static str]| [kind, &["--entity-default"]].concat();
    let ann = named(&users, "ann");
    let ann_by_c1 = [&ann[..], &named(&clients, "c1")].concat();
    // Whose it is, what is set, and how it is told.
    let quotas = [
        (
            ann.clone(),
            "producer_byte_rate=1048576,request_percentage=25",
            "user-principal 'ann' are producer_byte_rate=1048576.0, request_percentage=25.0",
        ),
        (
            default(&users),
            "consumer_byte_rate=2048",
            "the default user-principal are consumer_byte_rate=2048.0",
        ),
        (
            named(&clients, "c1"),
            "producer_byte_rate=4096",
            "client-id 'c1' are producer_byte_rate=4096.0",
        ),
        (
            default(&clients),
            "request_percentage=200",
            "the default client-id are request_percentage=200.0",
        ),
        (
            ann_by_c1,
            "controller_mutation_rate=10",
            "user-principal 'ann', client-id 'c1' are controller_mutation_rate=10.0",
        ),
        (
            named(&ips, "10.9.8.7"),
            "connection_creation_rate=100",
            "ip '10.9.8.7' are connection_creation_rate=100.0",
        ),
        (
            default(&ips),
            "connection_creation_rate=5000",
            "the default ip are connection_creation_rate=5000.0",
        ),
    ];
    for (whose, set, _) in &quotas {
        tools.alter(whose, &["--add-config", set]);
    }
    for (whose, _, told) in &quotas {
        let described = tools.describe(whose);
        assert!(described.contains(told), "{told}: {described}");
    }
    let described = tools.describe(&users);
    for told in [quotas[0].2, quotas[1].2] {
        assert!(described.contains(told), "{told}: {described}");
    }
    let both = [&users[..], &clients].concat();
    assert!(tools.describe(&both).contains(quotas[4].2));
    tools.alter(&ann, &["--delete-config", "producer_byte_rate"]);
    let described = tools.describe(&ann);
    assert!(
        described.contains("'ann' are request_percentage=25.0"),
        "{described}"
    );
    tools.alter(&ann, &["--delete-config", "request_percentage"]);
    for (whose, set, _) in &quotas[1..] {
        let name = set.split('=').next().expect("a name");
        tools.alter(whose, &["--delete-config", name]);
    }
    for kind in [&users[..], &clients, &ips, &both] {
        let described = tools.describe(kind);
        assert!(!described.contains("Quota configs"), "{described}");
    }
}

fn settings_of_topics_and_brokers(tools: &mut Tools) {
    let topic = ["--topic", "pay.in"];
    let set = "retention.ms=60000,cleanup.policy=[compact,delete]";
    tools.alter(&topic, &["--add-config", set]);
    let described = tools.describe(&topic);
    for told in ["  retention.ms=60000 ", "  cleanup.policy=compact,delete "] {
        assert!(described.contains(told), "{described}");
    }
    let all = tools.describe(&[&topic[..], &["--all"]].concat());
    assert!(all.contains("segment.bytes="), "{all}");
    tools.alter(&topic, &["--delete-config", "retention.ms"]);
    let described = tools.describe(&topic);
    assert!(!described.contains("retention.ms"), "{described}");
    let wrong = [
        "--alter",
        "--topic",
        "pay.in",
        "--add-config",
        "retention.ms=soon",
    ];
    tools.fails(CONFIGS, &wrong, "", "InvalidConfigurationException");

    let (one, all) = (["--broker", "1"], ["--broker-defaults"]);
    tools.alter(&one, &["--add-config", "num.partitions=3"]);
    tools.alter(&all, &["--add-config", "num.partitions=4"]);
    let described = tools.describe(&one);
    assert!(described.contains("  num.partitions=3 "), "{described}");
    assert!(described.contains("DYNAMIC_DEFAULT_BROKER_CONFIG:num.partitions=4"));
    assert!(tools.describe(&all).contains("  num.partitions=4 "));
    tools.does(TOPICS, &["--create", "--topic", "of-three"]);
    let described = tools.does(TOPICS, &["--describe", "--topic", "of-three"]);
    assert!(described.contains("PartitionCount: 3"), "{described}");
    for which in [&one[..], &all] {
        tools.alter(which, &["--delete-config", "num.partitions"]);
        let described = tools.describe(which);
        assert!(!described.contains("num.partitions"), "{described}");
    }
    // Secrets are told to nobody, and where their files are is.
    let described = tools.describe(&["--broker", "1", "--all"]);
    assert!(
        described.contains("auth.first_user_password_file="),
        "{described}"
    );
    let wrong = ["--alter", "--broker", "1", "--add-config", "node.id=7"];
    tools.fails(CONFIGS, &wrong, "", "InvalidConfigurationException");
    what_is_logged(tools);
}

fn what_is_logged(tools: &mut Tools) {
    let one = ["--broker-logger", "1"];
    let described = tools.describe(&one);
    assert!(described.contains("  kera_broker=INFO "), "{described}");
    tools.alter(&one, &["--add-config", "kera_broker=DEBUG,root=WARN"]);
    let described = tools.describe(&one);
    for told in ["  kera_broker=DEBUG ", "  root=WARN ", "  kera_rpc=WARN "] {
        assert!(described.contains(told), "{described}");
    }
    tools.alter(&one, &["--delete-config", "kera_broker"]);
    tools.alter(&one, &["--add-config", "root=INFO"]);
    assert!(tools.describe(&one).contains("  kera_broker=INFO "));
    let add = ["--alter", "--broker-logger", "1", "--add-config"];
    for (wrong, why) in [
        ("kera_nobody=INFO", "Invalid"),
        ("root=LOUD", "not a log level"),
    ] {
        tools.fails(CONFIGS, &[&add[..], &[wrong]].concat(), "", why);
    }
}
