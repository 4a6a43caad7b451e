//! `kera replica-store`: a process that keeps copies, over its deaths and returns.

use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};
use kera_replication::ids::{BrokerId, CopyId, Incarnation, StreamletKey};
use kera_replication::transport::tcp::{LinkOptions, TcpTransport};
use kera_replication::transport::{
    CallError, CopyAnswer, Refusal, Reply, Request, Seal, Transport, Write,
};

use super::cluster::{SEALS, cluster, flags, shared};
use crate::common::http::get;
use crate::common::ports::Reserved;
use crate::common::{Broker, finish, home, kera};

const SEGMENT: u32 = 1 << 20;
const ME: BrokerId = BrokerId(1);
const BACKUP: BrokerId = BrokerId(3);

/// Broker 1, as far as a backup sees of it.
struct Primary {
    transport: TcpTransport,
    copy: CopyId,
}

/// Some copy.
fn copy() -> CopyId {
    let streamlet = StreamletKey {
        stream: StreamId::random(),
        streamlet: StreamletId(0),
    };
    CopyId {
        streamlet,
        group: GroupId(0),
        epoch: Epoch(1),
        generation: 0,
    }
}

impl Primary {
    /// To be made on a runtime.
    fn new(address: &str, copy: CopyId) -> Self {
        let transport = TcpTransport::new(ME, LinkOptions::default());
        transport.set_address(BACKUP, address).expect("an address");
        Self { transport, copy }
    }

    async fn call(&self, request: Request) -> Result<Reply, CallError> {
        self.transport.call(BACKUP, request).await
    }

    async fn incarnation(&self) -> Incarnation {
        match self.call(Request::Describe).await {
            Ok(Reply::Description(description)) => description.incarnation,
            other => panic!("{other:?}"),
        }
    }

    fn opening(&self, incarnation: Incarnation, bytes: u32) -> Request {
        Request::Open {
            copy: self.copy,
            incarnation,
            primary: ME,
            segment_size: SEGMENT,
            segments: 32,
            address: 0,
            bytes,
        }
    }

