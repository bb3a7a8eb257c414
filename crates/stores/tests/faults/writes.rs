//! A file of a disk for tests, and what is written to it.
//!
//! A write is kept until it is synced, because a power cut may take it, tear it, or leave it.

/// What was written to a file, and what of it was synced.
#[derive(Debug, Clone, Default)]
pub(crate) struct File {
    /// What a process reads: everything that was written.
    pub(crate) seen: Vec<u8>,
    /// What survives a power cut for certain.
    pub(crate) durable: Vec<u8>,
    /// What was written since the last sync, in order.
    pub(crate) unsynced: Vec<Write>,
    /// How much of what is not synced was there at the last sync.
    pub(crate) late: usize,
}

/// One change of a file.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    Bytes { offset: usize, data: Vec<u8> },
    Length(usize),
}

impl Write {
    pub(crate) fn end(&self) -> usize {
        match self {
            Self::Length(length) => *length,
            Self::Bytes { offset, data } => offset + data.len(),
        }
    }

    pub(crate) fn apply(&self, content: &mut Vec<u8>) {
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
