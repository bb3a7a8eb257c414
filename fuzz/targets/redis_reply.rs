//! What a Redis answers that is not the one we know: every reply is understood or refused.
//!
//! The bytes are those of a connection, read by the driver's own parser and then as rows and
//! reports of writes. None may end the process.

#![no_main]

use keylatch_stores::read_redis_reply;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| read_redis_reply(bytes));
