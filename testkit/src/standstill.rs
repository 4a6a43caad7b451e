//! Child processes that are stopped where they are, and go on later.

use std::process::Child;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// SIGSTOP; returns when every thread of the process stands still. The signal is only on its way
/// when it was sent: on a busy machine the process would go on for a while, and answer.
pub fn stand_still(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("a child is signalled");
    // The system tells it of the process as a whole, once its last thread has stopped. An end is
    // left for those who wait for one.
    let told = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), told).expect("a child can be waited for");
    let stopped = status.is_some_and(|status| status.stopped());
    assert!(stopped, "process {} ended by itself", child.id());
}

/// SIGCONT.
pub fn go_on(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).expect("a child is signalled");
}
