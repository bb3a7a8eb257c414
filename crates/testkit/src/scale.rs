//! How much the tests do: the environment variables that a run may set.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `KEYLATCH_TEST_SCALE` | how many times as many rounds, cases, keys and seconds as by default, such as `0.1` or `75` | 1 |
//! | `KEYLATCH_TEST_SEED` | decides the faults and the clients of a campaign | 1 |
//! | `KEYLATCH_TEST_PROGRAM` | another build of keylatch, which a campaign runs in place of this one | – |
//! | `KEYLATCH_TEST_MUTANTS` | `all` or the name of a mutant to build and find | – |
//! | `CHROMIUM` | the browser | `chromium` |

use std::env;

/// So many times `KEYLATCH_TEST_SCALE`, and at least one.
pub fn scaled(default: u64) -> u64 {
    let scale = env::var("KEYLATCH_TEST_SCALE").ok().map(|scale| {
        let scale = scale.parse::<f64>();
        scale.expect("KEYLATCH_TEST_SCALE is a number")
    });
    let scaled = default as f64 * scale.unwrap_or(1.0);
    (scaled as u64).max(1)
}

/// What decides the faults and the clients of a campaign.
pub fn seed() -> u64 {
    env::var("KEYLATCH_TEST_SEED").map_or(1, |seed| {
        let seed = seed.parse();
        seed.expect("KEYLATCH_TEST_SEED is a number")
    })
}
