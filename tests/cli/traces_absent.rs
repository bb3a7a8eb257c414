//! Goal: a build without traces says so where its environment asks for them, and serves all the
//! same.
//!
//! Method: the command as a process.

use keylatch_testkit::Api;

use crate::KEYLATCH;

#[tokio::test]
async fn build_without_traces_names_the_command_that_has_them() {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")];
    let process = KEYLATCH.serve(&[], &variables).await;
    process.logs("cargo build --release --features full", 1).await;
    assert_eq!(Api::at(process.address).get("/v1/locks").await.status, 200);
}
