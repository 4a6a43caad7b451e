//! Touching mapped bytes of a file that somebody else may cut short.
//!
//! Whoever touches a page beyond a file's end gets the signal SIGBUS, which ends the process: one file
//! that was truncated on shared memory would end a broker. A copy's file has a name, so the system
//! cannot be asked to keep it from shrinking (it can for a file without one), and to ask for the length
//! before each write would be a system call, and a race. So the thread that is about to touch mapped
//! bytes says which; if a signal comes for one of those, the handler puts a page of zeros in the place
//! of the missing one, notes it, and the thread goes on, to find afterwards that its bytes went nowhere.
//! That costs two stores to memory of its own. Any other signal is left to whoever handled it before.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

/// The bytes that this thread is about to touch, and whether one of them was missing.
#[derive(Clone, Copy)]
struct Touched {
    from: usize,
    to: usize,
    missing: bool,
}

const NOTHING: Touched = Touched {
    from: 0,
    to: 0,
    missing: false,
};

thread_local! {
    // Without a destructor and made at compile time: a signal handler may look at it.
    static TOUCHED: Cell<Touched> = const { Cell::new(NOTHING) };
}

/// What handled the signal before, and the bytes of a page.
struct Former {
    action: libc::sigaction,
    page: usize,
}

static FORMER: OnceLock<Former> = OnceLock::new();

/// Runs `touch`, which touches `len` mapped bytes at `from` and nothing else that could be missing.
///
/// # Errors
/// `UnexpectedEof` if some of them lie beyond the end of their file, or there is no memory for them: what was
/// written there is gone.
pub(super) fn touching(from: usize, len: usize, touch: impl FnOnce()) -> io::Result<()> {
    if FORMER.get().is_none() {
        listen()?;
    }
    TOUCHED.set(Touched {
        from,
        to: from + len,
        missing: false,
    });
    // The handler runs in this thread: only the compiler must not move what it sees.
    compiler_fence(Ordering::SeqCst);
    touch();
    compiler_fence(Ordering::SeqCst);
    let missing = TOUCHED.replace(NOTHING).missing;
    if missing {
        return Err(cut_short());
    }
    Ok(())
}

/// Says that a copy's file has lost its end.
pub(in crate::backup) fn cut_short() -> io::Error {
    let what = "its file was cut short by somebody else, or its memory is gone";
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}

/// Handles SIGBUS from now on.
fn listen() -> io::Result<()> {
    let mut former = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action only asks for the one in force, which is written to `former`.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), former.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let page = rustix::param::page_size();
    // SAFETY: the call above succeeded and filled it in.
    let action = unsafe { former.assume_init() };
    if FORMER.set(Former { action, page }).is_err() {
        // Another thread was first.
        return Ok(());
    }
    // SAFETY: all zeros is an action without flags, with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does nothing but what a handler may: it reads and writes a cell of its own
    // thread, and calls the system.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let Some(former) = FORMER.get() else { return };
    let mut touched = TOUCHED.get();
    // SAFETY: the system passes a valid description of the signal, and a SIGBUS names an address.
    let at = unsafe { (*info).si_addr() } as usize;
    if touched.from <= at && at < touched.to {
        let page = at / former.page * former.page;
        // SAFETY: the page lies in a mapping that this thread is touching right now, so it stays mapped; no
        // reference into it exists. It is replaced by one of zeros that is nobody else's.
        let mapped = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                former.page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            touched.missing = true;
            TOUCHED.set(touched);
            return;
        }
    }
    // Not ours: what touched it does so again, and is dealt with as before.
    // SAFETY: the action is the one that was in force before this handler.
    unsafe { libc::sigaction(signal, &raw const former.action, std::ptr::null_mut()) };
}
