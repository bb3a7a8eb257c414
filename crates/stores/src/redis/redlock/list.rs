use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::count::{Count, Look, no_quorum};
use super::nodes::{MAX_NODES, Nodes};
use super::step::Step;
use crate::redis::list::scan;
use keylatch_core::lock::{Holder, LockName};
use keylatch_core::store::{Cursor, ListLocks, Page, StoreError};

/// How many locks are looked at together, at most.
const BATCH: usize = 250;
/// How many steps of scans one page may cost; a page that finds little ends early.
const STEPS_A_PAGE: usize = 32;

/// A page of the locks that a quorum has.
///
/// The keys of one node after the other are scanned, of so many nodes that every quorum has one among
/// them. A lock is listed with the first that has it, so that it is there once; one that comes to a node
/// after that node's turn may be missed.
pub(super) async fn page(
    nodes: &Arc<Nodes>,
    query: &ListLocks,
) -> Result<Option<Page>, StoreError> {
    let Some(mut at) = Position::of(query.cursor.as_ref()) else { return Ok(None) };
    let mut locks: Vec<Holder> = Vec::new();
    for _ in 0..STEPS_A_PAGE {
        let (scanned, unscanned) =
            (at.scanned.count_ones() as usize, nodes.all.len().saturating_sub(at.node));
        if scanned > nodes.all.len() - nodes.quorum {
            return Ok(Some(Page { locks, next: None }));
        }
        if unscanned == 0 {
            return Err(no_quorum(scanned, nodes.all.len(), false, None));
        }
        let Some((following, names)) = step(nodes, query, &at).await else {
            at = at.next_node(false);
            continue;
        };
        let room = query.limit - locks.len();
        let (found, last) = listed(nodes, &names, at.scanned, room).await?;
        locks.extend(found);
        at = match last {
            Some(last) => Position { after: Some(last), ..at },
            None if following == 0 => at.next_node(true),
            None => Position { step: following, after: None, ..at },
        };
        if locks.len() == query.limit {
            break;
        }
    }
    Ok(Some(Page { locks, next: at.cursor() }))
}

/// Where a listing goes on.
#[derive(Default)]
struct Position {
    /// Which nodes were scanned to their end, a bit for each.
    scanned: u32,
    /// Which is scanned now.
    node: usize,
    /// A step of its scan, and the last name taken of that step.
    step: u64,
    after: Option<LockName>,
}

impl Position {
    fn of(cursor: Option<&Cursor>) -> Option<Self> {
        let Some(cursor) = cursor else { return Some(Self::default()) };
        let mut parts = cursor.as_str().splitn(4, '.');
        let scanned = parts.next()?.parse().ok()?;
        let node = parts.next()?.parse().ok().filter(|node| *node <= MAX_NODES)?;
        let step = parts.next()?.parse().ok()?;
        let after = match URL_SAFE_NO_PAD.decode(parts.next().unwrap_or_default()).ok()? {
            none if none.is_empty() => None,
            name => Some(LockName::parse(std::str::from_utf8(&name).ok()?).ok()?),
        };
        Some(Self { scanned, node, step, after })
    }

    fn next_node(self, was_scanned: bool) -> Self {
        let bit = u32::from(was_scanned) << self.node;
        Self { scanned: self.scanned | bit, node: self.node + 1, ..Self::default() }
    }

    fn cursor(&self) -> Option<Cursor> {
        let Self { scanned, node, step, after } = self;
        let after = after.as_ref().map_or("", LockName::as_str);
        let after = URL_SAFE_NO_PAD.encode(after);
        Cursor::parse(&format!("{scanned}.{node}.{step}.{after}")).ok()
    }
}

/// One step of a node's scan: the next one, and the names that are left of this one; `None` when the node
/// gives none.
async fn step(nodes: &Nodes, query: &ListLocks, at: &Position) -> Option<(u64, Vec<LockName>)> {
    let node = nodes.all.get(at.node)?;
    let scanning = async {
        let mut shared = node.pool.check_out().await?;
        scan(&mut shared, &nodes.keys, query, at.step).await
    };
    let found = timeout(nodes.longest_node_time(), scanning).await.ok()?;
    let (following, mut names) = found.ok()?;
    names.retain(|name| at.after.as_ref().is_none_or(|after| name > after));
    Some((following, names))
}

/// Those of the names that a quorum has, and none of the nodes before, at most `room`; and the last name
/// that was looked at, if that is not the last of all.
async fn listed(
    nodes: &Arc<Nodes>,
    names: &[LockName],
    before: u32,
    room: usize,
) -> Result<(Vec<Holder>, Option<LockName>), StoreError> {
    let (mut found, mut last, mut rest) = (Vec::new(), None, names);
    let mut size = room;
    while !rest.is_empty() {
        let (batch, following) = rest.split_at(size.clamp(1, BATCH).min(rest.len()));
        let looks = join_all(batch.iter().map(|name| look(nodes, name))).await;
        for (name, count) in batch.iter().zip(looks) {
            if found.len() == room {
                return Ok((found, last));
            }
            found.extend(holder(name, count, before)?);
            last = Some(name.clone());
        }
        // Of names that were listed before there may be many.
        (rest, size) = (following, size.saturating_mul(2));
        if found.len() == room && !rest.is_empty() {
            return Ok((found, last));
        }
    }
    Ok((found, None))
}

async fn look(nodes: &Arc<Nodes>, name: &LockName) -> Count {
    let mut round = nodes.ask_all(&Step::Get(name.clone()), nodes.longest_node_time());
    nodes.count(&mut round, |_| false).await
}

fn holder(name: &LockName, mut count: Count, before: u32) -> Result<Option<Holder>, StoreError> {
    match count.look() {
        Look::Held => {}
        Look::Nobody => return Ok(None),
        Look::Unclear => return Err(count.error(false)),
    }
    let token = count.held().first().map(|grant| grant.token.clone());
    let listed_before = count.votes.iter().any(|(node, vote)| {
        let same = vote.other().map(|grant| &grant.token) == token.as_ref();
        same && before & (1 << node) != 0
    });
    Ok(if listed_before { None } else { count.holder(name) })
}
