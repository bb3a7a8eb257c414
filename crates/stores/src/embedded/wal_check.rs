//! Whether what is missing from the log is more than a power cut may have taken.
//!
//! SQLite reads its log up to the first frame whose checksum does not match, and overlooks the rest
//! without a word. After a power cut that is right: the transaction that was being written is torn,
//! and was not answered. But the next transaction is begun only when the one before is synced. So a
//! frame that follows on the end of a transaction, behind a frame that does not match, shows that
//! something was lost that had been synced.

use super::tables::FileError;

/// The part before the first frame.
const HEADER: usize = 32;
/// What stands before each page.
const FRAME_HEADER: usize = 24;
/// How a log begins, but for its last bit, which says in which order its checksums take the bytes.
const MAGIC: u32 = 0x377f_0682;

/// The two sums over all that came before.
type Sums = [u32; 2];

/// Fails where a log is damaged.
pub(super) fn check(log: &[u8]) -> Result<(), FileError> {
    damage(log).map_or(Ok(()), |reason| Err(FileError::Damaged(reason.to_owned())))
}

fn damage(log: &[u8]) -> Option<&'static str> {
    if log.len() <= HEADER {
        return None;
    }
    if number(log, 0) & !1 != MAGIC {
        return Some("its log does not begin as a log does");
    }
    let big_endian = number(log, 0) & 1 == 1;
    let sums = |sums, bytes| checksum(sums, bytes, big_endian);
    // A header that is torn was written when all before it was in the file.
    let seed = sums([0, 0], &log[..24]);
    if seed != pair(log, 24) {
        return None;
    }
    let frame = FRAME_HEADER + number(log, 8) as usize;
    let salts = pair(log, 16);
    let (mut before, mut broken, mut ended) = (seed, false, false);
    for frame in log[HEADER..].chunks_exact(frame) {
        // A frame from before SQLite began the log again.
        if pair(frame, 8) != salts {
            (broken, ended) = (true, false);
            continue;
        }
        let matches = sums(sums(before, &frame[..8]), &frame[FRAME_HEADER..]) == pair(frame, 16);
        if broken && ended && matches {
            return Some("its log is broken before its end");
        }
        broken |= !matches;
        // How large the file is after the transaction, in the last frame of each.
        ended = number(frame, 4) != 0;
        before = pair(frame, 16);
    }
    None
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn pair(bytes: &[u8], at: usize) -> Sums {
    [number(bytes, at), number(bytes, at + 4)]
}

/// SQLite's checksum of `bytes`, which continues that of the bytes before them.
fn checksum([mut first, mut second]: Sums, bytes: &[u8], big_endian: bool) -> Sums {
    let word =
        |bytes| if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    for pair in bytes.as_chunks::<4>().0.as_chunks::<2>().0 {
        first = first.wrapping_add(word(pair[0])).wrapping_add(second);
        second = second.wrapping_add(word(pair[1])).wrapping_add(first);
    }
    [first, second]
}
