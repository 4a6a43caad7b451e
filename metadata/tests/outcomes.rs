//! How callers are told: callbacks, futures, closing.

mod support;

use std::sync::{Arc, mpsc};

use kera_metadata::*;
use support::*;

#[test]
fn a_closed_store_finishes_what_waits_and_refuses_the_rest() {
    on_each_store(|store| {
        let futures: Vec<_> = (0..50)
            .map(|n| {
                let (transaction, _) = creation(&stream(&format!("s{n}")), 1, 0).unwrap();
                store.commit_async(transaction)
            })
            .collect();
        store.close();
        for future in futures {
            future.wait().unwrap();
        }
        assert_eq!(
            store.commit(Transaction::default()),
            Err(MetadataError::Closed)
        );
        store.close();
    });
}

#[test]
fn a_panicking_callback_harms_nobody_else() {
    on_each_threaded_store(|store| {
        store.submit(Transaction::default(), Box::new(|_| panic!("planted")));
        store.create_stream(stream("a"), 1).unwrap();
    });
}

#[test]
fn a_callback_may_drop_the_last_handle() {
    on_each_threaded_store(|store| {
        let (sender, receiver) = mpsc::sync_channel(32);
        let (go, wait) = mpsc::sync_channel::<()>(1);
        let handle = store.clone();
        store.submit(
            Transaction::default(),
            Box::new(move |_| {
                wait.recv().unwrap();
                drop(handle);
                sender.send(()).unwrap();
            }),
        );
        drop(store);
        go.send(()).unwrap();
        receiver.recv().unwrap();
    });
}

#[test]
fn a_callback_may_submit_again() {
    on_each_threaded_store(|store| {
        let (sender, receiver) = mpsc::sync_channel(32);
        let again = store.clone();
        store.submit(
            Transaction::default(),
            Box::new(move |_| {
                let (transaction, _) = creation(&stream("a"), 1, 0).unwrap();
                again.submit(
                    transaction,
                    Box::new(move |outcome| sender.send(outcome).unwrap()),
                );
            }),
        );
        assert!(receiver.recv().unwrap().is_ok());
    });
}

#[test]
fn stores_work_behind_the_trait_and_futures_without_a_runtime() {
    fn is_send<T: Send>(_: &T) {}
    on_each_threaded_store(|store| {
        let future = store.commit_async(Transaction::default());
        is_send(&future);
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = std::task::Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut context) {
                std::task::Poll::Ready(outcome) => break assert!(outcome.is_ok()),
                std::task::Poll::Pending => std::thread::park(),
            }
        }
    });
}
