//! The one table of configuration keys.
//!
//! Everything else is derived from it: the structs that the broker reads, the keys a file may
//! hold, the names of environment variables and flags, and `docs/configuration.md`.

use std::path::PathBuf;
use std::time::Duration;

use kera_rpc::SaslMechanism;
use kera_telemetry::Signal;

use super::acl::Users;
use super::address_limits::{AddressLimit, AddressLimits};
use super::api::{MaskRules, OpenPath, OpenPaths};
use super::audit::{AuditTarget, AuditTargetKind};
use super::auth::{AuthListeners, Mechanisms};
use super::cluster::{BrokerNumber, DirectoryOrAuto, HostName, RackName, StoreAddress};
use super::etcd::{FileOrOff, UserName};
use super::key::Key;
use super::kinds::{
    Address, AddressOrAuto, AddressOrOff, ClientAuth, ClientAuthKind, Count, Directory,
    EngineChoice, EngineKind, Kind, Limits, LogFilter, LogFormat, LogFormatKind, PrefixOrOff, Size,
    Switch, Time, TransportChoice, TransportKind,
};
use super::listeners::{Accepted, Insecure, Listener};
use super::named::{
    AddressesOrAuto, AddressesOrOff, ListenerName, NamedAddress, NativeAddressList, NativeAddresses,
};
use super::oauth::{Algorithms, ClaimName, KeySource, KeysAt, TextOrOff, Texts, TokenAlgorithm};
use super::protocols::{
    NamedClientAuth, NamedCounts, NamedMechanisms, NamedProtocols, SecurityProtocol,
};
use super::telemetry::{CollectorOrOff, Signals};
use super::tls::{TlsListener, TlsListeners};
use super::units::{GIB, KIB, MIB, TIB};

macro_rules! limits {
    () => {
        Limits::NONE
    };
    ($min:expr, $max:expr) => {
        Limits {
            min: $min,
            max: $max,
        }
    };
}

