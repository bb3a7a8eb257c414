//! The embedded store on a disk that loses power, fills up, fails and hangs: what was answered is
//! kept, and what was refused has not happened.
//!
//! `disk`, `vfs` and `writes` are the disk, on which SQLite runs as on any other. `client` is a
//! model of what one client was answered, which `power` and `bad_disk` hold the store to. Each
//! check has a self test on a disk that breaks the promise, so that a check that finds nothing is
//! red. `KEYLATCH_TEST_SCALE` says how many times as many cuts there are.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod bad_disk;
mod batches;
mod breaks;
mod client;
mod damage;
#[expect(unreachable_pub, reason = "the file is a part of the test kit too")]
#[path = "../../../testkit/src/random.rs"]
mod dice;
mod disk;
mod hanging;
mod lapses;
mod leader;
mod power;
mod requests;
mod retention;
mod room;
#[expect(unreachable_pub, dead_code, reason = "the file is a part of the test kit too")]
#[path = "../../../testkit/src/scale.rs"]
mod scale;
mod vfs;
mod writes;
