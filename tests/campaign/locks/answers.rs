//! What an answer of keylatch means to a client of the lock campaign.
//!
//! Goal: the history has what was read of each lock, and nothing that was guessed.
//!
//! Method: a pure function of the request and the answer. An answer that the API does not have,
//! such as a lease in another mode than was asked for or a grant of half a set, becomes
//! `LockAnswer::Odd`, which the checker reports under I7: `guilt.rs` has that case.

use std::time::Duration;

use keylatch_testkit::Answer;
use serde_json::Value;

use super::client::{Request, lock_name};
use super::clock::micros;
use super::history::{Ask, Holder, Holding, Lease, LockAnswer};
use super::mode::{Mode, Share};

/// What an answer says of one of the locks that were asked for.
pub(super) fn told(request: &Request, lock: usize, answer: &Answer) -> LockAnswer {
    let is_set = request.locks.len() > 1;
    let understood = failure(answer).or_else(|| match is_set {
        true => told_of_set(request, lock, answer),
        false => told_of_one(request, answer),
    });
    understood.unwrap_or_else(|| LockAnswer::Odd(format!("{} {}", answer.status, answer.text)))
}

/// What an answer says that is no answer to the question.
fn failure(answer: &Answer) -> Option<LockAnswer> {
    let json = &answer.json;
    match (answer.status.as_u16(), json["code"].as_str()) {
        (503, Some("overloaded")) => Some(LockAnswer::NotExecuted),
        (503, Some("timeout")) => Some(LockAnswer::Unknown),
        (503 | 429, _) => match json["outcome"].as_str() {
            Some("not-executed") => Some(LockAnswer::NotExecuted),
            Some("unknown") => Some(LockAnswer::Unknown),
            _ => None,
        },
        _ => None,
    }
}

fn told_of_one(request: &Request, answer: &Answer) -> Option<LockAnswer> {
    let json = &answer.json;
    let lease = || lease(request.mode, json, json);
    match (request.ask, answer.status.as_u16(), json["code"].as_str()) {
        (Ask::Acquire { .. }, 201, _) => lease().map(LockAnswer::Granted),
        (Ask::Acquire { .. }, 200, _) => lease().map(LockAnswer::Again),
        (Ask::Acquire { .. }, 409, Some("lock-held")) => refused(json).map(LockAnswer::Held),
        (Ask::Renew { .. }, 200, _) => lease().map(LockAnswer::Renewed),
        (Ask::Release, 204, _) => Some(LockAnswer::Released),
        (Ask::Look, 200, _) => shown(json).map(LockAnswer::Shown),
        (Ask::Recall, 200, _) => expired(json).map(LockAnswer::Expired),
        (Ask::Break { .. }, 200, _) => {
            let ends_in = micros(Duration::from_millis(json["ends_in_ms"].as_u64()?));
            Some(LockAnswer::Broke { ends_in })
        }
        (Ask::Break { .. }, 412, Some("fence-mismatch")) => Some(LockAnswer::Mismatch),
        (Ask::Acquire { .. }, ..) => None,
        (_, 404, Some(code @ "lock-not-held")) => loss(code),
        (Ask::Renew { .. }, 409, Some(code @ "lock-broken")) => loss(code),
        (Ask::Renew { .. } | Ask::Release, 412, Some(code @ "token-mismatch")) => loss(code),
        _ => None,
    }
}

