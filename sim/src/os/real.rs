//! The system's own functions, behind those of the same names that this program puts in their place.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    DIR, dirent64, pollfd, pthread_attr_t, pthread_t, sockaddr, socklen_t, ssize_t, timespec,
};

/// What a thread begins with.
pub(super) type Begin = extern "C" fn(*mut c_void) -> *mut c_void;

macro_rules! real {
    ($($name:ident($($arg:ident: $ty:ty),* $(; $dots:tt)?) -> $ret:ty;)+) => { $(
        /// # Safety
        /// As of the system's function.
        pub(super) unsafe fn $name($($arg: $ty),*) -> $ret {
            static AT: AtomicUsize = AtomicUsize::new(0);
            let mut at = AT.load(Ordering::Relaxed);
            if at == 0 {
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the name ends with a zero.
                at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) } as usize;
                assert!(at != 0, "libc has no {}", stringify!($name));
                AT.store(at, Ordering::Relaxed);
            }
            // SAFETY: libc's function of that name has that type.
            unsafe {
                let function: unsafe extern "C" fn($($ty),* $(, $dots)?) -> $ret = std::mem::transmute(at);
                function($($arg),*)
            }
        }
    )+ };
}

real! {
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    clock_gettime(clock: c_int, time: *mut timespec) -> c_int;
    getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> ssize_t;
    pthread_create(thread: *mut pthread_t, attr: *const pthread_attr_t, begin: Begin, arg: *mut c_void) -> c_int;
    pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int;
    sched_yield() -> c_int;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    clock_nanosleep(clock: c_int, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    sched_getaffinity(process: c_int, len: usize, set: *mut c_void) -> c_int;
    getpid() -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, arg: usize) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: usize) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: usize) -> ssize_t;
    writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: usize, flags: c_int, address: *const sockaddr, alen: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t;
    poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const libc::sigset_t) -> c_int;
    epoll_wait(fd: c_int, events: *mut libc::epoll_event, count: c_int, timeout: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    timerfd_settime(fd: c_int, flags: c_int, new: *const libc::itimerspec, old: *mut libc::itimerspec) -> c_int;
    pwrite(fd: c_int, bytes: *const c_void, len: usize, offset: i64) -> ssize_t;
    pwrite64(fd: c_int, bytes: *const c_void, len: usize, offset: i64) -> ssize_t;
    pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> ssize_t;
    fsync(fd: c_int) -> c_int;
    fdatasync(fd: c_int) -> c_int;
    syncfs(fd: c_int) -> c_int;
    sync_file_range(fd: c_int, offset: i64, len: i64, flags: c_uint) -> c_int;
    ftruncate64(fd: c_int, length: i64) -> c_int;
    unlink(path: *const libc::c_char) -> c_int;
    unlinkat(dir: c_int, path: *const libc::c_char, flags: c_int) -> c_int;
    rmdir(path: *const libc::c_char) -> c_int;
    mkdir(path: *const libc::c_char, mode: libc::mode_t) -> c_int;
    readdir64(dir: *mut DIR) -> *mut dirent64;
    closedir(dir: *mut DIR) -> c_int;
    rename(from: *const libc::c_char, to: *const libc::c_char) -> c_int;
    open64(path: *const libc::c_char, flags: c_int, mode: usize) -> c_int;
    statfs64(path: *const libc::c_char, found: *mut libc::statfs64) -> c_int;
    fstatfs64(fd: c_int, found: *mut libc::statfs64) -> c_int;
    statx(dir: c_int, path: *const libc::c_char, flags: c_int, mask: c_uint, found: *mut libc::statx) -> c_int;
    statvfs64(path: *const libc::c_char, found: *mut libc::statvfs64) -> c_int;
    fstatvfs64(fd: c_int, found: *mut libc::statvfs64) -> c_int;
}

/// Sets `errno`, and gives what calls return then.
pub(super) fn fail(errno: c_int) -> c_int {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// `errno` as the last call of this thread left it.
pub(super) fn errno() -> c_int {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// What is to be looked at of a file.
pub(super) fn file(fd: i32, events: i16) -> pollfd {
    pollfd {
        fd,
        events,
        revents: 0,
    }
}
