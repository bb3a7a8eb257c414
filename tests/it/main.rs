//! Everything that is tested against a whole service or a whole store, as one binary.

mod conformance;
mod differential;
mod stores;
mod support;
