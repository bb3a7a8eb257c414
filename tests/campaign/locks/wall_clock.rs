//! A wall clock that a campaign can set, for redis-servers alone.
//!
//! Goal: a store meets a clock that jumps, while the machine and the campaign keep their own time.
//!
//! Method: the shim `wall_clock.c` adds an offset from a shared file to the wall clock of a process
//! and leaves its monotonic clock alone. Without a C compiler the campaign counts the fault as
//! skipped. `checker_sees_redis_clock_jump_break_exclusion` shows that the clock moves.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A wall clock for redis-servers that can be set, by a shim under their C library.
#[derive(Debug)]
pub(super) struct WallClock {
    shim: PathBuf,
    ahead: PathBuf,
}

impl WallClock {
    /// Builds the shim in a directory; `Err` says why that cannot be done here.
    pub(super) fn new(directory: &Path) -> Result<Self, String> {
        let (shim, ahead) = (directory.join("clock.so"), directory.join("clock"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/campaign/locks/wall_clock.c");
        let mut built = Command::new("cc");
        built.args(["-shared", "-fPIC", "-O1", source, "-o"]).arg(&shim);
        let built = built.output().map_err(|error| format!("no C compiler: {error}"))?;
        if !built.status.success() {
            return Err(String::from_utf8_lossy(&built.stderr).into_owned());
        }
        let clock = Self { shim, ahead };
        clock.set(Duration::ZERO);
        Ok(clock)
    }

    /// What the process of a server has to be started with.
    pub(super) fn environment(&self) -> [(&str, &str); 2] {
        [
            ("LD_PRELOAD", self.shim.to_str().expect("a plain path")),
            ("CLOCK_AHEAD", self.ahead.to_str().expect("a plain path")),
        ]
    }

    /// Sets the clock so far ahead.
    pub(super) fn set(&self, ahead: Duration) {
        let micros = i64::try_from(ahead.as_micros()).expect("a short time");
        // In place, since the servers have the file mapped.
        let mut file = OpenOptions::new();
        let file = file.write(true).create(true).truncate(false).open(&self.ahead);
        let file = file.expect("the clock's file");
        FileExt::write_all_at(&file, &micros.to_ne_bytes(), 0).expect("room");
    }

    /// How far ahead it was set.
    pub(super) fn ahead(&self) -> Duration {
        let bytes = std::fs::read(&self.ahead).expect("the clock's file");
        let micros = i64::from_ne_bytes(bytes.try_into().expect("a number"));
        Duration::from_micros(micros.unsigned_abs())
    }
}
