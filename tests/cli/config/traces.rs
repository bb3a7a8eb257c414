//! Goal: the error at start names a variable of OpenTelemetry that is not understood, and no other is looked at
//! without an endpoint.
//!
//! Method: `Config::load` on variables of the test's own.

use super::load;

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

#[test]
fn invalid_variable_of_traces_is_named_without_its_value() {
    for (variable, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "secret:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://secret:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://secret:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://secret:65536"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://secret@host"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/secret/v1/traces"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=secret%0A"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0"),
        ("OTEL_RESOURCE_ATTRIBUTES", "secret"),
        ("OTEL_TRACES_SAMPLER", "parentbased_secret"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
    ] {
        let error = load(None, &[(variable, value), ENDPOINT]).expect_err(variable);
        assert!(error.starts_with(&format!("{variable}: must be ")), "{value}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let ratio =
        [ENDPOINT, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
    let error = load(None, &ratio).expect_err("a ratio");
    assert!(error.starts_with("OTEL_TRACES_SAMPLER_ARG: must be "), "{error}");
}

#[test]
fn traces_are_off_unless_an_endpoint_is_set_and_nothing_turns_them_off() {
    let is_on = |variables: &[_]| load(None, variables).expect("valid").traces.is_some();
    assert!(is_on(&[ENDPOINT]));
    assert!(is_on(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector.example/traces")]));
    assert!(is_on(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]));
    assert!(!is_on(&[]));
    assert!(!is_on(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]));
    assert!(!is_on(&[("OTEL_TRACES_SAMPLER", "for another program")]));
    assert!(!is_on(&[("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")]));
    assert!(!is_on(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]));
}
