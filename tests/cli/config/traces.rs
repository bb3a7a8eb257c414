//! Goal: an endpoint in the variables of OpenTelemetry turns traces on, and two others turn them
//! off.
//!
//! Method: `Config::load` on variables of the test's own.

use super::load;

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

#[test]
fn traces_are_off_unless_an_endpoint_is_set_and_nothing_turns_them_off() {
    let is_on = |variables: &[_]| load(None, variables).expect("valid").traces;
    assert!(is_on(&[ENDPOINT]));
    assert!(is_on(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector.example/traces")]));
    assert!(is_on(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]));
    assert!(!is_on(&[]));
    assert!(!is_on(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]));
    assert!(!is_on(&[("OTEL_TRACES_SAMPLER", "for another program")]));
    assert!(!is_on(&[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")]));
    assert!(!is_on(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]));
}
