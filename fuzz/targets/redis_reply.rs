//! What a Redis answers that is not the one we know: every reply is understood or refused.

#![no_main]

use keylatch_stores::read_redis_reply;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| read_redis_reply(bytes));
