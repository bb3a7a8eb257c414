use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, TokenHash};

/// Who waits for a lock, in the order in which they came.
///
/// A place is kept by asking again and is lost when nobody does. A line is copied with the state of
/// its lock, so it is shared until it changes, and one without places takes no memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    places: Option<Arc<Vec<Place>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    token: TokenHash,
    /// The last attempt that asked for it: that one may leave it.
    attempt: Attempt,
    /// On the store's monotonic clock.
    expires: Duration,
}

impl Line {
    /// How many are before `token`: all, if it has no place.
    pub(super) fn ahead_of(&self, token: &TokenHash) -> u64 {
        self.place_of(token).unwrap_or(self.all().len()) as u64
    }

    /// Keeps a place until `expires`: the one that the token has, or one at the end.
    pub(super) fn join(&mut self, token: TokenHash, attempt: Attempt, expires: Duration) {
        let place = Place { token, attempt, expires };
        let at = self.place_of(&token);
        let places = Arc::make_mut(self.places.get_or_insert_default());
        match at {
            Some(at) => places[at] = place,
            None => places.push(place),
        }
    }

    /// Gives the place of `token` up, if `attempt` was the last to ask for it, or in any case.
    pub(super) fn leave(&mut self, token: &TokenHash, attempt: Option<Attempt>) {
        let Some(at) = self.place_of(token) else { return };
        if attempt.is_none_or(|attempt| attempt == self.all()[at].attempt) {
            let rest = self.all().iter().enumerate().filter(|(place, _)| *place != at);
            *self = rest.map(|(_, place)| place.clone()).collect();
        }
    }

    /// Who is first.
    pub(super) fn first(&self) -> Option<&TokenHash> {
        self.all().first().map(|place| &place.token)
    }

    pub(super) fn len(&self) -> u64 {
        self.all().len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// The line without the places that have expired at `now`.
    pub(super) fn live(&self, now: Duration) -> Self {
        if self.is_stale(now) {
            self.all().iter().filter(|place| place.expires > now).cloned().collect()
        } else {
            self.clone()
        }
    }

    /// Whether a place has expired at `now`.
    pub(super) fn is_stale(&self, now: Duration) -> bool {
        self.all().iter().any(|place| place.expires <= now)
    }

    fn all(&self) -> &[Place] {
        self.places.as_deref().map_or(&[], Vec::as_slice)
    }

    fn place_of(&self, token: &TokenHash) -> Option<usize> {
        self.all().iter().position(|place| place.token == *token)
    }
}

impl FromIterator<Place> for Line {
    fn from_iter<I: IntoIterator<Item = Place>>(places: I) -> Self {
        let places: Vec<_> = places.into_iter().collect();
        Self { places: (!places.is_empty()).then(|| Arc::new(places)) }
    }
}
