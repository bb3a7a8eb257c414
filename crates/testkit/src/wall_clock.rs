//! A wall clock that a test can set, and a disk that it can slow down, for the processes that are
//! started with it.
//!
//! A store or an instance meets a clock that jumps, while the machine and the test keep their own
//! time. The shim `wall_clock.c` adds an offset from a shared file to the wall clock of a process
//! and leaves its monotonic clock alone. A program that does not ask its C library for the time,
//! such as etcd, cannot be reached. `checker_sees_redis_clock_jump_break_exclusion` shows that the
//! clock moves.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// A wall clock that can be set, by a shim under the C library of a process.
#[derive(Debug, Clone)]
pub struct WallClock {
    shim: PathBuf,
    ahead: PathBuf,
}

impl WallClock {
    /// A clock whose file is in a directory.
    ///
    /// # Errors
    ///
    /// The shim cannot be built: why, for people.
    pub fn new(directory: &Path) -> Result<Self, String> {
        static SHIM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let shim = SHIM.get_or_init(build).clone()?;
        // Some servers run as another user.
        let all_may_read = Permissions::from_mode(0o755);
        std::fs::set_permissions(directory, all_may_read).expect("a directory of the test's");
        Ok(Self { shim, ahead: directory.join("clock") }.another("clock"))
    }

    /// Another clock, of processes that are not to have this one.
    pub fn another(&self, name: &str) -> Self {
        let clock = Self { shim: self.shim.clone(), ahead: self.ahead.with_file_name(name) };
        clock.set(Duration::ZERO);
        clock.delay_syncs(Duration::ZERO);
        clock
    }

    /// What the process has to be started with.
    pub fn environment(&self) -> [(&str, &str); 2] {
        [
            ("LD_PRELOAD", self.shim.to_str().expect("a plain path")),
            ("CLOCK_AHEAD", self.ahead.to_str().expect("a plain path")),
        ]
    }

    /// Sets the clock so far ahead.
    pub fn set(&self, ahead: Duration) {
        self.set_micros(i64::try_from(ahead.as_micros()).expect("a short time"));
    }

    /// Sets the clock so many hours ahead, or back.
    pub fn set_hours(&self, ahead: i64) {
        self.set_micros(ahead * 3_600_000_000);
    }

    /// Sets the clock so many microseconds ahead, or back.
    pub fn set_micros(&self, micros: i64) {
        self.write(0, micros);
    }

    /// Lets each sync to disk take so much longer.
    pub fn delay_syncs(&self, by: Duration) {
        self.write(1, i64::try_from(by.as_micros()).expect("a short time"));
    }

    fn write(&self, place: u64, micros: i64) {
        // In place, since the processes have the file mapped.
        let mut file = OpenOptions::new();
        let file = file.write(true).create(true).truncate(false).open(&self.ahead);
        let file = file.expect("the clock's file");
        FileExt::write_all_at(&file, &micros.to_ne_bytes(), place * 8).expect("room");
    }

    /// How far ahead it was set.
    pub fn ahead(&self) -> Duration {
        let bytes = std::fs::read(&self.ahead).expect("the clock's file");
        let micros = i64::from_ne_bytes(*bytes.first_chunk().expect("a number"));
        Duration::from_micros(micros.unsigned_abs())
    }

    /// Whether a process has this clock.
    pub fn is_that_of(&self, process: u32) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.lines().any(|line| line.ends_with(self.ahead.to_str().expect("a plain path")))
    }
}

/// Builds the shim, once for all tests of this version of it.
fn build() -> Result<PathBuf, String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wall_clock.c");
    let version = number_of(include_bytes!("wall_clock.c"));
    let shim = std::env::temp_dir().join(format!("keylatch-wall-clock-{version:016x}.so"));
    if shim.exists() {
        return Ok(shim);
    }
    let own = shim.with_extension(std::process::id().to_string());
    let mut built = Command::new("cc");
    built.args(["-shared", "-fPIC", "-O1", source, "-o"]).arg(&own);
    let built = built.output().map_err(|error| format!("no C compiler: {error}"))?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    std::fs::rename(&own, &shim).map_err(|error| error.to_string())?;
    Ok(shim)
}

/// A number that another text hardly has.
fn number_of(text: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    hasher.write(text);
    hasher.finish()
}
