#![allow(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::span;

use super::*;

/// Keeps the events at info and above.
#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    spans: AtomicU64,
}

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.lines.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// What `run` logs.
fn logged(run: impl Fn()) -> Vec<String> {
    // Once unheard: were another thread, to which nobody listens, the first to come by the place that logs
    // while there is one listener, then nobody would hear of it from then on.
    run();
    let lines = Arc::new(Lines::default());
    tracing::subscriber::with_default(lines.clone(), run);
    lines.lines.lock().unwrap().clone()
}

#[test]
fn a_refused_ring_means_plain_calls_and_one_line() {
    for kind in [EngineKind::Auto, EngineKind::Uring] {
        let lines = logged(|| {
            let io = choose(kind, || Err(io::Error::from_raw_os_error(libc::ENOSYS)));
            assert_eq!(io.name(), "blocking");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("io_uring is refused here"), "{lines:?}");
    }
}

#[test]
fn a_refusal_says_what_grants_it() {
    let cases = [
        (libc::EPERM, Some(2), "kernel.io_uring_disabled"),
        (libc::EPERM, Some(1), "kernel.io_uring_group"),
        (libc::EPERM, Some(0), "seccomp"),
        (libc::EPERM, None, "seccomp"),
        (libc::ENOSYS, None, "kernel has none"),
        (libc::ENOMEM, Some(0), "RLIMIT_MEMLOCK"),
        (libc::EIO, Some(0), "nothing else changes"),
    ];
    for (code, switch, word) in cases {
        let advice = what_to_set(&io::Error::from_raw_os_error(code), switch);
        assert!(advice.contains(word), "{code} {switch:?}: {advice}");
    }
}

#[test]
fn plain_calls_on_request_never_try_a_ring() {
    let lines = logged(|| {
        let io = choose(EngineKind::Blocking, || panic!("tried"));
        assert_eq!(io.name(), "blocking");
    });
    assert!(lines.is_empty());
}

/// As a container's seccomp profile does it: `io_uring_setup` answers EPERM to this thread.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn seccomp_refusal_falls_back() {
    const LOAD_NR: libc::sock_filter = libc::sock_filter {
        code: 0x20,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let allow = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let refuse = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    };
    let is_setup = libc::sock_filter {
        code: 0x15,
        jt: 0,
        jf: 1,
        k: libc::SYS_io_uring_setup as u32,
    };
    let worker = std::thread::spawn(move || {
        let mut program = [LOAD_NR, is_setup, refuse, allow];
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: plain numbers; affects this thread alone, which ends with this test.
        let armed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 };
        // SAFETY: the program is valid for the call, which copies it; it binds this thread alone.
        let armed = armed
            && unsafe {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
            };
        assert!(
            armed,
            "seccomp is not available: {}",
            io::Error::last_os_error()
        );
        logged(|| {
            let io = open_engine(EngineKind::Auto);
            assert_eq!(io.name(), "blocking");
        })
    });
    let lines = worker.join().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
}