fn told_of_set(request: &Request, lock: usize, answer: &Answer) -> Option<LockAnswer> {
    let json = &answer.json;
    let name = lock_name(lock as u64);
    match (request.ask, answer.status.as_u16()) {
        (Ask::Acquire { .. }, 201) if !request.is_repeat => {
            lease_of_set(request, &name, json).map(LockAnswer::Granted)
        }
        (Ask::Acquire { .. }, 201) => {
            lease_of_set(request, &name, json).map(LockAnswer::GrantedOrAgain)
        }
        (Ask::Acquire { .. }, 200) => lease_of_set(request, &name, json).map(LockAnswer::Again),
        (Ask::Acquire { .. }, 409) if json["code"] == "lock-held" => match json["name"].as_str()? {
            held if held == name => refused(json).map(LockAnswer::Held),
            _ => Some(LockAnswer::Refused),
        },
        (Ask::Renew { .. }, 200) => lease_of_set(request, &name, json).map(LockAnswer::Renewed),
        (Ask::Release, 204) => Some(LockAnswer::Released),
        (Ask::Renew { .. } | Ask::Release, 404 | 409 | 412) => {
            let lost = json["locks"].as_array().filter(|lost| !lost.is_empty())?;
            match lost.iter().find(|one| one["name"] == *name) {
                Some(one) => loss(one["code"].as_str()?),
                None if request.ask == Ask::Release => Some(LockAnswer::Released),
                None => Some(LockAnswer::Refused),
            }
        }
        _ => None,
    }
}

/// How the client lost the lock.
fn loss(code: &str) -> Option<LockAnswer> {
    match code {
        "lock-not-held" => Some(LockAnswer::NotHeld),
        "token-mismatch" => Some(LockAnswer::Mismatch),
        "lock-broken" => Some(LockAnswer::Broken),
        _ => None,
    }
}

/// The lease of one lock of a set, all of which have to be there, in the order of the request.
fn lease_of_set(request: &Request, name: &str, json: &Value) -> Option<Lease> {
    let leased = json["locks"].as_array()?;
    let asked = request.locks.iter().map(|lock| Value::from(lock_name(*lock as u64)));
    if !leased.iter().map(|one| &one["name"]).eq(asked.collect::<Vec<_>>().iter()) {
        return None;
    }
    let one = leased.iter().find(|one| one["name"] == *name)?;
    lease_with(request.mode, json, one)
}

fn lease(mode: Mode, json: &Value, one: &Value) -> Option<Lease> {
    mode.is_in(json).then(|| lease_with(mode, json, one))?
}

fn lease_with(mode: Mode, json: &Value, one: &Value) -> Option<Lease> {
    let valid_for = json["waited_ms"].as_u64()? + json["valid_for_ms"].as_u64()?;
    let (valid_for, slot) = (micros(Duration::from_millis(valid_for)), one["slot"].as_u64());
    let fencing_token = one["fencing_token"].as_u64()?;
    mode.has(slot).then_some(Lease { fencing_token, valid_for, slot })
}

/// Who holds the lock that a client was refused.
fn refused(json: &Value) -> Option<Holding> {
    match &json["holder"] {
        Value::Object(_) => alone(&json["holder"]),
        _ if json["holders"].is_array() => together(json),
        _ => Some(Holding::default()),
    }
}

/// Who holds the lock at which a client looked.
fn shown(json: &Value) -> Option<Holding> {
    if json["holders"].is_array() { together(json) } else { alone(json) }
}

/// The grants in a history that ended by themselves.
fn expired(json: &Value) -> Option<Vec<Holder>> {
    json["ends"].as_array()?.iter().filter(|end| end["how"] == "expired").map(holder).collect()
}

fn alone(json: &Value) -> Option<Holding> {
    Some(Holding { holders: vec![holder(json)?], count: 1 })
}

fn together(json: &Value) -> Option<Holding> {
    let holders = json["holders"].as_array()?.iter().map(holder).collect::<Option<Vec<_>>>()?;
    Some(Holding { holders, count: usize::try_from(json["holding"].as_u64()?).ok()? })
}

/// Its owner has what its client asked for.
fn holder(json: &Value) -> Option<Holder> {
    let (fencing_token, slot) = (json["fencing_token"].as_u64()?, json["slot"].as_u64());
    let mut owner = json["owner"].as_str()?.split(' ');
    let (number, token) = (owner.next()?.parse().ok()?, owner.next()?.parse().ok()?);
    let mode = owner.next()?.parse().ok()?;
    Some(Holder { share: Share { fencing_token, mode, slot }, number, token })
}
