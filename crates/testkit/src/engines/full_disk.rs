//! A disk that is full for one engine: a limit on the size of its files.
//!
//! Any user may set it on processes of their own that run, and take it off again. What would make a
//! file larger fails, as on a full disk; what stays below the limit can still be written.

use std::process::Command as Program;

/// Lets a process and its children make no file larger than so many bytes; `None` takes the limit
/// off. The words before the program make it run as the user of these processes.
pub(super) fn limit_files(run_as: &[&str], process: u32, bytes: Option<u64>) {
    // The limit is the soft one, which may be raised again.
    let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    let limit = format!("--fsize={limit}:");
    let set = |process: &str| {
        let words = [run_as, &["prlimit", "--pid", process, &limit]].concat();
        let output = Program::new(words[0]).args(&words[1..]).output();
        output.expect("prlimit runs").status.success()
    };
    let process = process.to_string();
    assert!(set(&process), "process {process} has the limit");
    let children = Program::new("pgrep").args(["-P", &process]).output().expect("pgrep runs");
    for child in String::from_utf8_lossy(&children.stdout).lines() {
        // One that has ended meanwhile needs none.
        let _ = set(child);
    }
}
