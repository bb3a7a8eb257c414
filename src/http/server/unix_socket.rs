//! A Unix socket as a listener: its file, who may connect, and what becomes of the file.
//!
//! The permissions of the file say who may connect. The file is made with none for others and gets
//! its owner and its mode after that, so that no other user connects in between. A file that a dead
//! process left is replaced; one that a process still answers on is an error. The file is removed
//! with its listener, unless it is another one's by then. Tested in `tests/api/listeners.rs` and
//! `tests/cli/listeners.rs`.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Group, Uid, User, chown};
use tokio::net::{UnixListener, UnixStream};

use super::listener::{AcceptedConnection, Listener};
use super::socket_io::{self, SocketIo, lengthen_queue};

/// A Unix socket that is listened on.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    /// Removes its file at the end, unless the file is another's.
    _file: Option<SocketFile>,
}

/// The file of a socket, and which file it was when it was made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl UnixSocket {
    /// Listens at `path`, where those may connect whom `mode` lets. The file is given to `owner`: a
    /// user, a group behind a colon, or both, as chown(1) has them. Nobody else may listen there,
    /// and nothing but a socket may be there.
    pub async fn bind(path: &Path, mode: u32, owner: Option<&str>) -> io::Result<Self> {
        remove_stale(path).await?;
        let listener = bind_private(path)?;
        lengthen_queue(&listener)?;
        let id = identity(path)?;
        // From here on the file is removed if something fails.
        let file = SocketFile { path: path.to_owned(), id };
        if let Some(owner) = owner {
            give_away(path, owner)?;
        }
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok(Self { listener, _file: Some(file) })
    }

    /// A socket that is listened on already, and whose file stays.
    pub(crate) fn handed(listener: UnixListener) -> Self {
        Self { listener, _file: None }
    }

    /// Where it listens, if it has a file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.listener.local_addr().ok()?.as_pathname().map(Path::to_owned)
    }
}

/// Makes a socket that its owner alone may connect to.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    // The mask is that of the process, which does not serve anything yet.
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

/// Gives a file to a user, a group or both; each is a name or a number.
fn give_away(path: &Path, owner: &str) -> io::Result<()> {
    let (user, group) = owner.split_once(':').unwrap_or((owner, ""));
    let absent = |what: &str, name: &str| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no {what} `{name}`"))
    };
    let user_id = match (user, user.parse()) {
        ("", _) => None,
        (_, Ok(number)) => Some(Uid::from_raw(number)),
        (name, Err(_)) => {
            let found = User::from_name(name)?.ok_or_else(|| absent("user", name))?;
            Some(found.uid)
        }
    };
    let group_id = match (group, group.parse()) {
        ("", _) => None,
        (_, Ok(number)) => Some(Gid::from_raw(number)),
        (name, Err(_)) => {
            let found = Group::from_name(name)?.ok_or_else(|| absent("group", name))?;
            Some(found.gid)
        }
    };
    Ok(chown(path, user_id, group_id)?)
}

/// Removes the socket of a process that has ended.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !is_socket {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is no socket"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|id| id == self.id)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, "the file of the socket stays");
        }
    }
}

impl Listener for UnixSocket {
    type Io = SocketIo<UnixStream>;

    async fn accept(&self, _: Duration) -> io::Result<AcceptedConnection<Self::Io>> {
        let (stream, _) = self.listener.accept().await?;
        let (io, closed, has_ended) = socket_io::split(stream);
        // A program of this machine, as one that comes over loopback.
        let peer = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(AcceptedConnection { io, peer, closed, has_ended })
    }

    fn is_local(&self) -> io::Result<bool> {
        Ok(true)
    }
}
