//! The one table of configuration keys.
//!
//! Everything else is derived from it: the structs that the broker reads, the keys a file may
//! hold, the names of environment variables and flags, and `docs/configuration.md`.

use std::path::PathBuf;
use std::time::Duration;

use super::addresses::{AddressesOrAuto, AddressesOrOff};
use super::cluster::{
    BrokerNumber, DirectoryOrAuto, HostName, Peer, PeerList, RackName, StoreAddress,
};
use super::etcd::{FileOrOff, UserName};
use super::kinds::{
    Address, AddressOrAuto, AddressOrOff, Count, Directory, EngineChoice, EngineKind, Kind, Limits,
    LogFilter, LogFormat, LogFormatKind, Size, Switch, Time, TransportChoice, TransportKind,
};
use super::units::{GIB, KIB, MIB, TIB};

/// A configuration key: how it is named, what it means and which values it takes.
#[derive(Debug)]
pub struct Key {
    /// The name as files write it, such as `server.listen`.
    pub name: &'static str,
    /// The section the key stands in; empty for keys at the top of the file.
    pub section: &'static str,
    /// What the key means, as lines of text.
    pub doc: &'static [&'static str],
    /// What to write, for people.
    pub form: &'static str,
    /// The default as it would be written.
    pub default: &'static str,
    /// The limits of ordered kinds.
    pub limits: Limits,
    pub(super) show_limits: fn(&Limits) -> String,
    pub(super) set: fn(&mut BrokerConfig, &str, &Limits) -> Result<(), String>,
    pub(super) show: fn(&BrokerConfig) -> String,
    pub(super) bare: bool,
    pub(super) list: bool,
}

