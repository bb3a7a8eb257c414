//! The mutants: for each, one edit of the sources that makes keylatch wrong in one place.
//!
//! Goal: each edit breaks one rule that the campaign claims to check, and the build can choose it.
//!
//! Method: an edit replaces a text that its file has exactly once. The text for a Rust file asks
//! `mutant!()`, so the build stays correct until the variable `MUTANT` names the mutant.
//! `every_mutant_edit_applies_to_the_sources` fails when a source no longer has the text.

use super::super::place::Store;
use super::{Edit, Mutant};

/// What lets the build choose.
pub(super) const SEAMS: [Edit; 2] = [
    Edit {
        file: "crates/core/src/lib.rs",
        find: "pub mod idempotency;",
        replace: "pub mod idempotency;\npub mod mutant;",
    },
    Edit {
        file: "crates/stores/src/redis/script.rs",
        find: r#"Script::new(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+))"#,
        replace: r#"Script::new(&keylatch_core::mutant::lua(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+)))"#,
    },
];

const fn edit(
    name: &'static str,
    store: Store,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
) -> Mutant {
    Mutant { name, store, edit: Edit { file, find, replace }, test: None }
}

/// One that the campaign does not see, or by chance alone: `test` fails on it, one of the stores or
/// of the rules.
const fn edit_for(
    test: &'static str,
    name: &'static str,
    store: Store,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
) -> Mutant {
    Mutant { name, store, edit: Edit { file, find, replace }, test: Some(test) }
}

/// One of the adapter over conditional writes, which all of its engines have: a test over the fake
/// engine fails on it.
const fn adapter(
    test: &'static str,
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
) -> Mutant {
    edit_for(test, name, Store::Postgres, file, find, replace)
}

const CALL: &str = "crates/stores/src/optimistic/call.rs";
const FLOOR: &str = "crates/stores/src/optimistic/floor.rs";
const LIST: &str = "crates/stores/src/optimistic/list.rs";
const NEWS: &str = "crates/stores/src/optimistic/news.rs";
const SETS: &str = "crates/stores/src/optimistic/sets.rs";
const SWEEP: &str = "crates/stores/src/optimistic/sweep.rs";
const VALUE: &str = "crates/stores/src/optimistic/value.rs";
const WORKER: &str = "crates/stores/src/optimistic/worker.rs";
const RULES: &str = "crates/core/src/lock/rules.rs";
const STEP: &str = "crates/core/src/lock/rules/step.rs";
const SETTLE: &str = "crates/stores/src/redis/lua/redlock_accept.lua";
const WRITE: &str = "crates/stores/src/redis/lua/row.lua";

