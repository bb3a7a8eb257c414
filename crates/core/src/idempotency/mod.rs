//! Doing a thing once: idempotency keys, the records under them, and the service that runs what is
//! new and finds what is not.
//!
//! This module knows no HTTP server and no store engine. [`RecordState`] holds the rules as a pure
//! function, [`RecordStore`] is what a store has to do, [`Idempotency`] is what a layer or a
//! handler calls.

mod ending;
mod fingerprint;
mod key;
mod once;
mod record;
mod service;
mod state;
mod store;
mod waiting;

pub use fingerprint::{Fingerprint, Request, form_field};
pub use key::{IdempotencyKey, InvalidKey, RecordKey, Scope};
pub use once::{Ask, IdempotencyError, Once, Worked};
pub use record::{
    Abandonment, Answer, Begin, Begun, Complete, Completion, End, Extension, Kept, Malformed,
    OnCrash, Phase, Reason, Resolution, Resolve, Run, View,
};
pub use service::Idempotency;
pub use state::{Abandon, Command, Extend, Find, Record, RecordState, Stage, UNKNOWN_RETENTION};
pub use store::RecordStore;
