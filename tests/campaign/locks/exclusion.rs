//! I1: when a holder could be certain, and what contradicts that.
//!
//! Holders of all modes are counted over the intervals of their certainty: at no instant are there
//! more than the smallest limit among them, and no two that exclude each other. What a single
//! answer shows of the holders is held to the same.

use std::collections::BTreeMap;

use super::history::{Ask, Event, Grant, GrantKey, History, Holder, Holding, LockAnswer, Micros};
use super::mode::{Mode, Share};
use super::verdict::{Invariant, Violation};

/// A time in which a holder could be certain to hold the lock with no more than may.
#[derive(Debug, Clone, Copy)]
struct Span {
    key: GrantKey,
    share: Share,
    sent: Micros,
    from: Micros,
    to: Micros,
}

/// Holders that were certain at once and may not be, answers that deny a holder that was certain,
/// and answers that show holders who may not be together.
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
        found.extend(crowds(spans).into_iter().map(|(one, others)| {
            let what = format!("{one:?} and {others:?} were certain at once");
            let sent = others.iter().map(|other| other.sent).fold(one.sent, Micros::min);
            violation(history, &Span { sent, ..one }, one.from, what)
        }));
        found.extend(denials(history, spans));
    }
    // One word for each grant is enough.
    found.sort_by(|one, other| one.about.cmp(&other.about));
    found.dedup_by(|one, other| one.about == other.about);
    found.extend(history.events.iter().filter_map(|event| shown_together(history, event)));
    found
}

/// Each holder that became certain while others were that may not hold the lock with it. Whenever
/// too many are certain, one of them became so last, and then it is one too many.
fn crowds(spans: &[Span]) -> Vec<(Span, Vec<Span>)> {
    let (mut found, mut certain) = (Vec::new(), Vec::<Span>::new());
    for one in spans {
        certain.retain(|other| one.from < other.to);
        let mut others: Vec<_> =
            certain.iter().filter(|other| other.key != one.key).copied().collect();
        others.sort_by_key(|other| other.key);
        others.dedup_by_key(|other| other.key);
        let most = others.iter().chain([one]).map(|span| span.share.mode.most()).min();
        let excludes =
            |other: &Span| other.key.token == one.key.token || other.share.excludes(&one.share);
        if Some(others.len() + 1) > most || others.iter().any(excludes) {
            found.push((*one, others));
        }
        certain.push(*one);
    }
    found
}

/// An answer that shows holders who may not hold the lock together.
fn shown_together(history: &History, event: &Event) -> Option<Violation> {
    let Holding { holders, count } = event.told.holding()?;
    let most = holders.iter().map(|holder| holder.share.mode.most()).min()?;
    let clash = |place: usize, one: &Holder| {
        let others = &holders[place + 1..];
        let is_with = |other: &Holder| {
            one.token == other.token
                || one.share.excludes(&other.share)
                || one.share.slot.is_some() && one.share.slot == other.share.slot
        };
        others.iter().any(is_with)
    };
    let clashes = holders.iter().enumerate().any(|(place, one)| clash(place, one));
    (clashes || *count > most).then(|| Violation {
        invariant: Invariant::Exclusive,
        about: vec![GrantKey {
            lock: event.lock,
            fencing_token: holders[0].share.fencing_token,
            token: holders[0].token,
        }],
        at: event.read,
        what: format!("{event:?} shows holders that may not be together"),
        by_forgetting: history.may_have_forgotten(event.sent, event.read),
        faults: history.faults_within(event.sent, event.read),
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
        LockAnswer::NotHeld => true,
        LockAnswer::Mismatch => is_own,
        // A token that holds the lock is granted nothing new.
        LockAnswer::Granted(_) => is_own && span.share.mode == Mode::Shared,
        LockAnswer::Held(holding) | LockAnswer::Shown(holding) => !may_have(holding, span),
        _ => false,
    }
}

/// Whether a certain holder may be among these.
fn may_have(holding: &Holding, span: &Span) -> bool {
    let is_it = |holder: &Holder| {
        // All readers of an era have one fencing token.
        let is_reader = span.share.mode == Mode::Shared;
        holder.share.fencing_token == span.key.fencing_token
            && (!is_reader || holder.token == span.key.token)
    };
    holding.holders.len() < holding.count || holding.holders.iter().any(is_it)
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
/// sends a release, where a renewal may have moved the end, or when a client breaks the lease at
/// once. Where one process judges all leases, what is renewed was held since it was granted.
fn spans(history: &History, grants: &BTreeMap<GrantKey, Grant>) -> Vec<Span> {
    let ends = Ends::of(history);
    let mut spans = Vec::new();
    for (&key, grant) in grants {
        for event in grant.told.iter().map(|&place| &history.events[place]) {
            let Some(lease) = event.told.lease() else { continue };
            let others = ends.of_grant(&key).filter(|end| end.number != event.number);
            let to = others.filter_map(|end| ended_by(event, end)).min().unwrap_or(Micros::MAX);
            let to = to.min(event.sent + lease.valid_for);
            if event.read < to {
                let (share, sent) = (grant.share, grant.sent);
                // A reader may have got the lock again in the same era.
                let is_held_since = history.has_one_judge && share.mode != Mode::Shared;
                let from = if is_held_since { grant.read } else { event.read };
                spans.push(Span { key, share, sent, from, to });
            }
        }
    }
    spans
}

/// The requests that may end a lease.
struct Ends<'a> {
    /// Releases and renewals, by lock and token.
    own: BTreeMap<(usize, u64), Vec<&'a Event>>,
    /// Breaks, by lock and fencing token.
    breaks: BTreeMap<(usize, u64), Vec<&'a Event>>,
}

impl<'a> Ends<'a> {
    fn of(history: &'a History) -> Self {
        let mut ends = Self { own: BTreeMap::new(), breaks: BTreeMap::new() };
        let done =
            |event: &&Event| !matches!(event.told, LockAnswer::NotExecuted | LockAnswer::Refused);
        for event in history.events.iter().filter(done) {
            let all = match event.ask {
                Ask::Release | Ask::Renew { .. } => ends.own.entry((event.lock, event.token)),
                Ask::Break { fencing_token, .. } => ends.breaks.entry((event.lock, fencing_token)),
                Ask::Acquire { .. } | Ask::Look | Ask::Recall => continue,
            };
            all.or_default().push(event);
        }
        ends
    }

    fn of_grant(&self, key: &GrantKey) -> impl Iterator<Item = &'a Event> {
        let own = self.own.get(&(key.lock, key.token));
        let breaks = self.breaks.get(&(key.lock, key.fencing_token));
        own.into_iter().chain(breaks).flatten().copied()
    }
}

/// When a release, a renewal or a break ends the lease of an answer, if the store may have run it
/// after that.
fn ended_by(event: &Event, end: &Event) -> Option<Micros> {
    let is_over = end.read < event.sent && !end.told.is_ambiguous();
    let latest = end.sent.max(event.sent);
    match end.ask {
        _ if is_over => None,
        Ask::Release | Ask::Break { at_once: true, .. } => Some(end.sent),
        // The margin that the service takes off as well.
        Ask::Renew { ttl } => Some(latest + (ttl - ttl / 100).saturating_sub(2000)),
        _ => None,
    }
}
