//! The rdma transport over a network card: `make test-rdma` boots a virtual machine with one made
//! of software and runs this there. `KERA_RDMA_ADDRESS` names the card's address; without it every
//! test says that it did not run.

mod child;
mod killed;
mod links;
mod machine;
mod owner;
mod passive;
mod property;
#[path = "../sockets/mod.rs"]
mod sockets;
#[path = "../suite/mod.rs"]
mod suite;
mod two;
mod zombie;
