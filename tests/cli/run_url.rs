//! Goal: `keylatch run` reads the URL of the service from its documented sources, in their order.
//!
//! Method: hosts that do not exist, which the message of the process names.

use std::process::Command;

/// The host that `keylatch run` looked for the service at: none of these exists.
fn host_asked(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keylatch"));
    command.arg("run").args(arguments).args(["--wait", "0s", "a", "--", "true"]);
    command.env_remove("KEYLATCH_URL");
    let output = command.envs(variables.iter().copied()).output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(69), "{said}");
    let url = said.split_once("http://").expect("the URL of the service").1;
    url.split([':', ' ', '/']).next().expect("a host").to_owned()
}

#[test]
fn server_is_the_flag_then_the_variable() {
    let url = ("KEYLATCH_URL", "http://127.0.0.2:1");
    let flag = ["--server", "http://127.0.0.4:1"];
    assert_eq!(host_asked(&flag, &[url]), "127.0.0.4");
    assert_eq!(host_asked(&[], &[url]), "127.0.0.2");
}

#[test]
fn help_names_the_variable() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keylatch"));
    let help = command.args(["run", "--help"]).output().expect("it runs").stdout;
    let help = String::from_utf8(help).expect("text");
    assert!(help.contains("KEYLATCH_URL"), "{help}");
}

#[test]
fn service_ignores_the_variable() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keylatch"));
    // It reads its configuration, and finds that no service listens there.
    let command =
        command.args(["healthcheck", "--listen", "127.0.0.1:1"]).env("KEYLATCH_URL", "http://a");
    let said = String::from_utf8(command.output().expect("it runs").stderr).expect("text");
    assert!(said.contains("not healthy"), "{said}");
}
