//! What must hold whatever comes from outside: if it does not, the process ends before it acknowledges, shows or
//! deletes anything on the strength of it.

use std::fmt::Arguments;
use std::io::Write;

/// Ends the process, with a line that names the invariant and the object, unless the condition holds. For what only
/// a defect of this program can break; what comes from clients, files and other brokers is answered with errors.
/// It stays on in the build for use, so the condition is cheap and not looked at for each record or batch.
///
/// ```
/// let (head, begins) = (7, 7);
/// kera_log_segments::invariant!(begins >= head, "a group begins at {begins}, below the head {head}");
/// ```
#[macro_export]
macro_rules! invariant {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            $crate::invariant::broken(format_args!($($what)+));
        }
    };
}

/// Says what does not hold, and ends the process: a start recovers from the files, which nothing wrong was written to.
#[cold]
pub fn broken(what: Arguments<'_>) -> ! {
    tracing::error!("a defect of this program: {what}; the process ends, please report it");
    // Past whatever captures or filters what is logged.
    let _ = writeln!(
        std::io::stderr(),
        "kera: a defect of this program: {what}; the process ends, please report it\n{}",
        std::backtrace::Backtrace::force_capture()
    );
    std::process::abort();
}