    /// Opens the copy and puts `bytes` into it, over a link.
    async fn ship(&self, incarnation: Incarnation, bytes: &'static [u8]) {
        let opened = match self.call(self.opening(incarnation, 64 << 10)).await {
            Ok(Reply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        };
        let link = self.transport.connect(BACKUP, opened.process).await;
        let mut link = link.expect("a link");
        let write = Write {
            buffer: opened.buffers[0].key,
            offset: 0,
            parts: vec![bytes.into()],
        };
        let number = link.submit(vec![write]).expect("a submission");
        let completed = std::future::poll_fn(|cx| link.poll_completed(cx)).await;
        assert_eq!(completed, Ok(number));
    }

    async fn read(&self, len: u32) -> Vec<u8> {
        let request = Request::Read {
            copy: self.copy,
            address: 0,
            len,
        };
        match self.call(request).await {
            Ok(Reply::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

fn on_runtime<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(task)
}

#[test]
fn copies_outlive_a_backups_process_and_are_sealed_when_it_is_back() {
    let Some(etcd) = cluster() else { return };
    let (shared, http) = (shared(), Reserved::new());
    let (path, store) = (shared.path().display().to_string(), etcd.address());
    let mut more = flags("3", "", &path);
    more.drain(2..4);
    more.extend(["--cluster", &store, "--http-listen", http.address()]);
    let mut backup = Broker::backup(&more);
    let described = backup.json(&["broker", "describe"]);
    assert_eq!(described["free_bytes"], (16 << 20) - SEALS, "{described:#}");

    let copy = copy();
    let incarnation = on_runtime(async {
        let primary = Primary::new(backup.address(), copy);
        let incarnation = primary.incarnation().await;
        primary.ship(incarnation, b"acknowledged").await;
        incarnation
    });
    let metrics = get(http.address(), "/metrics");
    // A buffer, a page for its replica's record, and the seals.
    let used = (64 << 10) + (4 << 10) + SEALS;
    for said in [
        "kera_replica_store_replicas{state=\"open\"} 1",
        &format!("kera_replica_store_memory_used_bytes {used}\n"),
        "kera_replica_store_received_bytes_total ",
        "kera_cluster_lease 1\n",
    ] {
        assert!(metrics.contains(said), "`{said}` is not in\n{metrics}");
    }
    assert!(get(http.address(), "/readyz").ends_with("ready\n"));

    backup.kill();
    backup.restart();
    let metrics = get(http.address(), "/metrics");
    assert!(
        metrics.contains("kera_replica_store_replicas{state=\"sealed\"} 1"),
        "{metrics}"
    );
    on_runtime(async {
        let primary = Primary::new(backup.address(), copy);
        assert_eq!(
            primary.incarnation().await,
            incarnation,
            "its memory has outlived it"
        );
        assert_eq!(primary.read(12).await, b"acknowledged");
        // Its primary may not go on with it, and hears so.
        let again = primary.call(primary.opening(incarnation, 1)).await;
        let refused = matches!(
            again,
            Err(CallError::Refused {
                refusal: Refusal::Sealed { .. },
                ..
            })
        );
        assert!(refused, "{again:?}");
        let seal = Request::Seal(Seal {
            streamlet: copy.streamlet,
            epoch: Epoch(2),
            copies: vec![(copy, incarnation)],
        });
        match primary.call(seal).await {
            // The bytes are no batch.
            Ok(Reply::Sealed(sealed)) => assert!(
                matches!(sealed[0].answer, CopyAnswer::Scanned { length: 0, .. }),
                "{sealed:?}"
            ),
            other => panic!("{other:?}"),
        }
        // Beyond the quota it says so at once.
        let next = CopyId {
            group: GroupId(1),
            epoch: Epoch(2),
            ..copy
        };
        let mut address = 0;
        loop {
            let request = Request::Open {
                copy: next,
                incarnation,
                primary: ME,
                segment_size: SEGMENT,
                segments: 32,
                address,
                bytes: SEGMENT - (address % u64::from(SEGMENT)) as u32,
            };
            match primary.call(request).await {
                // Less than was asked for, where little is left.
                Ok(Reply::Opened(opened)) => {
                    let last = opened.buffers.last().expect("it is not refused");
                    assert_eq!(last.address, address, "{opened:?}");
                    address += u64::from(last.bytes);
                }
                Err(CallError::Refused {
                    refusal: Refusal::NoRoom { .. },
                    ..
                }) => break,
                other => panic!("{other:?}"),
            }
        }
        let quota = 16 * u64::from(SEGMENT);
        assert!(
            address > quota - u64::from(SEGMENT) && address < quota,
            "{address}"
        );
    });
    let metrics = get(http.address(), "/metrics");
    for said in [
        "kera_replica_store_seals_total 1",
        "kera_replica_store_refusals_total{reason=\"no_room\"} 1",
        "kera_replica_store_refusals_total{reason=\"sealed\"} 1",
    ] {
        assert!(metrics.contains(said), "`{said}` is not in\n{metrics}");
    }
    let stopped = backup.stop();
    assert!(stopped.success(), "{stopped}: {}", backup.log());
}

#[test]
fn a_second_start_on_the_same_store_is_refused_while_the_first_lives() {
    let Some(etcd) = cluster() else { return };
    let (shared, elsewhere) = (shared(), home());
    let (path, store) = (shared.path().display().to_string(), etcd.address());
    let mut more = flags("3", "", &path);
    more.drain(2..4);
    more.extend(["--cluster", &store]);
    let mut backup = Broker::backup(&more);
    let pid = backup.pid().to_string();
    // Its shared memory, with a data directory that nobody else has.
    let beside = || {
        let mut command = kera();
        command
            .args(["replica-store", "--replication-listen", "127.0.0.1:0"])
            .args(["--http-listen", "off", "--data-dir"])
            .arg(elsewhere.path().join("data"))
            .args(&more);
        command
    };
    let refused = |backup: &Broker| {
        let data = backup.data_dir().display().to_string();
        for (command, place) in [(backup.command(), &data), (beside(), &path)] {
            let finished = finish(command, b"");
            assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
            for said in [&pid, place] {
                assert!(finished.stderr.contains(said), "{}", finished.stderr);
            }
        }
    };
    refused(&backup);
    // Stopped, it may go on at any time.
    backup.pause(true);
    refused(&backup);
    backup.pause(false);
    let incarnation = |backup: &Broker| {
        on_runtime(async {
            let primary = Primary::new(backup.address(), copy());
            primary.incarnation().await
        })
    };
    let before = incarnation(&backup);
    backup.kill();
    backup.restart();
    assert_eq!(incarnation(&backup), before);
}

#[test]
fn a_replica_store_needs_a_number_and_an_etcd() {
    let shared = shared();
    let path = shared.path().display().to_string();
    let told = |flags: &[&str]| {
        let mut backup = kera();
        // By its former name.
        backup
            .args(["backup", "--replication-listen", "127.0.0.1:0"])
            .args(["--http-listen", "off", "--data-dir"])
            .arg(&path)
            .args(flags);
        let finished = finish(backup, b"");
        (finished.status.code(), finished.stderr)
    };
    let (code, said) = told(&["--cluster", "etcd://127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--broker-id"), "{said}");
    let (code, said) = told(&["--broker-id", "3"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--cluster etcd://"), "{said}");
}