impl Key {
    /// The key of a name, if there is one.
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable that sets the key: `KERA_SERVER_LISTEN` for `server.listen`.
    pub fn env(&self) -> String {
        format!("KERA_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// The flag of `kera serve` that sets the key, without dashes: `server-listen`.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }

    /// A second, shorter flag that sets the key, without dashes.
    pub fn short_flag(&self) -> Option<&'static str> {
        match self.name {
            "server.listen" => Some("listen"),
            "cluster.broker_id" => Some("broker-id"),
            "cluster.listen" => Some("replication-listen"),
            "cluster.peers" => Some("peers"),
            "cluster.store" => Some("cluster"),
            "cluster.rack" => Some("rack"),
            "cluster.allow_same_host" => Some("allow-same-host"),
            _ => None,
        }
    }

    /// The name without its section.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// The limits for people; empty when the kind has none.
    pub fn limits_text(&self) -> String {
        (self.show_limits)(&self.limits)
    }

    /// The key's value in a configuration, as it would be written.
    pub fn value_in(&self, config: &BrokerConfig) -> String {
        (self.show)(config)
    }

    /// The whole meaning as one paragraph.
    pub fn paragraph(&self) -> String {
        let mut text = String::new();
        for line in self.doc {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line.trim());
        }
        text
    }
}

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
    }

    /// What clients connect to.
    server: ServerConfig {
        /// The one native address, for control calls and data.
        listen: String, Address [] = "127.0.0.1:7600";
        /// The address that clients are told to use. `auto` is the address listened on; set it
        /// when clients reach the broker by another name or through a mapped port.
        advertise: Option<String>, AddressOrAuto [] = "auto";
        /// Connections at a time, fewer where the process may not open as many files. For one more the one
        /// that has said nothing for longest is ended, no hello and no whole request; where all have said what
        /// they want, it is answered TOO_MANY_CONNECTIONS and closed.
        max_connections: u32, Count [1, 1_000_000] = "4096";
        /// The largest frame accepted from a client. A larger one is answered FRAME_TOO_LARGE and
        /// the connection is closed. Bounds the size of a batch.
        max_frame_bytes: u64, Size [64 * KIB, GIB] = "16MiB";
        /// Bytes received on one connection and not yet answered. At the limit the broker stops
        /// reading that socket until appends complete.
        connection_in_flight_bytes: u64, Size [64 * KIB, 64 * GIB] = "16MiB";
        /// Bytes received on all connections and not yet answered, and again as many that wait to be
        /// sent, but no more than half of `memory.pool`. At the limit the broker stops reading
        /// sockets until appends complete, and serves reads in small steps until clients take them. As
        /// many bytes again may lie in buffers of more than 16 KiB that connections receive into.
        max_in_flight_bytes: u64, Size [MIB, TIB] = "256MiB";
        /// How long a new connection may take to say which protocol it speaks.
        hello_timeout: Duration, Time [10 * MILLISECOND, 10 * MINUTE] = "5s";
        /// A data connection that sends nothing for this long, and waits for nothing, is closed.
        /// 0 keeps it open for ever.
        idle_timeout: Duration, Time [0, 30 * DAY] = "10m";
        /// A control connection, over gRPC, that has had no call for this long is closed, as is one that has
        /// none within `server.hello_timeout`, and the one that has been quiet for longest where 1024 are.
        /// Clients connect again with their next call.
        control_idle_timeout: Duration, Time [100 * MILLISECOND, 30 * DAY] = "20s";
        /// A frame or request of which only a part arrives within this time is given up with its
        /// connection: others may wait for the memory that it takes.
        receive_timeout: Duration, Time [100 * MILLISECOND, HOUR] = "1m";
        /// A peer that takes nothing, or next to nothing, of what is sent to it for this long loses its
        /// connection; for a quarter of it while `server.max_in_flight_bytes` wait to be sent.
        send_timeout: Duration, Time [100 * MILLISECOND, DAY] = "2m";
        /// How long a stopping broker waits for appends and reads in flight before it closes
        /// their connections.
        drain_timeout: Duration, Time [0, HOUR] = "10s";
    }

    /// Metrics and health over HTTP.
    http: HttpConfig {
        /// Where `/metrics`, `/livez` and `/readyz` are served; `off` serves them nowhere.
        listen: Option<String>, AddressOrOff [] = "127.0.0.1:7680";
        /// Connections at a time. One more takes the place of the one that has been quiet for longest.
        max_connections: u32, Count [1, 100_000] = "64";
        /// A request must have arrived and been answered within this time, otherwise its connection is
        /// closed; so is one that is kept open without a request.
        request_timeout: Duration, Time [100 * MILLISECOND, HOUR] = "30s";
    }

    /// Kafka's clients: listeners of their own, which serve the same streams as topics.
    kafka: KafkaConfig {
        /// Where Kafka's clients connect, one address or several; `off` serves them nowhere.
        listen: Vec<String>, AddressesOrOff [] = "off";
        /// The addresses that Kafka's clients are told to use, one for each address of
        /// `kafka.listen` and in the same order. `auto` derives them from the addresses listened on;
        /// set them when clients reach the broker by another name or through a mapped port, as
        /// from outside of a container. Port 0 stands for the port listened on.
        advertise: Vec<String>, AddressesOrAuto [] = "auto";
        /// Create a topic when a client that allows it asks for one that does not exist.
        auto_create_topics: bool, Switch [] = "true";
        /// Partitions of topics that are created without a number.
        default_partitions: u32, Count [1, 10_000] = "1";
        /// The largest Produce request accepted from a Kafka client; for a larger one the connection
        /// is closed, as for any other request above 16MiB. What a request needs beyond a small
        /// buffer counts towards `server.max_in_flight_bytes` before it is read.
        max_request_bytes: u64, Size [64 * KIB, GIB] = "100MiB";
        /// The longest reply to a request of a Kafka client other than Fetch. What does not fit is answered
        /// with an error in its place, POLICY_VIOLATION as a rule.
        max_reply_bytes: u64, Size [64 * KIB, GIB] = "16MiB";
        /// Partitions that the fetch sessions and waiting fetches of all connections may name together. At
        /// the limit fetches are served without a session, and are answered at once.
        max_fetch_session_partitions: u32, Count [1, 100_000_000] = "500000";
        /// How long the first rebalance of an empty group waits for more members, and again for
        /// each that joins meanwhile.
        group_initial_rebalance_delay: Duration, Time [0, 5 * MINUTE] = "500ms";
        /// The shortest session a member of a group may ask for.
        session_min: Duration, Time [100 * MILLISECOND, HOUR] = "6s";
        /// The longest session a member of a group may ask for.
        session_max: Duration, Time [SECOND, DAY] = "30m";
        /// Committed offsets of a group that has had no member for this long are forgotten; of a
        /// consumer that only commits, those that are older.
        offsets_retention: Duration, Time [MINUTE, 3650 * DAY] = "7d";
    }

    /// Memory for segments.
    memory: MemoryConfig {
        /// The most memory that segments of all streams may hold together. Appends wait, and are
        /// then refused with OVERLOADED, when it is in use entirely.
        pool: u64, Size [16 * MIB, 64 * TIB] = "1GiB";
        /// Memory that nobody used for this long is given back to the system.
        idle_release: Duration, Time [100 * MILLISECOND, DAY] = "10s";
    }

    /// Files.
    storage: StorageConfig {
        /// How direct and cold I/O is done. `auto` takes io_uring where the system allows it.
        engine: EngineChoice, EngineKind [] = "auto";
        /// How often what streams with ack = written have written is flushed to the disk. Bounds
        /// what a power loss can take; the life of the process does not depend on it.
        flush_interval: Duration, Time [10 * MILLISECOND, HOUR] = "1s";
        /// How often the durable length of each growing group is recorded. Bounds how much has to
        /// be checked after a crash.
        durable_mark_interval: Duration, Time [10 * MILLISECOND, HOUR] = "500ms";
    }

    /// What the broker remembers of idempotent producers.
    producers: ProducersConfig {
        /// Idempotent producers remembered per lane; each takes about 200 bytes of memory, and 35 to 275 at the
        /// beginning of each group, of which all together take a quarter of a segment at most: 64 KiB segments
        /// have room for 445 producers, 1 MiB for 7,467. None is forgotten before `producers.expiry`, as its next
        /// retry could be stored twice: at the limit new producers are refused.
        max_per_lane: u32, Count [1, 1_000_000] = "100000";
        /// A producer that appended nothing to a lane for this long is forgotten there, as with Kafka's
        /// `producer.id.expiration.ms`; it is refused with UNKNOWN_PRODUCER when it comes back in the middle of its
        /// sequence. Longer than producers send a batch again for, such as `delivery.timeout.ms` of Kafka's clients.
        expiry: Duration, Time [MINUTE, 365 * DAY] = "24h";
    }

    /// Groups and their files.
    groups: GroupsConfig {
        /// Prepare the next segment and group of busy lanes ahead of need, so that a roll costs
        /// appends nothing. Costs one open file for each busy lane.
        prepare_ahead: bool, Switch [] = "true";
    }

    /// Deletion of old records.
    retention: RetentionConfig {
        /// How often groups are checked against their stream's retention.
        check_interval: Duration, Time [100 * MILLISECOND, DAY] = "10s";
    }

    /// Consumer groups.
    consumers: ConsumersConfig {
        /// The shortest session a consumer may ask for.
        session_min: Duration, Time [100 * MILLISECOND, HOUR] = "1s";
        /// The longest session a consumer may ask for.
        session_max: Duration, Time [SECOND, DAY] = "5m";
        /// The session of consumers that ask for none. A consumer that sent no heartbeat for this
        /// long loses its leases to others.
        session_default: Duration, Time [100 * MILLISECOND, DAY] = "10s";
        /// Groups, of Kafka's clients as well, for each streamlet of the internal stream. At the limit one
        /// without members and progress makes room for the next; clients of one host may create half.
        max_groups: u32, Count [1, 10_000_000] = "20000";
        /// Members of one group.
        max_members: u32, Count [1, 1_000_000] = "4096";
        /// Bytes of committed offsets with their metadata that the groups of Kafka's clients take for each
        /// streamlet of the internal stream, and as many again of what members say and are told. At the
        /// limit groups of more than 16 KiB may not grow, and none ever takes more than 16 MiB for itself. What was
        /// committed before stays, also under a smaller limit, and may be committed again.
        max_group_bytes: u64, Size [MIB, TIB] = "256MiB";
        /// Streamlets of the internal stream that keeps leases and commits. Used when the data
        /// directory is created, fixed afterwards.
        internal_streamlets: u32, Count [1, 1024] = "4";
    }

    /// This broker among others: who it is, and who else holds copies of groups. A broker without a
    /// number works alone.
    cluster: ClusterConfig {
        /// This broker's number, another for each broker. With a number it keeps copies of other
        /// brokers' groups, and streams may have copies elsewhere. A data directory keeps the number
        /// it was made with.
        broker_id: Option<u32>, BrokerNumber [] = "off";
        /// The metadata store that the brokers of a cluster share: `etcd://` and the addresses of
        /// etcd's members. Brokers that share a store form one system: each knows every stream, and
        /// streamlets move between them. `off` is a store of this broker's own, in its data directory.
        store: Option<String>, StoreAddress [] = "off";
        /// The certificate of the authority by which that of etcd is signed, in PEM. With it connections to
        /// etcd are made with TLS.
        store_ca: Option<PathBuf>, FileOrOff [] = "off";
        /// This broker's certificate for etcd, in PEM, where etcd asks for one; needs `cluster.store_key`.
        store_certificate: Option<PathBuf>, FileOrOff [] = "off";
        /// The private key of that certificate, in PEM.
        store_key: Option<PathBuf>, FileOrOff [] = "off";
        /// The user that this broker is to etcd, where its authentication is enabled; needs
        /// `cluster.store_password_file`. It must be allowed to read and write all keys of the prefix.
        store_user: Option<String>, UserName [] = "off";
        /// A file with that user's password, which is read whenever etcd is told it.
        store_password_file: Option<PathBuf>, FileOrOff [] = "off";
        /// How long the others wait for a broker of which they hear nothing, before its streamlets
        /// are given to others. It decides nothing but that: no record depends on clocks.
        lease: Duration, Time [SECOND, 10 * MINUTE] = "5s";
        /// The machine this broker runs on, as `cluster.peers` of the others name it. `auto` is the
        /// name that the system tells.
        host: Option<String>, HostName [] = "auto";
        /// The rack, or zone, that machine stands in. Streamlets and copies are spread over racks, and readers
        /// that name theirs get closed groups from there.
        rack: Option<String>, RackName [] = "off";
        /// Where the other brokers connect, for copies and for control calls about them. There is no
        /// authentication: listen where only brokers can reach it.
        listen: String, Address [] = "127.0.0.1:7601";
        /// The address that the other brokers of a shared store are told to use for that. `auto` is the
        /// address listened on or, where that is every interface, the host of `server.advertise`.
        advertise: Option<String>, AddressOrAuto [] = "auto";
        /// The other brokers, where they share no store: each one's number, its `cluster.listen` as it is reached from here, and
        /// the machine it runs on. Without the machine's name its address stands for it; a loopback
        /// address is this machine. This goes with a later version: `kera cluster import` takes a broker
        /// with its streams into a cluster that shares etcd.
        peers: Vec<Peer>, PeerList [] = "none";
        /// Let several copies of a group lie on one machine, as in tests. Otherwise brokers of one
        /// machine never hold copies of the same group.
        allow_same_host: bool, Switch [] = "false";
        /// How long a native append waits for its copies. Then it is answered with
        /// `NOT_ENOUGH_COPIES`, and its sender sends it again. Kafka's clients name their own time.
        append_deadline: Duration, Time [100 * MILLISECOND, HOUR] = "10s";
        /// How often groups are looked at that have fewer copies than their stream is to have, and
        /// backups that were away are told of deleted streams.
        repair_interval: Duration, Time [100 * MILLISECOND, DAY] = "1m";
        /// How often the copies of each closed group are compared with each other, byte for byte, so that
        /// what a disk has lost is made good while another copy has it. What is found damaged is tried
        /// again every `cluster.repair_interval` until it is repaired.
        scrub_interval: Duration, Time [100 * MILLISECOND, 365 * DAY] = "7d";
        /// The most bytes per second that are copied to make lost copies anew, and to fetch the history of
        /// streamlets that come to this broker; and that are read, at all holders together, to compare
        /// copies. Where reading takes long because others are at work, less is read.
        repair_bytes_per_second: u64, Size [64 * KIB, TIB] = "32MiB";
        /// Brokers that share a store hold about as many bytes of closed groups each: copies move from those
        /// that hold most to those that hold least, as to one that has joined, until they differ by no more
        /// than this and no more than a tenth of the average. What moves counts against
        /// `cluster.repair_bytes_per_second`. Set it to the same at all brokers.
        spread_tolerance_bytes: u64, Size [64 * KIB, 1024 * TIB] = "1GiB";
        /// A broker that has not answered for so long counts as lost: the closed groups of which it
        /// has copies get others elsewhere.
        lost_after: Duration, Time [100 * MILLISECOND, 365 * DAY] = "10m";
        /// Connections beyond `server.max_connections`, and as many beyond `cluster.max_connections`, that only
        /// other brokers of the cluster may have: those that come from an address at which one is known.
        reserved_connections: u32, Count [0, 100_000] = "64";
        /// Connections to `cluster.listen` at a time, whoever has them; brokers of the cluster have
        /// `cluster.reserved_connections` beyond. One more is closed, and the log says which of the two limits
        /// was met; so is one that says nothing within 5 s, a control connection without a call for 60 s, one
        /// that does not go on with what it began for 30 s, and one for data over which nothing came for 60 s
        /// while its broker has no open copy here. Each broker of the cluster has about four.
        max_connections: u32, Count [16, 100_000] = "1024";
        /// Over what copies travel. `auto` is RDMA where the build (feature `rdma`) and the machine can
        /// use it, for peers that can as well, and TCP for the others. With `rdma` a broker that cannot
        /// use it does not start, and peers that cannot get no copies.
        transport: TransportChoice, TransportKind [] = "auto";
    }

    /// Copies of other brokers' groups that this broker keeps. Used by a broker that has a number.
    backup: BackupConfig {
        /// The most shared memory that copies may take together, with their records (a page each) and
        /// the seals. At the limit further ones are refused, and their primaries choose another broker.
        /// The file system of `backup.shared_dir` must be able to hold it: containers often get 64 MiB
        /// of shared memory only (`docker run --shm-size`, in Kubernetes an emptyDir with medium Memory).
        memory_bytes: u64, Size [MIB, TIB] = "1GiB";
        /// Where copies lie until they are on disk: a directory on shared memory, so that they outlive
        /// the process. `auto` is `/dev/shm/kera-` and a number made from the data directory.
        shared_dir: Option<PathBuf>, DirectoryOrAuto [] = "auto";
        /// Where copies are written when their group closes, and those of streams with `ack = synced` before
        /// anything is acknowledged. `auto` is `backup` in the data directory.
        disk_dir: Option<PathBuf>, DirectoryOrAuto [] = "auto";
        /// How often what open copies have gathered is written to disk.
        flush_interval: Duration, Time [100 * MILLISECOND, DAY] = "1m";
        /// The most copies that are not on the disk alone, of open groups as a rule: each is a file on
        /// shared memory. At this limit, as at the other two, further ones are refused, and their
        /// primaries choose another broker; this broker's log names the limit that was reached.
        max_copies_in_memory: u32, Count [1, 16_777_216] = "262144";
        /// The most copies, those of closed groups on the disk included. Each of these takes about 1.5 KiB
        /// of the process's memory, and stays until its group is older than its stream keeps records.
        max_copies: u32, Count [1, 268_435_456] = "4194304";
        /// The most streamlets of which this broker takes copies, in all streams together.
        max_streamlets: u32, Count [1, 16_777_216] = "65536";
    }

    /// The broker's log, on standard error.
    log: LogConfig {
        /// Which lines are written.
        level: String, LogFilter [] = "info";
        /// How lines are written.
        format: LogFormat, LogFormatKind [] = "text";
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
