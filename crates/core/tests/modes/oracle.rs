//! A model of locks of every kind: it says of a command whether it is granted, and who holds the
//! lock after it.
//!
//! It has a list of members and one pass over it, with no slots, no snapshot and no shortcut, so
//! that it is short enough to be checked by eye. `properties.rs` and `sets.rs` compare the rules
//! with it.

use std::collections::BTreeSet;

/// How many may hold the lock together with one.
pub(crate) type Most = usize;

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) token: u8,
    pub(crate) most: Most,
    /// When it asked; of a waiter, when it asked first.
    pub(crate) joined: u64,
    pub(crate) end: u64,
    pub(crate) names: BTreeSet<u8>,
    pub(crate) broken: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) holders: Vec<Member>,
    pub(crate) line: Vec<Member>,
}

impl Oracle {
    pub(crate) fn expire(&mut self, now: u64) {
        self.holders.retain(|holder| holder.end > now);
        self.line.retain(|waiter| waiter.end > now);
    }

    /// Whether all of them may hold the lock together.
    fn fit(group: &[Most]) -> bool {
        group.iter().all(|most| group.len() <= *most)
    }

    /// Grants, repeats or refuses; a refusal keeps a place until `waits_until`, a new one behind at
    /// most `max_ahead` others.
    pub(crate) fn acquire(
        &mut self,
        wanted: Member,
        max_ahead: Option<usize>,
        waits_until: Option<u64>,
    ) -> &'static str {
        let name = wanted.names.first().copied().unwrap_or_default();
        let alone = self.holders.len() == 1;
        if let Some(holder) = self.holders.iter_mut().find(|it| it.token == wanted.token) {
            self.line.retain(|it| it.token != wanted.token);
            if wanted.most != holder.most {
                let narrower = wanted.most < holder.most;
                if holder.broken || narrower && !(alone && self.line.is_empty()) {
                    return "not alone";
                }
                holder.most = wanted.most;
                if narrower {
                    holder.end = wanted.end;
                    holder.names.insert(name);
                    return "granted";
                }
            }
            holder.names.insert(name);
            return "repeated";
        }
        let place = self.line.iter().position(|it| it.token == wanted.token);
        if !self.would_fit(&wanted, place) {
            if place.is_none() && max_ahead.is_some_and(|most| self.line.len() > most) {
                return "crowded";
            }
            if let Some(end) = waits_until {
                let waiter = Member { end, ..wanted };
                match place {
                    Some(place) => {
                        self.line[place] = Member { joined: self.line[place].joined, ..waiter };
                    }
                    None => self.line.push(waiter),
                }
            }
            return "busy";
        }
        self.line.retain(|it| it.token != wanted.token);
        self.holders.push(wanted);
        "granted"
    }

    /// Whether all holders fit together with those before this place in the line, and with who is
    /// to have it.
    fn would_fit(&self, wanted: &Member, place: Option<usize>) -> bool {
        let before = self.line.iter().take(place.unwrap_or(self.line.len()));
        let group: Vec<Most> =
            self.holders.iter().chain(before).map(|it| it.most).chain([wanted.most]).collect();
        (self.holders.len() + 1..=group.len()).all(|len| Self::fit(&group[..len]))
    }

    /// Leaves one entry, or all.
    pub(crate) fn release(&mut self, token: u8, name: Option<u8>) -> &'static str {
        let Some(place) = self.holders.iter().position(|it| it.token == token) else {
            return if self.holders.is_empty() { "not held" } else { "mismatch" };
        };
        let names = &mut self.holders[place].names;
        names.retain(|it| name.is_some_and(|name| name != *it));
        if names.is_empty() {
            self.holders.remove(place);
            return "released";
        }
        "entered"
    }
}