macro_rules! config_keys {
    (
        { $( $(#[doc = $tdoc:literal])+ $tkey:ident : $tty:ty, $tkind:ident [$($tlimits:tt)*] = $tdefault:literal; )+ }
        $(
            $(#[doc = $sdoc:literal])+
            $section:ident : $Section:ident {
                $( $(#[doc = $doc:literal])+ $key:ident : $ty:ty, $kind:ident [$($limits:tt)*] = $default:literal; )+
            }
        )+
    ) => {
        /// Everything a broker can be told, as plain values after every source was considered.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct BrokerConfig {
            $( $(#[doc = $tdoc])+ pub $tkey: $tty, )+
            $( $(#[doc = $sdoc])+ pub $section: $Section, )+
        }

        $(
            $(#[doc = $sdoc])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Section {
                $( $(#[doc = $doc])+ pub $key: $ty, )+
            }
        )+

        impl Default for BrokerConfig {
            fn default() -> Self {
                Self {
                    $( $tkey: default_of::<$tkind>(stringify!($tkey), $tdefault), )+
                    $( $section: $Section {
                        $( $key: default_of::<$kind>(concat!(stringify!($section), ".", stringify!($key)), $default), )+
                    }, )+
                }
            }
        }

        /// Every key, in the order in which files and documents list them.
        pub static KEYS: &[Key] = &[
            $( Key {
                name: stringify!($tkey),
                section: "",
                doc: &[$($tdoc),+],
                form: <$tkind as Kind>::FORM,
                default: $tdefault,
                limits: limits!($($tlimits)*),
                show_limits: <$tkind as Kind>::show_limits,
                set: |config, text, limits| {
                    config.$tkey = <$tkind as Kind>::parse(text, limits)?;
                    Ok(())
                },
                show: |config| <$tkind as Kind>::show(&config.$tkey),
                bare: <$tkind as Kind>::BARE,
                list: <$tkind as Kind>::LIST,
            }, )+
            $( $( Key {
                name: concat!(stringify!($section), ".", stringify!($key)),
                section: stringify!($section),
                doc: &[$($doc),+],
                form: <$kind as Kind>::FORM,
                default: $default,
                limits: limits!($($limits)*),
                show_limits: <$kind as Kind>::show_limits,
                set: |config, text, limits| {
                    config.$section.$key = <$kind as Kind>::parse(text, limits)?;
                    Ok(())
                },
                show: |config| <$kind as Kind>::show(&config.$section.$key),
                bare: <$kind as Kind>::BARE,
                list: <$kind as Kind>::LIST,
            }, )+ )+
        ];

        /// Every section with what it is about, in the order of [`KEYS`].
        pub static SECTIONS: &[(&str, &[&str])] = &[
            $( (stringify!($section), &[$($sdoc),+]), )+
        ];
    };
}

/// The default of a key. The table is checked by a test, so a default that does not parse never
/// leaves this repository.
fn default_of<K: Kind>(name: &str, text: &str) -> K::Value {
    match K::parse(text, &Limits::NONE) {
        Ok(value) => value,
        Err(error) => unreachable!("the default of {name}: {error}"),
    }
}

const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

config_keys! {
    {
        /// Where streams, metadata and consumer positions are kept. One broker at a time: the
        /// directory is locked while a broker runs. Must not be on a tmpfs if records are to
        /// survive a restart of the machine. When the key is not set at all, the directory is
        /// `$XDG_DATA_HOME/kera`, or `~/.local/share/kera`, or, without a home, `/var/lib/kera`.
        data_dir: PathBuf, Directory [] = "/var/lib/kera";
        /// What the broker is to do without protection. It does not start with an address beyond loopback
        /// at which clients prove nothing, neither by certificate nor by password, and no rules say what strangers may
        /// do, unless its listener, or its name, is here. `etcd`: nor with users, rules or TLS and an etcd on another machine without
        /// TLS or without a proof of who the broker is. docs/security.md.
        insecure: Vec<Insecure>, Accepted [] = "false";
    }

    /// What clients connect to.
    server: ServerConfig {
        /// The native address, for control calls and data, or several. Other brokers go to the first. An address may have a
        /// name, by which `[listeners]` says what it protects, and by which clients that come in there are told the addresses of
        /// all brokers: `internal=10.0.0.1:7600,external=0.0.0.0:7610`.
        listen: NativeAddresses, NativeAddressList [] = "127.0.0.1:7600";
        /// The address that clients are told to use, or one for each of `server.listen` in the same order, or by names:
        /// `external=broker1.example:7610`. `auto`, or a name that is left out, is the address listened on; set it
        /// when clients reach the broker by another name or through a mapped port.
        advertise: Vec<NamedAddress>, AddressesOrAuto [] = "auto";
        /// The most client connections at a time. Fewer if the process may not open as many files. At the limit
        /// a new connection replaces the one that has been silent for longest: no hello, or no whole request.
        /// If none is silent, the broker answers the new one with TOO_MANY_CONNECTIONS and closes it.
        max_connections: u32, Count [1, 1_000_000] = "4096";
        /// The most client connections at a time from one IPv4 address, or from one /64 of IPv6. At the limit a silent
        /// connection of the same address makes room, else the broker answers TOO_MANY_CONNECTIONS. Other brokers of the
        /// cluster are not limited. Below `server.max_connections` it keeps one machine from taking all places; mind
        /// clients behind one address.
        max_connections_per_address: u32, Count [1, 1_000_000] = "1000000";
        /// Limits of single addresses instead of `server.max_connections_per_address`: `10.0.0.7:500,[2001:db8::7]:20`. 0
        /// keeps an address out. An address of IPv6 stands for its /64.
        max_connections_per_address_overrides: Vec<AddressLimit>, AddressLimits [] = "off";
        /// Connections reserved for programs on the broker's own machine (loopback) at `server.listen`, beyond
        /// `server.max_connections` and `server.max_connections_per_address`: when clients have taken all, the command line
        /// gets in there and tells who they are.
        reserved_connections: u32, Count [0, 1000] = "8";
        /// The most client connections that are opened in a second, native and of Kafka's clients together. What a second allows
        /// may come at once; others wait for their turn, up to 3 seconds, and are refused if that is not enough. Other brokers
        /// of the cluster, and programs on the broker's own machine at `server.listen`, do not wait. It keeps thousands of
        /// clients that come back together from taking all cores with TLS handshakes and logins.
        connection_creation_rate: u32, Count [1, 1_000_000] = "1000000";
        /// The largest frame accepted from a client. A larger one is answered FRAME_TOO_LARGE and
        /// the connection is closed. Bounds the size of a batch.
        max_frame_bytes: u64, Size [64 * KIB, GIB] = "16MiB";
        /// Bytes received on one connection and not yet answered. At the limit the broker stops
        /// reading that socket until appends complete.
        connection_in_flight_bytes: u64, Size [64 * KIB, 64 * GIB] = "16MiB";
        /// Bytes received on all connections and not yet answered. The same limit holds for bytes that wait to
        /// be sent, and for receive buffers larger than 16 KiB; each is at most half of `memory.pool`. At the
        /// limit the broker stops reading sockets until appends complete, and serves reads in small steps until
        /// clients take them, of one batch or up to 64 KiB. Connections that are at a step hold about a quarter of the limit
        /// together beside it, and the others wait for their turn. Where clients prove who they are, a quarter of it is kept for users that hold less than a
        /// sixteenth.
        max_in_flight_bytes: u64, Size [MIB, TIB] = "256MiB";
        /// How long a new connection may take to say which protocol it speaks.
        hello_timeout: Duration, Time [10 * MILLISECOND, 10 * MINUTE] = "5s";
        /// A data connection that sends nothing for this long, and waits for nothing, is closed.
        /// 0 keeps it open for ever.
        idle_timeout: Duration, Time [0, 30 * DAY] = "10m";
        /// A control connection (gRPC) without a call for this long is closed. So is one without a first call
        /// within `server.hello_timeout`. When 1024 are open, a new one replaces the one that has been quiet
        /// for longest. Clients connect again with their next call.
        control_idle_timeout: Duration, Time [100 * MILLISECOND, 30 * DAY] = "20s";
        /// When a frame or request does not arrive completely within this time, its connection is closed.
        /// Others may be waiting for the memory that it takes.
        receive_timeout: Duration, Time [100 * MILLISECOND, HOUR] = "1m";
        /// A client that reads nothing, or almost nothing, for this long loses its connection. While
        /// `server.max_in_flight_bytes` wait to be sent, a quarter of this time is enough, and a sixtieth, or a second, for one
        /// that keeps others from their turn.
        send_timeout: Duration, Time [100 * MILLISECOND, DAY] = "2m";
        /// How long a stopping broker waits for appends and reads in flight before it closes
        /// their connections.
        drain_timeout: Duration, Time [0, HOUR] = "10s";
    }

    /// Metrics and health over HTTP.
    http: HttpConfig {
        /// Where `/metrics`, `/livez`, `/readyz`, the console and `/api/v1` are served; `off` serves them nowhere.
        listen: Option<String>, AddressOrOff [] = "127.0.0.1:7680";
        /// What anybody may ask for there although `auth.listeners` has `http`: `probes` (`/livez`, `/healthz` and
        /// `/readyz`, as Kubernetes asks for them), `metrics` (`/metrics`). Without `http` in `auth.listeners` both are
        /// for everybody.
        open_paths: Vec<OpenPath>, OpenPaths [] = "probes";
        /// Connections at a time. One more takes the place of the one that has been quiet for longest.
        max_connections: u32, Count [1, 100_000] = "64";
        /// Streams that `/metrics` tells one by one. What it tells of the others it tells of all of them together, with
        /// the label `stream=""`.
        max_streams: u32, Count [1, 100_000] = "1000";
        /// A request must arrive and be answered within this time, or its connection is closed. A connection
        /// without a request is closed after it too.
        request_timeout: Duration, Time [100 * MILLISECOND, HOUR] = "30s";
    }

    /// What `http.listen` shows of streams, groups and brokers: the console for browsers, and the JSON API, docs/api.md.
    api: ApiConfig {
        /// Serve the console and `/api/v1` at `http.listen`: to users with a password or a token if `auth.listeners` has `http`, else
        /// to clients on this machine alone.
        enabled: bool, Switch [] = "true";
        /// Let records be looked at there. With `false` nobody sees a key, a value or a header there.
        records: bool, Switch [] = "true";
        /// What is not shown of records: fields of JSON keys, values and headers, and headers, by name, in every stream or in
        /// one (`orders:email`). `*` stands for the whole key, value and headers. A value that is anything but JSON with
        /// fields is not shown where a rule is about its stream; a key or header that is text without fields is.
        mask: Vec<String>, MaskRules [] = "off";
        /// Let people change something there: create, change, trim and delete streams, set the positions of consumer groups,
        /// drain brokers. Rules, quotas and the audit log are those of the same call by the command line.
        acts: bool, Switch [] = "false";
        /// Clients that are told news as they come, at a time.
        max_event_streams: u32, Count [1, 1000] = "32";
    }

    /// Kafka's clients: listeners of their own, which serve the same streams as topics.
    kafka: KafkaConfig {
        /// Where Kafka's clients connect, one address or several; `off` serves them nowhere. An address may have a name
        /// (Kafka: `listeners`), by which `[listeners]` says what it protects, and by which clients that come in there are told
        /// the addresses of all brokers: `internal=10.0.0.1:9092,external=0.0.0.0:9093`.
        listen: Vec<NamedAddress>, AddressesOrOff [] = "off";
        /// The addresses that Kafka's clients are told to use (Kafka: `advertised.listeners`), one for each address of
        /// `kafka.listen` and in the same order, or by names: `external=broker1.example:9093`. `auto`, or a name that is
        /// left out, derives them from the addresses listened on;
        /// set them when clients reach the broker by another name or through a mapped port, as
        /// from outside of a container. Port 0 stands for the port listened on.
        advertise: Vec<NamedAddress>, AddressesOrAuto [] = "auto";
        /// The most connections of Kafka's clients at a time, of all addresses of `kafka.listen` together. Below
        /// `server.max_connections` it leaves places to native clients. At the limit a new connection replaces a silent one
        /// of another Kafka client; if there is none, the new one is closed.
        max_connections: u32, Count [1, 1_000_000] = "1000000";
        /// Create a topic when a client that allows it asks for one that does not exist.
        auto_create_topics: bool, Switch [] = "true";
        /// Create the dead-letter topic of a share group if there is none, Kafka's
        /// `errors.deadletterqueue.auto.create.topics.enable`.
        auto_create_dead_letters: bool, Switch [] = "false";
        /// What names of share groups' dead-letter topics begin with, Kafka's `errors.deadletterqueue.topic.name.prefix`; `off`
        /// lets them have any. Whoever reads such a topic sees by its name that brokers write there what others have sent elsewhere.
        dead_letter_prefix: Option<String>, PrefixOrOff [] = "dlq.";
        /// Partitions of topics that are created without a number.
        default_partitions: u32, Count [1, 10_000] = "1";
        /// The largest Produce request accepted from a Kafka client; for a larger one the connection
        /// is closed, as for any other request above 16MiB. What a request needs beyond a small
        /// buffer counts towards `server.max_in_flight_bytes` before it is read.
        max_request_bytes: u64, Size [64 * KIB, GIB] = "100MiB";
        /// The longest reply to a request of a Kafka client other than Fetch. What does not fit is replaced by
        /// an error, in most cases POLICY_VIOLATION.
        max_reply_bytes: u64, Size [64 * KIB, GIB] = "16MiB";
        /// The most partitions in the fetch sessions and waiting fetches of all connections. At the limit the
        /// broker serves fetches without a session and answers them at once.
        max_fetch_session_partitions: u32, Count [1, 100_000_000] = "500000";
        /// How long the first rebalance of an empty group waits for more members. Each member that joins
        /// meanwhile starts the wait again.
        group_initial_rebalance_delay: Duration, Time [0, 5 * MINUTE] = "500ms";
        /// The shortest session a member of a group may ask for.
        session_min: Duration, Time [100 * MILLISECOND, HOUR] = "6s";
        /// The longest session a member of a group may ask for.
        session_max: Duration, Time [SECOND, DAY] = "30m";
        /// How long a member of a group of the consumer protocol may be silent.
        consumer_session: Duration, Time [SECOND, DAY] = "45s";
        /// How often a member of a group of the consumer protocol is to be heard of.
        consumer_heartbeat: Duration, Time [100 * MILLISECOND, HOUR] = "5s";
        /// How long committed offsets are kept after the last member of a group has left. For a consumer that
        /// only commits, each offset expires this long after its commit.
        offsets_retention: Duration, Time [MINUTE, 3650 * DAY] = "7d";
    }

    /// Memory for segments.
    memory: MemoryConfig {
        /// The most memory that the segments of all streams may use together. When all of it is in use, appends
        /// wait, and are then refused with OVERLOADED.
        pool: u64, Size [16 * MIB, 64 * TIB] = "1GiB";
        /// Memory that is unused for this long goes back to the system.
        idle_release: Duration, Time [100 * MILLISECOND, DAY] = "10s";
    }

    /// Files.
    storage: StorageConfig {
        /// How direct and cold I/O is done. `auto` takes io_uring where the system allows it.
        engine: EngineChoice, EngineKind [] = "auto";
        /// How often the broker flushes streams with ack = written to the disk. This bounds what a power loss
        /// can take. It does not matter when only the process ends.
        flush_interval: Duration, Time [10 * MILLISECOND, HOUR] = "1s";
        /// How often the durable length of each growing group is recorded. This bounds how much a start after a
        /// crash has to check.
        durable_mark_interval: Duration, Time [10 * MILLISECOND, HOUR] = "500ms";
    }

    /// What the broker remembers of idempotent producers.
    producers: ProducersConfig {
        /// The most idempotent producers remembered per lane. At the limit new producers are refused; none is
        /// forgotten before `producers.expiry`, since its next retry could be stored twice. Each takes about
        /// 200 bytes of memory, and 35 to 275 bytes at the beginning of each group. All together take at most a
        /// quarter of a segment there: a segment of 64 KiB has room for 416 producers, one of 1 MiB for 6,999.
        max_per_lane: u32, Count [1, 1_000_000] = "100000";
        /// A lane forgets a producer that appended nothing to it for this long, as with Kafka's
        /// `producer.id.expiration.ms`. A forgotten producer that goes on in the middle of its sequence is
        /// refused with UNKNOWN_PRODUCER. Use more than the time for which producers send a batch again, such
        /// as `delivery.timeout.ms` of Kafka's clients.
        expiry: Duration, Time [MINUTE, 365 * DAY] = "24h";
    }

    /// Groups and their files.
    groups: GroupsConfig {
        /// Prepare the next segment and group of busy lanes in advance, so that appends do not wait at a roll.
        /// Costs one open file for each busy lane.
        prepare_ahead: bool, Switch [] = "true";
    }

    /// Deletion of old records.
    retention: RetentionConfig {
        /// How often groups are checked against their stream's retention.
        check_interval: Duration, Time [100 * MILLISECOND, DAY] = "10s";
    }

    /// Compaction: of each key the newest record is kept, in streams whose cleanup says so.
    compaction: CompactionConfig {
        /// How often lanes are looked at whether they are due. A lane is compacted once enough of it is new (`--min-dirty-ratio`
        /// of its stream). One thread does it, with a quarter of a core.
        check_interval: Duration, Time [100 * MILLISECOND, DAY] = "15s";
        /// About how much memory a compaction takes for keys, 24 bytes each. What does not fit goes through temporary files
        /// in the data directory.
        memory: u64, Size [MIB, 64 * GIB] = "64MiB";
    }

    /// Consumer groups.
    consumers: ConsumersConfig {
        /// The shortest session a consumer may ask for.
        session_min: Duration, Time [100 * MILLISECOND, HOUR] = "1s";
        /// The longest session a consumer may ask for.
        session_max: Duration, Time [SECOND, DAY] = "5m";
        /// The session of consumers that ask for none. A consumer that sends no heartbeat for this long loses
        /// its leases to others.
        session_default: Duration, Time [100 * MILLISECOND, DAY] = "10s";
        /// The most consumer groups, those of Kafka's clients included, for each streamlet of the internal
        /// stream. At the limit a new group replaces one without members and progress. Clients of one host may
        /// create half of them.
        max_groups: u32, Count [1, 10_000_000] = "20000";
        /// Members of one group.
        max_members: u32, Count [1, 1_000_000] = "4096";
        /// The most bytes of committed offsets with their metadata, of Kafka's groups, for each streamlet of
        /// the internal stream. The same limit holds for the members' subscriptions and assignments. At the
        /// limit groups of more than 16 KiB may not grow. One group takes 16 MiB at most. Committed offsets
        /// stay when the limit is lowered, and may be committed again.
        max_group_bytes: u64, Size [MIB, TIB] = "256MiB";
        /// Streamlets of the internal stream that keeps leases and commits. Used when the data
        /// directory is created, fixed afterwards.
        internal_streamlets: u32, Count [1, 1024] = "4";
    }

    /// Transactions: docs/transactions.md.
    transactions: TransactionsConfig {
        /// The longest time that a producer may have a transaction open, Kafka's `transaction.max.timeout.ms`. A producer
        /// that asks for more is refused. Readers of what is committed wait behind an open transaction, and retention
        /// deletes nothing behind it. What was prepared has no such time. Transactions of stream engines are open from one
        /// checkpoint to the next: use more than that takes.
        max_timeout: Duration, Time [SECOND, 24 * DAY] = "15m";
        /// A prepared transaction that nobody has ended for this long is aborted, and whoever has its handle is told so: a job
        /// that is restored later from a checkpoint which has it fails. 0 has it wait for as long as it takes.
        max_prepared: Duration, Time [0, 3650 * DAY] = "0";
        /// How long a coordinator remembers how a prepared transaction ended, for programs that have its handle and ask. After
        /// that they are told `UNKNOWN_TRANSACTION`, and a stream engine that is restored from a checkpoint which
        /// has the handle fails: use more than the age of the oldest checkpoint that may be restored. An outcome goes earlier
        /// if its id begins another transaction or is forgotten by call, or beyond `transactions.max_outcomes`. A transactional id
        /// goes with the outcome, but one with two-phase commit of Kafka's clients, which is kept for 7 days at least.
        outcome_retention: Duration, Time [MINUTE, 3650 * DAY] = "30d";
        /// The most such outcomes that a coordinator remembers; beyond them the oldest goes. Those of two-phase commit of Kafka's
        /// clients are not among them. There is one coordinator for each
        /// streamlet of the internal stream, and each outcome takes a few hundred bytes of its broker's memory. When the limit is
        /// lowered, those above it go as transactional ids begin.
        max_outcomes: u32, Count [1, 10_000_000] = "100000";
        /// Whether Kafka's clients may have transactions without a timeout, for two-phase commit (KIP-939), Kafka's
        /// `transaction.two.phase.commit.enable`. They need the right `two-phase-commit` as well. Native clients need that right
        /// alone.
        two_phase_commit: bool, Switch [] = "false";
    }

    /// TLS 1.3 and 1.2 at the listeners for clients. What it protects, and what not: docs/security.md.
    tls: TlsConfig {
        /// The listeners that have TLS: `native` is all addresses of `server.listen`, `kafka` those of `kafka.listen`,
        /// `http` is `http.listen`, which asks nobody for a certificate: probes have none. `cluster` is `cluster.listen`, which
        /// asks everybody for a broker's certificate. Such a listener takes no connections without TLS. With `native` and
        /// `cluster.store` the brokers call each other with TLS, see `tls.broker_ca`.
        listeners: Vec<TlsListener>, TlsListeners [] = "off";
        /// The broker's certificate in PEM, followed by those of intermediate authorities if there are any. It
        /// must have the names or IP addresses that clients connect to. Needed with `tls.listeners`.
        certificate: Option<PathBuf>, FileOrOff [] = "off";
        /// The private key of that certificate in PEM, not encrypted. Needed with `tls.listeners`.
        key: Option<PathBuf>, FileOrOff [] = "off";
        /// The certificates in PEM of the authorities that sign clients' certificates. Needed with
        /// `tls.client_auth`.
        client_ca: Option<PathBuf>, FileOrOff [] = "off";
        /// Whether clients must prove that they have a certificate of an authority in `tls.client_ca`. With
        /// `requested` a client without a certificate is let in too, but not one with a wrong certificate. What those
        /// that are let in may do is for `acl.enabled` to say.
        client_auth: ClientAuth, ClientAuthKind [] = "none";
        /// The certificates in PEM of the authorities that sign the certificates of the cluster's other brokers. Needed
        /// with `cluster`, and with `native` and `cluster.store`: this broker calls the others at these addresses, checks
        /// their certificates by it, and shows them its own. At `cluster.listen` it lets in nobody else.
        broker_ca: Option<PathBuf>, FileOrOff [] = "off";
        /// How often the broker looks whether these files have changed. New connections get the new certificate;
        /// those that are open stay. Files that cannot be used are told in the log, and the certificate in use stays.
        reload_interval: Duration, Time [100 * MILLISECOND, DAY] = "30s";
    }

    /// What addresses with a name protect: docs/security.md. Those without one, and those whose name is not here, go by
    /// `tls.listeners` and `auth.listeners`.
    listeners: ListenersConfig {
        /// What the addresses of a name speak (Kafka: `listener.security.protocol.map`): `internal=PLAINTEXT,external=SASL_SSL`.
        /// `PLAINTEXT` has neither TLS nor logins, `SSL` has TLS, `SASL_PLAINTEXT` logins, `SASL_SSL` both.
        protocols: Vec<(ListenerName, SecurityProtocol)>, NamedProtocols [] = "off";
        /// Whether clients must have a certificate there, in place of `tls.client_auth` (Kafka:
        /// `listener.name.NAME.ssl.client.auth`): `partners=required`.
        client_auth: Vec<(ListenerName, ClientAuth)>, NamedClientAuth [] = "off";
        /// How clients may log in there, in place of `auth.mechanisms` (Kafka: `listener.name.NAME.sasl.enabled.mechanisms`):
        /// `external=SCRAM-SHA-512,external=OAUTHBEARER`.
        mechanisms: Vec<(ListenerName, SaslMechanism)>, NamedMechanisms [] = "off";
        /// Most connections there, within `server.max_connections` and `kafka.max_connections` (Kafka:
        /// `listener.name.NAME.max.connections`): `external=500` keeps clients outside from taking the places of those inside.
        /// Other brokers of the cluster are not counted out. At the limit a new connection replaces a silent one there, or is
        /// refused.
        max_connections: Vec<(ListenerName, u32)>, NamedCounts [1, 1_000_000] = "off";
    }

    /// Users with passwords, by SASL: docs/security.md.
    auth: AuthConfig {
        /// The listeners that ask clients who they are: `native` is all addresses of `server.listen`, `kafka` those of `kafka.listen`,
        /// `http` is `http.listen` but for `http.open_paths`. A client that does not prove it, with a user's password, gets
        /// nothing there. At the native listener a certificate with a name proves it as well, as those of the cluster's brokers
        /// do. Over HTTP the password or the token itself is sent, so `http` must be in `tls.listeners` unless it listens on
        /// loopback.
        listeners: Vec<Listener>, AuthListeners [] = "off";
        /// The ways to prove it to `native` and `kafka`. Over HTTP a password is always taken, and a token with OAUTHBEARER. With
        /// PLAIN the client sends the password itself, so these listeners must be among `tls.listeners` unless they listen on
        /// loopback alone. Old tools may know nothing else. With OAUTHBEARER it sends a token, which takes TLS as well, and
        /// `oauth`.
        mechanisms: Vec<SaslMechanism>, Mechanisms [] = "SCRAM-SHA-256,SCRAM-SHA-512";
        /// How long a login counts (Kafka: `connections.max.reauth.ms`). Kafka's clients are told so, and log in again over the same
        /// connection (KIP-368). If one does not, the broker closes the connection at its next request. Native clients connect
        /// again. With `0` a login counts as long as the connection.
        max_reauth: Duration, Time [0, 365 * DAY] = "0";
        /// Memory that all connections together may hold whose clients have still to prove who they are: for requests that
        /// have begun, for TLS and for proofs, about 12 KiB of each connection at least. At the limit the connections of the
        /// address that holds most end, those first that began first. A quarter of it is kept for addresses that hold
        /// little. Who has logged in never waits for it. The process grows by up to twice as much, as the allocator has it.
        max_unproven_bytes: u64, Size [MIB, TIB] = "16MiB";
        /// A user that a broker makes when it starts and there is none: otherwise nobody could log in to make others. Needs
        /// `auth.first_user_password_file`. With `acl.enabled` name it in `acl.super_users` as well.
        first_user: Option<String>, UserName [] = "off";
        /// A file whose first line is that user's password. It is read only where there are no users, so it may be
        /// removed afterwards.
        first_user_password_file: Option<PathBuf>, FileOrOff [] = "off";
    }

    /// What tokens of OAUTHBEARER must have, if `auth.mechanisms` has it: docs/security.md.
    oauth: OauthConfig {
        /// Who makes the tokens: exactly what they have in `iss`. Needed with OAUTHBEARER.
        issuer: Option<String>, TextOrOff [] = "off";
        /// Whom they are for: a token has one of these in `aud`. Needed with OAUTHBEARER.
        audience: Vec<String>, Texts [] = "off";
        /// The issuer's public keys, as a JSON web key set (Kafka: `sasl.oauthbearer.jwks.endpoint.url`): a file, or a URL that the
        /// broker asks. `http` is taken on this machine alone. Redirections are not followed. Needed with OAUTHBEARER.
        keys: Option<KeySource>, KeysAt [] = "off";
        /// The certificates in PEM of the authorities that sign the certificate of that server; the system's are not taken by
        /// themselves. Needed with an `https` URL.
        keys_ca: Option<PathBuf>, FileOrOff [] = "off";
        /// How often the keys are fetched anew. A token with an unknown key has them fetched at once, every minute at most. If
        /// they cannot be fetched, those that are known count on.
        keys_refresh: Duration, Time [SECOND, 7 * DAY] = "1h";
        /// The algorithms of signatures that count.
        algorithms: Vec<TokenAlgorithm>, Algorithms [] = "RS256,ES256,PS256";
        /// The claim with the user's name.
        user_claim: String, ClaimName [] = "sub";
        /// A scope that tokens must have.
        scope: Option<String>, TextOrOff [] = "off";
        /// The claim with the scopes, as a list or with spaces between them.
        scope_claim: String, ClaimName [] = "scope";
        /// How far the issuer's clock may be from the broker's. A token counts this much longer.
        clock_skew: Duration, Time [0, HOUR] = "30s";
    }

    /// Who may do what, by rules as Kafka's access control lists have them: docs/security.md.
    acl: AclConfig {
        /// Whether rules decide what clients may do. `false` lets everybody do everything; rules are kept all the same.
        enabled: bool, Switch [] = "false";
        /// Users who may do everything, with or without rules, as `User:NAME` with commas between them. Without one
        /// nobody could make the first rule. In a cluster the name in each broker's certificate must be among them.
        super_users: Vec<String>, Users [] = "off";
        /// Whether everybody may do what no rule is about, instead of nobody.
        allow_without_rule: bool, Switch [] = "false";
        /// How long rules count that etcd has not confirmed, as while it is away: a broker then hears of no rule that others
        /// make. After that it refuses requests of all but super users, and clients try again. With `0` they count
        /// until etcd is back; otherwise it must be 10 seconds at least.
        max_age: Duration, Time [0, 365 * DAY] = "0";
    }

    /// Who did what: a line of JSON for each login, each refusal and each change: docs/security.md.
    audit: AuditConfig {
        /// Where the audit log goes: a file, which no other broker may write, `log` for the broker's log, or `off`.
        to: AuditTarget, AuditTargetKind [] = "off";
        /// At this length the file is renamed to `FILE.1`, what was `FILE.1` to `FILE.2`, and so on.
        max_file_bytes: u64, Size [64 * KIB, 64 * GIB] = "64MiB";
        /// How many such files are kept beside the one that is written; the oldest is deleted.
        kept_files: u32, Count [1, 1000] = "9";
        /// The most lines in a second about logins that succeeded, and as many about refusals and changes that failed; a
        /// quarter of them for one address. The rest is counted and summed up in one line. Changes that were made are all
        /// written.
        max_per_second: u32, Count [4, 1_000_000] = "100";
    }

    /// This broker among others that share a metadata store. A broker without `cluster.store` works alone.
    cluster: ClusterConfig {
        /// This broker's number, different for each broker and replica store. Needed with `cluster.store`. A
        /// data directory keeps the number it was made with.
        broker_id: Option<u32>, BrokerNumber [] = "off";
        /// The metadata store that the brokers of a cluster share: `etcd://` and the addresses of etcd's
        /// members. Brokers that share a store form one system: each knows every stream, and streamlets move
        /// between them. `off` is a store of this broker's own, in its data directory.
        store: Option<String>, StoreAddress [] = "off";
        /// The certificate, in PEM, of the authority that signed etcd's certificate. With it connections to
        /// etcd use TLS.
        store_ca: Option<PathBuf>, FileOrOff [] = "off";
        /// This broker's certificate for etcd, in PEM, if etcd asks for one. Needs `cluster.store_key`.
        store_certificate: Option<PathBuf>, FileOrOff [] = "off";
        /// The private key of that certificate, in PEM.
        store_key: Option<PathBuf>, FileOrOff [] = "off";
        /// This broker's user at etcd, if etcd has authentication enabled. Needs `cluster.store_password_file`.
        /// The user must be allowed to read and write all keys of the prefix.
        store_user: Option<String>, UserName [] = "off";
        /// A file with that user's password. The broker reads it at each login.
        store_password_file: Option<PathBuf>, FileOrOff [] = "off";
        /// How long a broker may be silent before its streamlets go to others. Nothing else depends on it: no
        /// record depends on clocks.
        lease: Duration, Time [SECOND, 10 * MINUTE] = "5s";
        /// A broker whose data directory takes no write for this long gives its lease back, so that its
        /// streamlets go to others. It takes a new one once the disk answers.
        disk_timeout: Duration, Time [SECOND, HOUR] = "30s";
        /// The machine this broker runs on, as the others are told it. `auto` is the system's host name.
        host: Option<String>, HostName [] = "auto";
        /// The rack, or zone, of that machine. Streamlets and replicas are spread over racks. Readers that name
        /// their rack get closed groups from a broker in it.
        rack: Option<String>, RackName [] = "off";
        /// Where other brokers connect, for replication and control calls. Without `cluster` in
        /// `tls.listeners` there is no authentication: listen where only brokers can reach it.
        listen: String, Address [] = "127.0.0.1:7601";
        /// The address for these connections that the other brokers of a shared store get. `auto` is
        /// `cluster.listen` or, if that is every interface, the host of `server.advertise`.
        advertise: Option<String>, AddressOrAuto [] = "auto";
        /// Allow several replicas of a group on one machine, as in tests. Otherwise brokers of one machine
        /// never hold replicas of the same group.
        allow_same_host: bool, Switch [] = "false";
        /// How long a native append waits for its replicas. After that it is answered with `NOT_ENOUGH_COPIES`,
        /// and the producer sends it again. Kafka's clients give a timeout of their own.
        append_deadline: Duration, Time [100 * MILLISECOND, HOUR] = "10s";
        /// How often the broker looks for groups with too few replicas, and tells brokers that were away of
        /// deleted streams.
        repair_interval: Duration, Time [100 * MILLISECOND, DAY] = "1m";
        /// How often the replicas of each closed group are compared, byte for byte. A damaged replica is
        /// replaced while another has the bytes. If that fails, the broker tries again every
        /// `cluster.repair_interval`.
        scrub_interval: Duration, Time [100 * MILLISECOND, 365 * DAY] = "7d";
        /// The most bytes per second for re-replication, and for fetching the history of streamlets that move
        /// to this broker. The scrub reads at most as much, on all brokers together, and less when reads are
        /// slow because the disks are busy.
        repair_bytes_per_second: u64, Size [64 * KIB, TIB] = "32MiB";
        /// Brokers that share a store hold about as many bytes of closed groups each. Replicas move from the
        /// fullest brokers to the emptiest, for example to one that has joined, until they differ by no more
        /// than this and no more than a tenth of the average. Moves count against
        /// `cluster.repair_bytes_per_second`. Set it to the same value on all brokers.
        spread_tolerance_bytes: u64, Size [64 * KIB, 1024 * TIB] = "1GiB";
        /// A broker that has not answered for this long counts as lost: closed groups with a replica on it get
        /// one on another broker, and a streamlet whose open groups only such brokers have gets another owner, which
        /// waits for them and tells `kera stream recover` what would be lost without them.
        lost_after: Duration, Time [100 * MILLISECOND, 365 * DAY] = "10m";
        /// Connections reserved for brokers of the cluster, beyond `server.max_connections` and again beyond
        /// `cluster.max_connections`. A connection is a broker's if it comes from the address of one.
        reserved_connections: u32, Count [0, 100_000] = "64";
        /// The most connections to `cluster.listen`. Brokers of the cluster may have
        /// `cluster.reserved_connections` beyond that; each has about four. A connection above the limit is
        /// closed, and the log names the limit. These are closed as well: a silent new connection after 5 s, a
        /// control connection without a call after 60 s, an unfinished request after 30 s, and a data
        /// connection after 60 s without data if its broker has no open replica here.
        max_connections: u32, Count [16, 100_000] = "1024";
        /// The transport for replication. `auto` is RDMA where the build (feature `rdma`) and both machines
        /// support it and `cluster.listen` has no TLS, or `cluster.trusted_fabric` is set, and TCP otherwise. With `rdma` a broker that cannot use it does not start, and peers
        /// that cannot use it get no replicas.
        transport: TransportChoice, TransportKind [] = "auto";
        /// Whether only brokers are on the network of the cards that RDMA uses. With `cluster` in `tls.listeners` replicas
        /// may travel over RDMA only if this is set, since cards write them without TLS and ask nobody who he is: docs/security.md.
        trusted_fabric: bool, Switch [] = "false";
    }

    /// The replica store: replicas that this broker, or a `kera replica-store`, keeps for other owners. Used with
    /// `cluster.store`.
    replica_store: ReplicaStoreConfig {
        /// The most shared memory for replicas, their records (a page each) and the seals. At the limit new
        /// replicas are refused, and their owners choose another broker. The file system of `replica_store.shared_dir`
        /// must be able to hold it: containers often get 64 MiB of shared memory only (`docker run --shm-size`,
        /// in Kubernetes an emptyDir with medium Memory).
        memory_bytes: u64, Size [MIB, TIB] = "1GiB";
        /// Where replicas are kept until they are on disk: a directory on shared memory, so that they outlive
        /// the process. `auto` is `/dev/shm/kera-` and a number made from the data directory.
        shared_dir: Option<PathBuf>, DirectoryOrAuto [] = "auto";
        /// Where replicas are written to disk: when their group closes, and for streams with `ack = synced`
        /// before each acknowledgement. `auto` is `backup` in the data directory.
        disk_dir: Option<PathBuf>, DirectoryOrAuto [] = "auto";
        /// How often new bytes of open replicas are written to disk.
        flush_interval: Duration, Time [100 * MILLISECOND, DAY] = "1m";
        /// The most replicas in shared memory; most of them belong to open groups, and each is a file. At this
        /// limit, as at `replica_store.max_replicas` and `replica_store.max_streamlets`, new replicas are refused, and their
        /// owners choose another broker. This broker's log names the limit.
        max_replicas_in_memory: u32, Count [1, 16_777_216] = "262144";
        /// The most replicas, those of closed groups on disk included. Each of these takes about 1.5 KiB of
        /// memory, until retention deletes its group.
        max_replicas: u32, Count [1, 268_435_456] = "4194304";
        /// The most streamlets with replicas on this broker, in all streams together.
        max_streamlets: u32, Count [1, 16_777_216] = "65536";
    }

    /// Latency objectives of users, which are set as quotas: what this broker can do. `kera calibrate` measures it. Nothing here counts while no user has an objective.
    objectives: ObjectivesConfig {
        /// Requests with next to nothing in them that the broker answers in a second at most.
        requests_per_second: u32, Count [1, 1_000_000_000] = "50000";
        /// Bytes that it takes in a second at most, in large batches.
        append_bytes_per_second: u64, Size [KIB, TIB] = "200MiB";
        /// Bytes that it sends in a second at most, of what is in memory.
        read_bytes_per_second: u64, Size [KIB, TIB] = "400MiB";
        /// The part of that, in percent, which clients may use while some user has an objective. With more, requests
        /// wait for each other longer.
        load: u32, Count [1, 100] = "60";
        /// At that load one answer in a hundred takes longer than this. An objective of less is refused.
        latency: Duration, Time [100, MINUTE] = "5ms";
    }

    /// The broker's log, on standard error.
    log: LogConfig {
        /// Which lines are written.
        level: String, LogFilter [] = "info";
        /// How lines are written.
        format: LogFormat, LogFormatKind [] = "text";
    }

    /// A collector of OpenTelemetry, which is told by OTLP over gRPC: metrics, lines of the log, and spans of batches
    /// whose producers have them traced.
    telemetry: TelemetryConfig {
        /// The collector: `http://host:port`, or `https://host:port` for TLS; collectors listen on port 4317. `off` tells
        /// nobody.
        endpoint: Option<String>, CollectorOrOff [] = "off";
        /// For `https`: the certificates of the authorities that may have signed the collector's, a file in PEM. For
        /// public ones name the system's, such as `/etc/ssl/certs/ca-certificates.crt`.
        ca: Option<PathBuf>, FileOrOff [] = "off";
        /// Headers of each call, such as an API key: a file with a line `name: value` for each.
        headers_file: Option<PathBuf>, FileOrOff [] = "off";
        /// What the collector is told: `metrics`, `logs`, `traces`.
        signals: Vec<Signal>, Signals [] = "metrics,logs,traces";
        /// How often it is told metrics. Lines and spans it is told each second.
        interval: Duration, Time [SECOND, HOUR] = "15s";
        /// Batches whose traces are told in a second. The others are not looked at.
        traces_per_second: u32, Count [1, 100_000] = "100";
    }

    /// Threads.
    runtime: RuntimeConfig {
        /// Threads that serve connections; 0 takes one for each core.
        threads: u32, Count [0, 1024] = "0";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_parses_within_its_limits_and_is_shown_as_written() {
        let mut config = BrokerConfig::default();
        for key in KEYS {
            (key.set)(&mut config, key.default, &key.limits)
                .unwrap_or_else(|error| panic!("{}: {error}", key.name));
            let shown = (key.show)(&config);
            (key.set)(&mut config, &shown, &key.limits)
                .unwrap_or_else(|error| panic!("{} as shown: {error}", key.name));
            assert_eq!(
                (key.show)(&config),
                shown,
                "{} does not read back",
                key.name
            );
            assert!(!key.paragraph().is_empty());
        }
        assert_eq!(config, BrokerConfig::default());
    }

    #[test]
    fn names_are_unique_in_every_form() {
        for form in [|k: &Key| k.env(), |k: &Key| k.flag()] {
            let mut names: Vec<String> = KEYS.iter().map(form).collect();
            names.sort();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
        }
        assert_eq!(
            Key::find("server.listen").map(Key::env).as_deref(),
            Some("KERA_SERVER_LISTEN")
        );
        assert_eq!(
            Key::find("data_dir").map(Key::env).as_deref(),
            Some("KERA_DATA_DIR")
        );
        assert_eq!(
            Key::find("server.max_in_flight_bytes")
                .map(Key::flag)
                .as_deref(),
            Some("server-max-in-flight-bytes")
        );
    }
}
