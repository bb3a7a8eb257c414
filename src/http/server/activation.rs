//! Sockets that the service manager hands over (socket activation of systemd: `LISTEN_PID`,
//! `LISTEN_FDS`).
//!
//! The manager listens, and starts the service with its sockets: clients that come before or during
//! a restart wait in them. Each listener of the configuration takes one, in the order of the
//! `.socket` file, in place of listening itself, and keeps its other settings. A socket that is
//! connected, as those of a unit with `Accept=yes` are, would serve nobody and is refused. Tested
//! in `tests/cli/activation.rs`.

use std::io;
use std::os::fd::AsFd;

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::{TcpListener, UnixListener};

/// The sockets that were handed over and not taken.
pub(crate) struct HandedSockets {
    sockets: ListenFd,
    next: usize,
}

impl HandedSockets {
    /// Those of this process. It is an error if they are others in number than the listeners.
    pub(crate) fn of_process(listeners: usize) -> io::Result<Self> {
        let sockets = ListenFd::from_env();
        let count = sockets.len();
        if count > 0 && count != listeners {
            let why = format!(
                "the service manager handed over {count} socket(s) for {listeners} listener(s): each takes one"
            );
            return Err(io::Error::other(why));
        }
        Ok(Self { sockets, next: 0 })
    }

    /// The next one, which has to be of TCP; `None` where there are none.
    pub(crate) fn next_tcp(&mut self) -> io::Result<Option<TcpListener>> {
        let place = self.take();
        let Some(socket) = self.sockets.take_tcp_listener(place)? else { return Ok(None) };
        check_listens(&socket)?;
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket).map(Some)
    }

    /// The next one, which has to be a Unix socket; `None` where there are none.
    pub(crate) fn next_unix(&mut self) -> io::Result<Option<UnixListener>> {
        let place = self.take();
        let Some(socket) = self.sockets.take_unix_listener(place)? else { return Ok(None) };
        check_listens(&socket)?;
        socket.set_nonblocking(true)?;
        UnixListener::from_std(socket).map(Some)
    }

    fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }
}

fn check_listens(socket: &impl AsFd) -> io::Result<()> {
    if SockRef::from(socket).is_listener()? {
        return Ok(());
    }
    let why = "the socket of the service manager does not listen: set `Accept=no` in its unit";
    Err(io::Error::other(why))
}
