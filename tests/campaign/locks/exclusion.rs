//! I1: when a holder could be certain, and what contradicts that.

use std::collections::BTreeMap;

use super::history::{Ask, Event, Grant, GrantKey, History, Micros, Told};
use super::verdict::{Invariant, Violation};

/// A time in which a holder could be certain to be the only one.
#[derive(Debug, Clone, Copy)]
struct Span {
    key: GrantKey,
    sent: Micros,
    from: Micros,
    to: Micros,
}

/// Two holders that were certain at once, or an answer that denies a holder that was certain.
pub(super) fn contradictions(
    history: &History,
    grants: &BTreeMap<GrantKey, Grant>,
) -> Vec<Violation> {
    let mut by_lock = BTreeMap::<usize, Vec<Span>>::new();
    for span in spans(history, grants) {
        by_lock.entry(span.key.lock).or_default().push(span);
    }
    let mut found = Vec::new();
    for spans in by_lock.values_mut() {
        spans.sort_by_key(|span| span.from);
        found.extend(overlaps(spans).map(|(one, other)| {
            let what = format!("{one:?} and {other:?} were certain at once");
            violation(history, one, other.from, what)
        }));
        found.extend(denials(history, spans));
    }
    // One word for each two grants is enough.
    found.sort_by(|one, other| one.about.cmp(&other.about));
    found.dedup_by(|one, other| one.about == other.about);
    found
}

fn overlaps(spans: &[Span]) -> impl Iterator<Item = (&Span, &Span)> {
    spans.iter().enumerate().flat_map(|(place, one)| {
        let later = spans[place + 1..].iter().take_while(|other| other.from < one.to);
        later.filter(|other| other.key != one.key).map(move |other| (one, other))
    })
}

/// Answers, asked for and read within a span, that deny its holder.
fn denials(history: &History, spans: &[Span]) -> Vec<Violation> {
    let Some(lock) = spans.first().map(|span| span.key.lock) else { return Vec::new() };
    let longest = spans.iter().map(|span| span.to - span.from).max().unwrap_or(0);
    let within = |sent: Micros, read: Micros| {
        let first = spans.partition_point(|span| span.from + longest < sent);
        let last = spans.partition_point(|span| span.from <= sent);
        spans[first..last].iter().filter(move |span| read <= span.to)
    };
    let mut found = Vec::new();
    for event in history.events.iter().filter(|event| event.lock == lock) {
        for span in within(event.sent, event.read).filter(|span| denies(event, span)) {
            let what = format!("{span:?} was certain, and one read {event:?}");
            found.push(violation(history, span, event.read, what));
        }
    }
    for write in history.writes.iter().filter(|write| write.lock == lock && !write.taken) {
        let own = |span: &&Span| {
            (span.key.token, span.key.fencing_token) == (write.token, write.fencing_token)
        };
        for span in within(write.sent, write.read).filter(own) {
            let what = format!("{span:?} was certain, and its write was refused: {write:?}");
            found.push(violation(history, span, write.read, what));
        }
    }
    found
}

fn denies(event: &Event, span: &Span) -> bool {
    let is_own = event.token == span.key.token;
    match &event.told {
        Told::NotHeld => is_own || event.ask == Ask::Look,
        Told::Mismatch => is_own,
        Told::Held(None) => true,
        told => told.holder().is_some_and(|holder| holder.fencing_token != span.key.fencing_token),
    }
}

fn violation(history: &History, span: &Span, at: Micros, what: String) -> Violation {
    Violation {
        invariant: Invariant::Exclusive,
        about: vec![span.key],
        at,
        what,
        by_forgetting: history.may_have_forgotten(span.sent, at),
        faults: history.faults_within(span.sent, at),
    }
}

/// All the spans in which holders could be certain. A span begins when a holder reads an answer. It
/// ends when the validity in the answer does, counted from the sending, or earlier: when the holder
/// sends a release, or where a renewal may have moved the end.
fn spans(history: &History, grants: &BTreeMap<GrantKey, Grant>) -> Vec<Span> {
    let mut ends = BTreeMap::<(usize, u64), Vec<&Event>>::new();
    let own = history.events.iter().filter(|event| event.told != Told::NotExecuted);
    for event in own.filter(|event| matches!(event.ask, Ask::Release | Ask::Renew { .. })) {
        ends.entry((event.lock, event.token)).or_default().push(event);
    }
    let mut spans = Vec::new();
    for (&key, grant) in grants {
        let ends = ends.get(&(key.lock, key.token)).map_or(&[][..], Vec::as_slice);
        for event in grant.told.iter().map(|&place| &history.events[place]) {
            let Some(lease) = event.told.lease() else { continue };
            let others = ends.iter().filter(|end| end.number != event.number);
            let to = others.filter_map(|end| ended_by(event, end)).min().unwrap_or(Micros::MAX);
            let to = to.min(event.sent + lease.valid_for);
            if event.read < to {
                spans.push(Span { key, sent: grant.sent, from: event.read, to });
            }
        }
    }
    spans
}

/// When a release or renewal of the same token ends the lease of an answer, if the store may have
/// run it after that.
fn ended_by(event: &Event, end: &Event) -> Option<Micros> {
    let is_over = end.read < event.sent && !end.told.is_ambiguous();
    let latest = end.sent.max(event.sent);
    match end.ask {
        _ if is_over => None,
        Ask::Release => Some(end.sent),
        // The margin that the service takes off as well.
        Ask::Renew { ttl } => Some(latest + (ttl - ttl / 100).saturating_sub(2000)),
        Ask::Acquire { .. } | Ask::Look => None,
    }
}
