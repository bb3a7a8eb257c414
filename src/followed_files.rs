//! Files of the operator's that are read at start, and again when they change or on SIGHUP.
//!
//! The files are read every two seconds and compared as a whole, which also sees a Secret of
//! Kubernetes that is replaced behind a link. The owner of the files decides what new contents are
//! worth; what it had before stays until it has something better. The identities and the
//! certificates are followed so. Tested in `tests/cli/keys.rs` and `tests/cli/tls.rs`.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::signals::hangups;

/// How often the files are compared with what was read of them.
const PERIOD: Duration = Duration::from_secs(2);

/// Some files that belong together, and what was read first of them.
#[derive(Debug)]
pub(crate) struct FollowedFiles {
    paths: Vec<PathBuf>,
    first: Vec<Vec<u8>>,
    hangups: watch::Receiver<()>,
}

/// A file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct UnreadableFile {
    path: PathBuf,
    source: std::io::Error,
}

impl FollowedFiles {
    pub(crate) fn read(paths: Vec<PathBuf>) -> Result<Self, UnreadableFile> {
        // A signal that comes after the first reading has another one follow.
        let hangups = hangups();
        let first = read_all(&paths)?;
        Ok(Self { paths, first, hangups })
    }

    /// What was read first, in the order of the paths.
    pub(crate) fn first(&self) -> &[Vec<u8>] {
        &self.first
    }

    /// Follows the files until it is dropped: calls `take` with what they have whenever that is
    /// something else than the last time, and on each SIGHUP.
    pub(crate) async fn follow(&self, take: impl Fn(Result<&[Vec<u8>], &str>)) {
        let mut hangups = self.hangups.clone();
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Ok(self.first.clone());
        loop {
            let is_asked = tokio::select! {
                _ = ticks.tick() => false,
                // The sender is a static, so it never ends.
                _ = hangups.changed() => true,
            };
            let paths = self.paths.clone();
            let read = tokio::task::spawn_blocking(move || read_all(&paths)).await;
            let Ok(read) = read else { continue };
            let read = read.map_err(|error| error.to_string());
            if is_asked || read != seen {
                take(read.as_deref().map_err(String::as_str));
                seen = read;
            }
        }
    }
}

/// One file, such as that of identities.
#[derive(Debug)]
pub(crate) struct FollowedFile {
    path: String,
    files: FollowedFiles,
}

impl FollowedFile {
    /// Reads the file, and what is in it. The error names the file.
    pub(crate) fn read<T, E: Display>(
        path: &str,
        read: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<(Self, T), String> {
        let files = FollowedFiles::read(vec![path.into()]).map_err(|error| error.to_string())?;
        let secrets = read(&files.first().concat()).map_err(|error| format!("{path}: {error}"))?;
        Ok((Self { path: path.to_owned(), files }, secrets))
    }

    /// Follows the file until it is dropped. `replace` takes what it has, or says what is wrong
    /// with it.
    pub(crate) async fn follow<E: Display>(
        &self,
        what: &'static str,
        replace: impl Fn(&[u8]) -> Result<(), E>,
    ) {
        let take = |read: Result<&[Vec<u8>], &str>| {
            let replace = |read: &[Vec<u8>]| replace(&read.concat()).map_err(|e| e.to_string());
            match read.map_err(str::to_owned).and_then(replace) {
                Ok(()) => tracing::info!(file = self.path, "{what} are read again"),
                Err(error) => {
                    let stay = "are not read: the previous ones stay in force";
                    tracing::error!(file = self.path, error, "{what} {stay}");
                }
            }
        };
        self.files.follow(take).await;
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, UnreadableFile> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| UnreadableFile { path: path.clone(), source })
    };
    paths.iter().map(read).collect()
}
