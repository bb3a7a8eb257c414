//! The ranges that a listing asks etcd for: each has about as many rows as a page, and not all that
//! follow.
//!
//! etcd looks at every row of a range, however few are asked for, because its response says how
//! many there are. A page of the rest of a million rows takes it a second, in which it serves
//! nothing else. So a range ends where the first bytes of a key change, and how many bytes that are
//! is learnt from what the responses count. Only the first page of many rows is asked for without
//! knowing.
//!
//! Invariant: the ranges of a page follow one another without a gap, so no width that was learnt
//! leaves a row out.

use crate::optimistic::conditional::end_of_prefix;

/// With more rows than this a range is too wide: etcd takes some milliseconds for them.
const MANY: usize = 2048;
/// With fewer than this, the next range is wider.
const FEW: usize = 256;

/// What was learnt of the keys of one kind.
#[derive(Debug, Clone, Default)]
pub(super) struct RangeWidth {
    /// How many bytes the keys of a range have in common.
    depth: usize,
    /// The first key of the kind, as it was when it was looked for.
    first: Vec<u8>,
}

/// A page that is being read.
#[derive(Debug)]
pub(super) struct PageRanges {
    /// How many bytes all keys have in common.
    root: usize,
    start: Vec<u8>,
    end: Vec<u8>,
    width: RangeWidth,
}

/// A range of keys that is to be read: its first one, and the first after it.
pub(super) type Range = (Vec<u8>, Vec<u8>);

impl PageRanges {
    /// The keys after `after`, or all that begin with `prefix`.
    pub(super) fn new(prefix: Vec<u8>, after: Option<Vec<u8>>, width: RangeWidth) -> Self {
        let (root, end) = (prefix.len(), end_of_prefix(&prefix));
        let next = after.map(|key| key_after(&key));
        Self { root, start: next.unwrap_or_default().max(prefix), end, width }
    }

    /// The next range; `None` where no keys are left.
    pub(super) fn next(&self) -> Option<Range> {
        if self.start >= self.end {
            return None;
        }
        let RangeWidth { depth, first } = &self.width;
        if *depth <= self.root {
            return Some((self.start.clone(), self.end.clone()));
        }
        let is_begin = self.start.len() < *depth && first.starts_with(&self.start);
        let like = if is_begin { first } else { &self.start };
        let end = end_of_prefix(like.get(..*depth).unwrap_or(like));
        Some((self.start.clone(), end))
    }

    /// Notes what the response to a range has: the first of its keys, and how many there are in
    /// all.
    pub(super) fn note(&mut self, range: Range, keys: &[&[u8]], count: usize) {
        let (start, end) = range;
        if let (Some(first), true) = (keys.first(), start.len() == self.root) {
            self.width.first = first.to_vec();
        }
        self.start = match keys.last() {
            Some(last) if count > keys.len() => key_after(last),
            _ => end,
        };
        if count > MANY {
            self.width.depth = self.deeper(keys);
        } else if count < FEW && self.width.depth > self.root {
            self.width.depth -= 1;
        }
    }

    pub(super) fn into_width(self) -> RangeWidth {
        self.width
    }

    /// A depth at which a range has about as many rows as these, of too many. What is too deep is
    /// soon less again.
    fn deeper(&self, keys: &[&[u8]]) -> usize {
        let next = self.width.depth.max(self.root) + 1;
        match keys {
            [first, .., last] => {
                let common = first.iter().zip(*last).take_while(|(one, other)| one == other);
                next.max(common.count() + 1)
            }
            _ => next,
        }
    }
}

/// The next key after one is that key and a zero byte.
fn key_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// How the name of what is not keylatch's below the prefix ends.
    const FOREIGN: &[u8] = b" of another";

    /// Reads pages as etcd answers them; gives the keys, how many etcd looked at for all pages, and
    /// the requests.
    fn read_all(keys: &BTreeSet<Vec<u8>>, limit: usize) -> (Vec<Vec<u8>>, usize, usize) {
        let (mut read, mut looks, mut requests) = (Vec::new(), 0, 0);
        let mut width = RangeWidth::default();
        loop {
            let before = read.len();
            let mut ranges = PageRanges::new(b"k/l".to_vec(), read.last().cloned(), width);
            while let Some((start, end)) = ranges.next() {
                let all: Vec<_> = keys.range(start.clone()..end.clone()).collect();
                let some: Vec<_> =
                    all.iter().take(before + limit - read.len()).map(|key| &***key).collect();
                (requests, looks) = (requests + 1, looks + all.len());
                let own = some.iter().filter(|key| !key.ends_with(FOREIGN));
                read.extend(own.map(|key| key.to_vec()));
                ranges.note((start, end), &some, all.len());
                if read.len() == before + limit {
                    break;
                }
            }
            width = ranges.into_width();
            if read.len() < before + limit {
                return (read, looks, requests);
            }
        }
    }

    #[test]
    fn pages_of_many_rows_look_at_each_a_few_times() {
        let named = |name: fn(u32) -> String| -> BTreeSet<_> {
            (0..50_000).map(|number| format!("k/l{}", name(number)).into_bytes()).collect()
        };
        let keys = [
            named(|number| format!("tenant-7/order-{number:08}")),
            named(|number| format!("{:08x}", number.wrapping_mul(2_654_435_761))),
            named(|number| match number % 100 {
                0 => format!("{number}"),
                _ => format!("z/{}", u64::from(number) * 7_919),
            }),
        ];
        for keys in keys {
            for limit in [64, 1024] {
                let (read, looks, requests) = read_all(&keys, limit);
                assert!(read.iter().eq(&keys), "{} of {} rows", read.len(), keys.len());
                let pages = keys.len() / limit + 1;
                let each = looks / keys.len();
                assert!(each <= 40, "each row was looked at {each} times in {pages} pages");
                assert!(requests <= 4 * pages + 300, "{requests} requests for {pages} pages");
            }
        }
    }

    #[test]
    fn few_rows_are_one_range() {
        let keys = (0..200).map(|number| format!("k/l{number}").into_bytes()).collect();
        let (read, _, requests) = read_all(&keys, 1024);
        assert_eq!((read.len(), requests), (200, 1));
    }

    /// A page then has fewer rows than it asked for, and more follow.
    #[test]
    fn rows_behind_those_of_other_programs_are_read() {
        let name = |number: u32| match number % 50 {
            0 => format!("k/l{number:05} of another").into_bytes(),
            _ => format!("k/l{number:05}").into_bytes(),
        };
        let keys: BTreeSet<_> = (0..5000).map(name).collect();
        let (read, ..) = read_all(&keys, 100);
        assert!(read.iter().eq(keys.iter().filter(|key| !key.ends_with(FOREIGN))));
    }

    #[test]
    fn keys_of_the_highest_bytes_are_read() {
        let keys = (0..=u16::MAX).map(|number| [&b"k/l"[..], &number.to_be_bytes()].concat());
        let keys: BTreeSet<_> = keys.collect();
        let (read, ..) = read_all(&keys, 1000);
        assert!(read.iter().eq(&keys));
    }
}
