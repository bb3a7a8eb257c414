//! Answers that stay on disk: the way back into memory.
//!
//! A store remembers every key for a day and reads few responses again, so memory has what the
//! rules need to decide and a stub of each long response
//! ([`record_in_memory`](super::row::record_in_memory)). The whole record is in its row, which is
//! written once: a response never changes but to none. So it is read by its key and the fencing
//! token of its run. Those who read the same answer at one time share it, or clients that read
//! slowly would hold as many copies of it as they are.
//!
//! Invariants: no state of the table has a response above the bound; a response that is read is the
//! one that was acknowledged. Tested in `crates/stores/tests/faults/answers.rs` and by the
//! conformance of records.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::engine::Engine;
use super::row::RunKey;
use super::tables::FileError;
use keylatch_core::entry::Entry as _;
use keylatch_core::idempotency::{Answer, RecordKey, RecordState, StoredResponse};

/// The responses that were read, for as long as any part of a copy is in use. A run has one at
/// most.
#[derive(Debug, Default)]
pub(super) struct AnswersInUse {
    answers: HashMap<RunKey, Weak<Answer>>,
}

impl AnswersInUse {
    /// The state of a record with its response in the place of the stub, where it has one.
    pub(super) fn complete(
        &mut self,
        key: &RecordKey,
        state: RecordState,
        engine: &Engine,
    ) -> Result<RecordState, FileError> {
        let (Some(StoredResponse::Stub(stub)), Some(fencing_token)) =
            (state.kept(), state.fencing_token())
        else {
            return Ok(state);
        };
        let run = (*key, fencing_token);
        if let Some(answer) = self.answers.get(&run).and_then(Weak::upgrade) {
            return Ok(state.map_kept(|_| share(&answer)));
        }
        let row = engine.record(&run)?;
        let is_of_stub = |kept: &&StoredResponse| {
            kept.stub() == *stub && row.fencing_token() == Some(fencing_token)
        };
        match row.kept().filter(is_of_stub) {
            Some(StoredResponse::Answer(answer)) => {
                self.answers.retain(|_, in_use| in_use.strong_count() > 0);
                self.answers.insert(run, Arc::downgrade(answer));
                Ok(state.map_kept(|_| share(answer)))
            }
            // Who decrypts it copies it.
            Some(kept @ StoredResponse::Sealed(_)) => Ok(state.map_kept(|_| kept.clone())),
            _ => Err(FileError::Damaged("a row has another answer".to_owned())),
        }
    }
}

/// The response with a body that keeps `answer`, be it a part or a clone of it.
fn share(answer: &Arc<Answer>) -> StoredResponse {
    let (status, headers) = (answer.status, answer.headers.clone());
    let body = Bytes::from_owner(SharedBody(Arc::clone(answer)));
    StoredResponse::Answer(Arc::new(Answer { status, headers, body }))
}

struct SharedBody(Arc<Answer>);

impl AsRef<[u8]> for SharedBody {
    fn as_ref(&self) -> &[u8] {
        &self.0.body
    }
}
