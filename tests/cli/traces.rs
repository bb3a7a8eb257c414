//! Goal: the command sends traces where its environment says, and the last of them before it ends.
//!
//! Method: the command as a process; a collector of the test's own that counts requests.

use keylatch_testkit::{Api, Upstream};

use crate::KEYLATCH;

#[tokio::test]
async fn process_sends_its_last_spans_before_it_ends() {
    let collector = Upstream::start().await;
    let url = collector.url();
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "1000000")];
    let process = KEYLATCH.serve(&[], &variables).await;
    assert_eq!(Api::at(process.address).get("/v1/locks").await.status, 200);
    assert_eq!(collector.runs(), 0);
    assert_eq!(process.ended_by("-TERM").await.code, Some(0));
    assert_eq!(collector.last().uri, "/v1/traces");
}

#[tokio::test]
async fn process_with_an_invalid_endpoint_does_not_start() {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")];
    let ended = KEYLATCH.run_with(&["serve", "--store", "memory:"], &variables).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("keylatch: OTEL_EXPORTER_OTLP_ENDPOINT: must be"), "{ended:?}");
    let authorities = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:4318"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file.pem"),
    ];
    let ended = KEYLATCH.run_with(&["config", "check"], &authorities).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("/no/such/file.pem"), "{ended:?}");
}
