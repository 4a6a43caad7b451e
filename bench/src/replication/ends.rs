//! Both ends of a way: the process of a backup, and a primary's transport.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kera_replication::backup::{BackupStore, Limits, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;
use kera_replication::transport::tcp::{BackupServer, LinkOptions, ServerOptions, TcpTransport};

use super::bare::{self, BareTransport};
use super::cards;
use super::plan::{Ask, BackupPlan, Peer, Said, Wire, hear, say, say_cpu};
use super::rpc::{RpcServer, RpcTransport};

/// The broker that is the primary; its backups have other numbers.
pub const PRIMARY: BrokerId = BrokerId(1);
/// Where backups listen unless told otherwise.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The process `kera-bench replication-backup`.
pub fn backup() -> Result<()> {
    let plan: BackupPlan = hear()?.context("the harness went away")?;
    ensure!(plan.wire != Wire::Alone, "there is nothing to back up");
    if !plan.wire.keeps() {
        let listener = std::net::TcpListener::bind((plan.address, 0))?;
        say(&Said::Listening(listener.local_addr()?.to_string()))?;
        std::thread::spawn(move || bare::receive(&listener, plan.memory as usize));
        return answer();
    }
    let memory = ShmMemory::new(ShmOptions {
        dir: plan.folder.clone(),
        disk: None,
        quota: plan.memory,
    });
    let limits = Limits {
        memory_bytes: plan.memory,
        ..Limits::default()
    };
    let store = BackupStore::start(memory, limits, Faults::default())?;
    let runtime = runtime(plan.threads)?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind((plan.address, 0)))?;
    let address = listener.local_addr()?;
    if plan.wire == Wire::Rdma {
        cards::serve(&runtime, address, &store)?;
    }
    say(&Said::Listening(address.to_string()))?;
    let server = if plan.wire == Wire::Rpc {
        let server = RpcServer::start(store, plan.threads)?;
        runtime.spawn(server.serve(listener));
        Some(server)
    } else {
        // Nothing is flushed in the middle of a measurement: there is no disk.
        let options = ServerOptions {
            flush_interval: Duration::from_secs(3600),
            ..ServerOptions::default()
        };
        let server = BackupServer::new(store, options);
        runtime.spawn(async move { server.serve(listener).await });
        None
    };
    let answered = answer();
    drop(server);
    runtime.shutdown_background();
    answered
}

/// Answers until the harness goes away.
fn answer() -> Result<()> {
    while let Some(ask) = hear::<Ask>()? {
        ensure!(ask == Ask::Cpu, "a backup is asked for its CPU time only");
        say_cpu()?;
    }
    Ok(())
}

/// A runtime with that many threads.
///
/// # Errors
/// If they cannot be started.
pub fn runtime(threads: usize) -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(threads).enable_all().build()?)
}

/// A primary's way to its backups; to be called within a runtime.
///
/// # Errors
/// If an address is none.
pub fn transport(wire: Wire, peers: &[Peer]) -> Result<TransportRef> {
    let options = LinkOptions::default();
    Ok(match wire {
        Wire::Tcp => {
            let transport = TcpTransport::new(PRIMARY, options);
            for peer in peers {
                transport.set_address(BrokerId(peer.id), &peer.address)?;
            }
            Arc::new(transport)
        }
        Wire::Rdma => cards::transport(PRIMARY, peers)?,
        Wire::Rpc => {
            let transport = RpcTransport::new(PRIMARY, options);
            for peer in peers {
                transport.set_address(BrokerId(peer.id), &peer.address)?;
            }
            Arc::new(transport)
        }
        _ => {
            let addresses = peers
                .iter()
                .map(|peer| (BrokerId(peer.id), peer.address.clone()));
            Arc::new(BareTransport::new(addresses.collect::<HashMap<_, _>>()))
        }
    })
}
