//! Remembers which of the broker's own threads panicked.

use std::sync::Arc;

use parking_lot::Mutex;

/// The broker's own threads, watched. What a thread did that panicked is not done any more until
/// the broker is started again, so such a broker counts as dead although it answers.
#[derive(Clone, Debug, Default)]
pub struct Fallen(Arc<Mutex<Option<&'static str>>>);

impl Fallen {
    /// The first thread that panicked, by name.
    pub fn first(&self) -> Option<&'static str> {
        *self.0.lock()
    }

    /// Watches over the calling thread for as long as the value lives.
    pub fn watch(&self, thread: &'static str) -> Watch {
        Watch {
            fallen: self.clone(),
            thread,
        }
    }
}

/// See [`Fallen::watch`].
#[derive(Debug)]
pub struct Watch {
    fallen: Fallen,
    thread: &'static str,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fallen.0.lock().get_or_insert(self.thread);
            tracing::error!(
                thread = self.thread,
                "a thread of the broker has panicked: restart the broker"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_remembered_and_an_end_is_not() {
        let fallen = Fallen::default();
        let run = |name: &'static str, panics: bool| {
            let fallen = fallen.clone();
            std::thread::spawn(move || {
                let _watch = fallen.watch(name);
                if panics {
                    // Without the hook: the message of a panic that is wanted would mislead.
                    std::panic::resume_unwind(Box::new("planted"));
                }
            })
            .join()
        };
        run("one", false).expect("it ends as it should");
        assert_eq!(fallen.first(), None);
        run("two", true).expect_err("it panics");
        run("three", true).expect_err("it panics");
        assert_eq!(fallen.first(), Some("two"));
    }
}
