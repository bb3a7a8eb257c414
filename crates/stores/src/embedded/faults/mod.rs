//! The store on a disk that loses power, fills up, fails and hangs: what was answered is kept, and
//! what was refused has not happened.

mod bad_disk;
mod client;
mod disk;
mod file;
mod hanging;
mod power;
mod records;
mod room;
mod store;
mod vfs;
mod writer;
mod writes;
