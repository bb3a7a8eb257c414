//! A file of a disk for tests, and what is written to it.

/// What was written to a file, and what of it was synced.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    /// What a process reads: everything that was written.
    pub(super) seen: Vec<u8>,
    /// What survives a power cut for certain.
    pub(super) durable: Vec<u8>,
    /// What was written since the last sync, in order.
    pub(super) unsynced: Vec<Write>,
    /// How much of what is not synced was there at the last sync.
    pub(super) late: usize,
}

/// One change of a file.
#[derive(Debug, Clone)]
pub(super) enum Write {
    Bytes { offset: usize, data: Vec<u8> },
    Length(usize),
}

impl Write {
    pub(super) fn end(&self) -> usize {
        match self {
            Self::Length(length) => *length,
            Self::Bytes { offset, data } => offset + data.len(),
        }
    }

    pub(super) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Length(length) => content.resize(*length, 0),
            Self::Bytes { offset, data } => {
                // A file grows when something is written behind its end.
                let end = offset + data.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(data);
            }
        }
    }
}