pub(super) const MUTANTS: &[Mutant] = &[
    edit(
        "a held lock is granted (SET without NX)",
        Store::DurableRedis,
        WRITE,
        "  if (found and string.sub(found, 1, 16) or '') ~= was then",
        "  if was ~= '' and (found and string.sub(found, 1, 16) or '') ~= was then",
    ),
    edit(
        "a version is not compared",
        Store::DurableRedis,
        WRITE,
        "  if (found and string.sub(found, 1, 16) or '') ~= was then",
        "  if was == '' and found then",
    ),
    edit(
        "a repeat counts twice",
        Store::DurableRedis,
        RULES,
        "            is_in.then(|| holder.lease(now))",
        "            if mutant!() {\n                holder.fencing_token = holder.fencing_token.next(0);\n            }\n            is_in.then(|| holder.lease(now))",
    ),
    edit(
        "the fencing token is not raised",
        Store::DurableRedis,
        RULES,
        "        let next = || moment.last_fencing_token.next(moment.least_micros);",
        "        let next = || if mutant!() { FencingToken::new(1) } else { moment.last_fencing_token.next(moment.least_micros) };",
    ),
    edit(
        "the fencing token has no floor of time",
        Store::ForgetfulRedis,
        "crates/stores/src/optimistic/clock.rs",
        "            None => [now, least].map(micros),",
        "            None if mutant!() => [0; 2],\n            None => [now, least].map(micros),",
    ),
    edit(
        "a queue that never loses its dead",
        Store::DurableRedis,
        RULES,
        "        self.queue.settle(now);\n",
        "        if !mutant!() {\n            self.queue.settle(now);\n        }\n",
    ),
    edit(
        "released, and still there",
        Store::DurableRedis,
        WRITE,
        "    err = failure('DEL', row)\n",
        "    has_written = true\n",
    ),
    edit(
        "renewed without comparing",
        Store::DurableRedis,
        RULES,
        "        let renewed = self.holders.change(token, |holder| {",
        "        let token = self.holders().next().filter(|_| mutant!()).map_or(*token, |holder| holder.token);\n        let token = &token;\n        let renewed = self.holders.change(token, |holder| {",
    ),
    edit(
        "a renewal that prolongs nothing",
        Store::DurableRedis,
        RULES,
        "            (holder.since, holder.ttl) = (now, ttl.map_or(holder.ttl, Ttl::get));\n",
        "            if !mutant!() {\n                (holder.since, holder.ttl) = (now, ttl.map_or(holder.ttl, Ttl::get));\n            }\n",
    ),
    edit(
        "a renewal that changes the fencing token",
        Store::DurableRedis,
        RULES,
        "            // A client that renews has read the grant, so no attempt may withdraw it any more.\n",
        "            if mutant!() {\n                holder.fencing_token = holder.fencing_token.next(0);\n            }\n            // A client that renews has read the grant, so no attempt may withdraw it any more.\n",
    ),
    edit(
        "withdrawn from another attempt",
        Store::DurableRedis,
        RULES,
        "        self.leave(token, |entry| entry.sole_attempt == Some(attempt), moment);",
        "        self.leave(token, |entry| entry.sole_attempt == Some(attempt) || mutant!(), moment);",
    ),
    edit(
        "a lost answer is reported as not executed",
        Store::DurableRedis,
        "crates/core/src/store.rs",
        "            Self::Unreachable(_) | Self::Refused(_) | Self::Unsupported | Self::TooLarge { .. } => {",
        "            _ if mutant!() => Effect::NotExecuted,\n            Self::Unreachable(_) | Self::Refused(_) | Self::Unsupported | Self::TooLarge { .. } => {",
    ),
    edit(
        "a lost answer is reported as not held (404)",
        Store::DurableRedis,
        "crates/guard/src/problem.rs",
        "        let detail = match outcome {",
        "        if mutant!() && outcome == Effect::Unknown {\n            return Self::new(Code::LockNotHeld, \"The lock is not held.\");\n        }\n        let detail = match outcome {",
    ),
    edit(
        "validity without the time that has elapsed",
        Store::Embedded,
        "crates/core/src/lock/service.rs",
        "    let validity = Validity { arrived, until: sent + valid_for.min()? };",
        "    let sent = if mutant!() { Instant::now() } else { sent };\n    let validity = Validity { arrived, until: sent + valid_for.min()? };",
    ),
    edit(
        "the wait counts twice",
        Store::Embedded,
        "crates/core/src/lock/service.rs",
        "        (since(self.arrived, now), since(now, self.until))",
        "        let waited = if mutant!() { self.waited() } else { Duration::ZERO };\n        (since(self.arrived, now), since(now, self.until) + waited)",
    ),
    edit(
        "a client that leaves stays in the queue",
        Store::Memory,
        "crates/core/src/lock/waiting.rs",
        "        if let Some(attempt) = &self.last {",
        "        if let Some(attempt) = self.last.as_ref().filter(|_| !mutant!()) {",
    ),
    edit(
        "a lease that is reported longer than it is",
        Store::Embedded,
        "crates/core/src/lock/holders.rs",
        "        self.expires().saturating_sub(now).min(self.ttl)",
        "        self.expires().saturating_sub(now).min(self.ttl) * if mutant!() { 2 } else { 1 }",
    ),
    edit(
        "embedded: released without comparing",
        Store::Embedded,
        "crates/core/src/lock/rules.rs",
        "        let Some(holder) = self.holders.find(token) else {\n            let is_free",
        "        let other = self.holders().next().map(|holder| holder.token).filter(|_| mutant!());\n        let token = &other.unwrap_or(*token);\n        let Some(holder) = self.holders.find(token) else {\n            let is_free",
    ),
    edit(
        "embedded: answered and not written",
        Store::Embedded,
        "crates/stores/src/embedded/writer.rs",
        "        if durable {\n",
        "        if durable && !mutant!() {\n",
    ),
    edit(
        "embedded: a lease is over after a restart",
        Store::Embedded,
        "crates/stores/src/embedded/row.rs",
        "    Ok(E::decode(row)?.at_rest(now))",
        "    let now = if mutant!() { Duration::ZERO } else { now };\n    Ok(E::decode(row)?.at_rest(now))",
    ),
    edit(
        "memory: the fencing token has no floor of time",
        Store::Memory,
        "crates/core/src/lock/fencing_token.rs",
        "        Self((self.0 + 1).max(unix_micros))",
        "        Self((self.0 + 1).max(if mutant!() { 0 } else { unix_micros }))",
    ),
    edit(
        "Redlock: a majority of N/2",
        Store::Redlock,
        "crates/stores/src/redis/redlock/round.rs",
        "    let majority = nodes / 2 + 1;",
        "    let majority = nodes / 2 + usize::from(!mutant!());",
    ),
    edit(
        "Redlock: a node that came up lately votes",
        Store::ForgetfulRedlock,
        "crates/stores/src/redis/redlock/node.rs",
        "            _ if server.forgets_nothing() => Duration::ZERO,",
        "            _ if server.forgets_nothing() || mutant!() => Duration::ZERO,",
    ),
    edit(
        "Redlock: the accept is left out",
        Store::Redlock,
        SETTLE,
        "if fence > last_fence() then",
        "if false then",
    ),
    edit(
        "Redlock: a lower ballot is accepted",
        Store::Redlock,
        SETTLE,
        "if ballot >= (held[2] or '') and fence",
        "if fence",
    ),
    edit(
        "PostgreSQL: a version is not compared",
        Store::Postgres,
        "crates/stores/src/postgres/sql.rs",
        "        let write = write(&table, &channel);\n",
        "        let mut write = write(&table, &channel);\n        if mutant!() {\n            write = write.replace(\"k.version = excluded.was\", \"true\");\n        }\n",
    ),
    edit(
        "etcd: a version is not compared",
        Store::Etcd,
        "crates/stores/src/etcd/txn.rs",
        "            let mut conditions = vec![self.has(&change.key, change.was)];\n",
        "            let mut conditions = vec![self.has(&change.key, change.was)];\n            if mutant!() && change.was.is_some() {\n                conditions.clear();\n            }\n",
    ),
    edit(
        "ZooKeeper: a version is not compared",
        Store::Zookeeper,
        "crates/stores/src/zookeeper/write.rs",
        "            return Ok(version_in(&client.set_data(path, value, Some(was)).await?));",
        "            let was = (!mutant!()).then_some(was);\n            return Ok(version_in(&client.set_data(path, value, was).await?));",
    ),
    edit_for(
        "lost_answers::wait_whose_first_round_may_still_be_carried_out_ends_unknown_and_is_withdrawn",
        "a lost round is over after its TTL",
        Store::Zookeeper,
        "crates/core/src/lock/waiting.rs",
        "        Some(lost) if !lost.is_overtaken || lost",
        "        Some(lost) if !lost.is_overtaken && !mutant!() || lost",
    ),
    edit(
        "adapter: the estimate of the clock waits for the clock",
        Store::DurableRedis,
        "crates/stores/src/optimistic/clock.rs",
        "        if is_set || self.latest > most + LEAD_MAX {\n",
        "        if is_set || self.latest > most + LEAD_MAX && !mutant!() {\n",
    ),
    edit(
        "Redis: a row that is remembered and over counts as removed",
        Store::DurableRedis,
        WORKER,
        "            Some(row) => (row.version, row.value.clone()),\n",
        "            Some(row) => {\n                let ends = |end| end <= now && end + row.seen.elapsed() > now;\n                let is_over = row.value.state.kept_until().is_some_and(ends);\n                let is_gone = mutant!() && forgets && is_over;\n                (row.version.filter(|_| !is_gone), row.value.clone())\n            }\n",
    ),
    edit(
        "Redlock: it is not asked who else may hold",
        Store::Redlock,
        "crates/stores/src/redis/redlock/consensus.rs",
        "    if !may_be_own && votes.decision() == Decision::NotHeld {\n",
        "    if !may_be_own && (mutant!() || votes.decision() == Decision::NotHeld) {\n",
    ),
    edit(
        "embedded: what a lapse decides is answered from memory",
        Store::Embedded,
        "crates/stores/src/embedded/mod.rs",
        "            Some(Refusal { has_lapsed: true, .. }) => {\n",
        "            Some(Refusal { has_lapsed: true, .. }) if !mutant!() => {\n",
    ),
    edit(
        "modes: granted above a limit",
        Store::Embedded,
        "crates/core/src/lock/rules.rs",
        "        self.taken <= self.most\n",
        "        let more = usize::from(mutant!() && self.most > 1);\n        self.taken <= self.most.saturating_add(more)\n",
    ),
    edit(
        "modes: a repeat counts twice",
        Store::Embedded,
        "crates/core/src/lock/rules.rs",
        "        if let Some(holder) = self.holders.find(&command.token) {\n",
        "        let is_new = mutant!() && command.limit.is_shared();\n        if let Some(holder) = self.holders.find(&command.token).filter(|_| !is_new) {\n",
    ),
    edit(
        "modes: a broken holder renews",
        Store::Embedded,
        "crates/core/src/lock/rules.rs",
        "            if let Some(why) = &holder.broken {\n                return Err",
        "            if let Some(why) = holder.broken.as_ref().filter(|_| !mutant!()) {\n                return Err",
    ),
    edit(
        "modes: a set that keeps half",
        Store::Embedded,
        STEP,
        "    restore(found, before);\n    let waits",
        "    if !(mutant!() && command.queue.is_none()) {\n        restore(found, before);\n    }\n    let waits",
    ),
    edit_for(
        "modes::sets::fencing_tokens_of_one_step_rise_in_the_order_of_the_names",
        "modes: the locks of a set have one fencing token",
        Store::Embedded,
        STEP,
        "                given = given.max(lease.fencing_token);\n",
        "                given = if mutant!() { given } else { given.max(lease.fencing_token) };\n",
    ),
    edit_for(
        "modes::corners::counted_holders_have_the_lowest_free_slot_and_rising_fencing_tokens",
        "modes: two holders of one slot",
        Store::Embedded,
        "crates/core/src/lock/holders.rs",
        "        let (mut low, mut high) = (0, holders.len());\n",
        "        let (mut low, mut high) = (0, if mutant!() { 0 } else { holders.len() });\n",
    ),
    edit(
        "modes: an era has a fencing token for each reader",
        Store::Embedded,
        "crates/core/src/lock/rules.rs",
        "        let era = self.era().filter(|_| command.limit == Limit::Shared);\n",
        "        let era = self.era().filter(|_| command.limit == Limit::Shared && !mutant!());\n",
    ),
    edit_for(
        "modes::corners::reader_does_not_pass_a_writer_that_waits",
        "modes: a reader passes a writer",
        Store::Embedded,
        "crates/core/src/lock/rules.rs",
        "        let ahead = self.queue.ahead_of(&command.token);\n",
        "        let passes = mutant!() && command.limit == Limit::Shared;\n        let ahead = if passes { 0 } else { self.queue.ahead_of(&command.token) };\n",
    ),
    edit_for(
        "postgres::change_that_waited_for_another_row_is_judged_when_its_turn_comes",
        "PostgreSQL: the time of a decision is not compared",
        Store::Postgres,
        "crates/stores/src/postgres/sql.rs",
        "fn write(table: &str, channel: &str) -> String {\n",
        "fn write(table: &str, channel: &str) -> String {\n    let guard = \"clock_timestamp() >= since AND clock_timestamp() < until\";\n    let guarded = guarded_write(table, channel);\n    if mutant!() { guarded.replace(guard, \"true\") } else { guarded }\n}\n\nfn guarded_write(table: &str, channel: &str) -> String {\n",
    ),
    edit_for(
        "engine_clock::lease_that_begins_after_the_clock_was_set_back_ends_after_its_ttl",
        "PostgreSQL, Redis: a decision by the clock of before is carried out",
        Store::Postgres,
        "crates/stores/src/optimistic/clock.rs",
        "        let least = self.at_least().unwrap_or_default().saturating_sub(DRIFT);\n",
        "        let least = self.at_least().filter(|_| !mutant!()).unwrap_or_default().saturating_sub(DRIFT);\n",
    ),
    edit_for(
        "postgres_faults::killed_server_leaves_unknown_what_was_under_way_and_comes_back",
        "PostgreSQL: what was lost was not executed",
        Store::Postgres,
        "crates/stores/src/postgres/failure.rs",
        "    let Some(found) = error.as_db_error() else { return StoreError::Lost(error.into()) };\n",
        "    if mutant!() && error.as_db_error().is_none() {\n        return StoreError::Unreachable(error.into());\n    }\n    let Some(found) = error.as_db_error() else { return StoreError::Lost(error.into()) };\n",
    ),
    edit_for(
        "postgres::hints_work_again_after_the_listener_was_ended",
        "PostgreSQL: a new subscription says nothing of what was missed",
        Store::Postgres,
        "crates/stores/src/postgres/mod.rs",
        "        Some(parse_announcement(&subscription.next().await?))\n",
        "        loop {\n            match subscription.next().await {\n                None if mutant!() => {\n                    if let Ok(again) = self.subscribe().await {\n                        *subscription = again;\n                    }\n                }\n                payload => return Some(parse_announcement(&payload?)),\n            }\n        }\n",
    ),
    edit_for(
        "etcd::creation_is_above_a_floor_that_was_raised_since_it_was_read",
        "etcd: a floor is not compared",
        Store::Etcd,
        "crates/stores/src/etcd/txn.rs",
        "            if let Some((floor, version)) = &change.above {\n",
        "            if let Some((floor, version)) = change.above.as_ref().filter(|_| !mutant!()) {\n",
    ),
    edit_for(
        "etcd_faults::lost_answer_is_unknown",
        "etcd: what was lost was not executed",
        Store::Etcd,
        "crates/stores/src/etcd/failure.rs",
        "        _ => StoreError::Lost(status.into()),\n",
        "        _ if mutant!() => StoreError::Unreachable(status.into()),\n        _ => StoreError::Lost(status.into()),\n",
    ),
    edit_for(
        "etcd_faults::watch_that_is_cut_says_that_hints_were_missed",
        "etcd: a new watch says nothing of what was missed",
        Store::Etcd,
        "crates/stores/src/conn/subscription.rs",
        "                self.heard.push_back(Notice::Missed);\n",
        "                if !mutant!() {\n                    self.heard.push_back(Notice::Missed);\n                }\n",
    ),
    edit_for(
        "zookeeper_faults::member_that_is_behind_refuses_nothing",
        "ZooKeeper: a member is not asked to catch up before a read",
        Store::Zookeeper,
        "crates/stores/src/zookeeper/mod.rs",
        "            let synced = session.client.sync(&self.link.members.tree.root);\n",
        "            let synced = match mutant!() {\n                true => futures_util::future::Either::Left(std::future::ready(Ok(()))),\n                false => futures_util::future::Either::Right(session.client.sync(&self.link.members.tree.root)),\n            };\n",
    ),
    edit_for(
        "zookeeper::creation_is_above_a_floor_that_was_raised_since_it_was_read",
        "ZooKeeper: a floor is not compared",
        Store::Zookeeper,
        "crates/stores/src/zookeeper/write.rs",
        "        let Some((floor, version)) = &change.above else { return Ok(()) };\n",
        "        let above = change.above.as_ref().filter(|_| !mutant!());\n        let Some((floor, version)) = above else { return Ok(()) };\n",
    ),
    edit_for(
        "zookeeper_faults::stopped_server_leaves_unknown_what_was_sent",
        "ZooKeeper: what was lost was not executed",
        Store::Zookeeper,
        "crates/stores/src/zookeeper/mod.rs",
        "        let versions = self.link.answer(&session, writing).await?;\n",
        "        let written = self.link.answer(&session, writing).await;\n        let versions = written.map_err(|error| match mutant!() {\n            true => StoreError::Unreachable(error.into()),\n            false => error,\n        })?;\n",
    ),
    edit_for(
        "zookeeper_faults::watch_that_is_cut_says_that_hints_were_missed",
        "ZooKeeper: a new session says nothing of what was missed",
        Store::Zookeeper,
        "crates/stores/src/zookeeper/notices.rs",
        "            self.leave(&watch.session);\n            return None;\n",
        "            self.leave(&watch.session);\n            while mutant!() {\n                if let Ok(again) = self.subscribe().await {\n                    *watch = again;\n                    return Some(Vec::new());\n                }\n            }\n            return None;\n",
    ),
    edit_for(
        "zookeeper_faults::lease_gets_its_time_again_where_the_ensemble_may_have_been_restored",
        "ZooKeeper: every ensemble is the one of before",
        Store::Zookeeper,
        "crates/stores/src/zookeeper/session.rs",
        "        if !is_same || self.timeline",
        "        if mutant!() {\n        } else if !is_same || self.timeline",
    ),
    adapter(
        "conditional_steps::write_that_comes_after_the_end_of_a_lease_is_not_carried_out",
        "adapter: a decision has no guard",
        VALUE,
        "        self.state.ends().fold(none, |guard, end| {\n",
        "        if mutant!() {\n            return Guard { until: Duration::MAX, ..none };\n        }\n        self.state.ends().fold(none, |guard, end| {\n",
    ),
    adapter(
        "conditional_steps::refusal_is_from_a_row_that_was_read_after_the_command_came",
        "adapter: a refusal is answered from memory",
        WORKER,
        "        let (covered, read_at) = std::mem::take(&mut slot.covered);\n",
        "        let (covered, read_at) = std::mem::take(&mut slot.covered);\n        let covered = if mutant!() { slot.waiting.len() } else { covered };\n",
    ),
    adapter(
        "conditional_steps::lease_is_not_lost_before_its_ttl",
        "adapter: a refusal is judged by the estimate alone",
        WORKER,
        "        let covered = if judged_past > read_at { 0 } else { covered.min(replies.len()) };\n",
        "        let is_ahead = judged_past > read_at && !mutant!();\n        let covered = if is_ahead { 0 } else { covered.min(replies.len()) };\n",
    ),
    adapter(
        "conditional_steps::refusal_is_from_a_row_that_was_read_after_the_command_came",
        "adapter: a command is answered from a peek",
        WORKER,
        "        let is_peek = floors.is_empty() && keys.iter().all(|read| read.covered == 0);\n",
        "        let is_peek =\n            floors.is_empty() && keys.iter().all(|read| read.covered == 0 || mutant!());\n",
    ),
    adapter(
        "conditional_steps::refusal_is_not_from_a_row_that_was_read_before_the_command_came",
        "adapter: a command is answered from a row that was read before it",
        WORKER,
        "                    slot.covered = (covered, now);\n",
        "                    slot.covered = (if mutant!() { slot.waiting.len() } else { covered }, now);\n",
    ),
    adapter(
        "conditional::conditional_store_grants_to_one_client_under_all_faults",
        "adapter: a write that was refused counts as done",
        WORKER,
        "            let version = versions.next().flatten();\n",
        "            let version = versions.next().flatten().or(mutant!().then_some(Version(1)));\n",
    ),
    adapter(
        "conditional_steps::command_whose_answer_was_lost_is_unknown",
        "adapter: a write whose answer was lost is tried again",
        WORKER,
        "                    Err(error) => self.fail_writes(writes, &Arc::new(error)),\n",
        "                    Err(_) if mutant!() => {\n                        writes.into_iter().for_each(|write| self.meet_conflict(write));\n                    }\n                    Err(error) => self.fail_writes(writes, &Arc::new(error)),\n",
    ),
    adapter(
        "conditional_steps::command_whose_answer_was_lost_is_unknown",
        "adapter: what was lost was not executed",
        CALL,
        "        _ => StoreError::Lost(cause),\n",
        "        _ if mutant!() => StoreError::Unreachable(cause),\n        _ => StoreError::Lost(cause),\n",
    ),
    adapter(
        "conditional_steps::key_has_one_write_under_way",
        "adapter: two writes of a key are under way",
        WORKER,
        "                if slot.get_mut().wake() {\n",
        "                if slot.get_mut().wake() || mutant!() {\n",
    ),
    adapter(
        "conditional_steps::row_is_forgotten_before_a_sweep_removes_it",
        "adapter: a row is remembered for ever",
        WORKER,
        "        let row = self.remembered.get(key).filter(|row| row.seen.elapsed() < REMEMBERED_FOR);\n",
        "        let is_young = |row: &&LastRow<E>| row.seen.elapsed() < REMEMBERED_FOR || mutant!();\n        let row = self.remembered.get(key).filter(is_young);\n",
    ),
    adapter(
        "conditional_steps::withdrawn_command_is_not_carried_out_later",
        "adapter: a withdrawal that finds nothing leaves no trace",
        VALUE,
        "        self.seen.is_undo || self.seen.is_told || is_repeated\n",
        "        self.seen.is_undo && !mutant!() || self.seen.is_told || is_repeated\n",
    ),
    adapter(
        "conditional::clockless_store_keeps_the_fencing_token_of_a_grant_that_one_write_ends",
        "adapter: a grant that one write ends leaves no trace",
        VALUE,
        "        let is_changed = self.given().is_some() || self.state != self.live;\n",
        "        let is_changed = self.given().is_some() && !mutant!() || self.state != self.live;\n",
    ),
    adapter(
        "conditional_steps::clockless_lease_lasts_everywhere_as_long_as_its_holder_was_told",
        "adapter: a holder that was told of its lease is not written",
        VALUE,
        "        self.seen.is_told |= traits.is_told && !self.before.stamps.is_empty();\n",
        "        self.seen.is_told |= traits.is_told && !self.before.stamps.is_empty() && !mutant!();\n",
    ),
    adapter(
        "conditional_steps::row_is_not_removed_while_a_lease_in_it_lasts",
        "adapter: a row is removed while a lease in it lasts",
        VALUE,
        "        ends + idle <= now && self.live(now).is_empty()\n",
        "        let ends = if mutant!() { self.written } else { ends };\n        ends + idle <= now && (mutant!() || self.live(now).is_empty())\n",
    ),
    adapter(
        "conditional::conditional_store_raises_fencing_tokens_over_a_removed_row",
        "adapter: a row is removed and no floor is raised",
        SWEEP,
        "        let (raised, now) = raise(engine, &floors).await?;\n",
        "        let (raised, now) = match mutant!() {\n            true => (floors.into_keys().collect(), listing.now),\n            false => raise(engine, &floors).await?,\n        };\n",
    ),
    edit_for(
        "etcd::creation_is_above_a_floor_that_was_raised_since_it_was_read",
        "adapter: a floor that was refused is not read again",
        Store::Etcd,
        FLOOR,
        "        self.read.remove(&bucket);\n",
        "        if !mutant!() {\n            self.read.remove(&bucket);\n        }\n",
    ),
    edit_for(
        "etcd_faults::watch_that_is_cut_says_that_hints_were_missed",
        "adapter: it is ignored that notices were missed",
        Store::Etcd,
        NEWS,
        "            Notice::Missed => {\n",
        "            Notice::Missed if mutant!() => return,\n            Notice::Missed => {\n",
    ),
    adapter(
        "conditional_steps::grant_on_a_removed_row_is_above_the_floor_that_another_process_read",
        "adapter: a row is removed as soon as its floor is raised",
        SWEEP,
        "        let due = self.condemned.iter().filter(|(_, (since, _))| *since + REMOVAL_PAUSE <= now);\n",
        "        let pause = if mutant!() { Duration::ZERO } else { REMOVAL_PAUSE };\n        let due = self.condemned.iter().filter(|(_, (since, _))| *since + pause <= now);\n",
    ),
    adapter(
        "conditional::conditional_store_grants_to_one_client_under_all_faults",
        "adapter: a set is written without its last lock",
        SETS,
        "        let writing = within_limit(self.engine.write_all(&changes)).await?;\n",
        "        let mut changes = changes;\n        if mutant!() && changes.len() > 1 {\n            changes.pop();\n        }\n        let writing = within_limit(self.engine.write_all(&changes)).await?;\n",
    ),
    adapter(
        "conditional::conditional_store_grants_to_one_client_under_all_faults",
        "adapter: a set that was refused counts as done",
        SETS,
        "        let Some(versions) = versions.filter(|versions| versions.len() == changes.len()) else {\n",
        "        let versions = if mutant!() { versions.or(Some(vec![Version(1); changes.len()])) } else { versions };\n        let Some(versions) = versions.filter(|versions| versions.len() == changes.len()) else {\n",
    ),
    adapter(
        "conditional_steps::leases_of_a_set_are_not_lost_before_their_ttl",
        "adapter: a refusal of a set is judged by the estimate alone",
        SETS,
        "        let is_judged_ahead = |draft: &Draft<'_, LockState>| draft.guard().from > rows.read_at;\n",
        "        let is_judged_ahead =\n            |draft: &Draft<'_, LockState>| draft.guard().from > rows.read_at && !mutant!();\n",
    ),
    adapter(
        "conditional_steps::waiter_hears_that_a_set_of_its_process_was_released",
        "adapter: the task of the locks does not hear of a set",
        SETS,
        "        for (change, version) in changes.into_iter().zip(versions) {\n",
        "        let changes = if mutant!() { Vec::new() } else { changes };\n        for (change, version) in changes.into_iter().zip(versions) {\n",
    ),
    adapter(
        "record_index::conditional_list_has_a_record_that_comes_after_many_others",
        "adapter: a page that finds too little is the last",
        LIST,
        "            let is_over = last && entries.len() < query.limit;\n",
        "            let is_over = (last || mutant!()) && entries.len() < query.limit;\n",
    ),
];
