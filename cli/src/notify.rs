//! Tells a service manager how far the broker is, over the datagram socket that `NOTIFY_SOCKET`
//! names: the protocol of systemd's `Type=notify`, which other managers speak too.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager that waits to hear from this process, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// Whoever `NOTIFY_SOCKET` names; nobody where it is not set or names no such socket.
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
            return Self::default();
        };
        match Self::to(&name) {
            Ok(notify) => notify,
            Err(error) => {
                tracing::warn!(socket = %name.display(), %error, "NOTIFY_SOCKET cannot be used, nobody is told when the broker serves");
                Self::default()
            }
        }
    }

    /// A socket by its path, or by its abstract name after `@`.
    fn to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is neither an absolute path nor begins with @",
                ));
            }
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up the broker.
        socket.set_nonblocking(true)?;
        Ok(Self(Some((socket, address))))
    }

    /// The broker serves; `status` is for people.
    pub(crate) fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// The broker drains its connections and closes its groups.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=draining\n");
    }

    /// What the broker does now, for people.
    pub(crate) fn status(&self, status: &str) {
        self.say(&format!("STATUS={status}\n"));
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::warn!(%error, "the service manager could not be told: {}", text.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("something was said");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    }

    #[test]
    fn a_path_and_an_abstract_name_are_heard() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("binds");
        let name = format!("kera-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&address).expect("binds");
        let at = format!("@{name}");
        for (socket, name) in [(by_path, path.as_os_str()), (by_name, OsStr::new(&at))] {
            let notify = Notify::to(name).expect("a socket");
            notify.ready("serving");
            assert_eq!(heard(&socket), "READY=1\nSTATUS=serving\n");
            notify.stopping();
            assert_eq!(heard(&socket), "STOPPING=1\nSTATUS=draining\n");
        }
    }

    #[test]
    fn nobody_and_a_manager_that_is_gone_are_no_trouble() {
        Notify::default().ready("serving");
        let gone = Notify::to(OsStr::new("/nowhere/notify")).expect("a socket of our own");
        gone.ready("serving");
        assert!(Notify::to(OsStr::new("relative")).is_err());
    }
}
