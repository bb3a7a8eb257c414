//! Goal: listeners are read from the file, and whatever is wrong with one is named.
//!
//! Method: as in the file above.

use keylatch::config::{DEFAULTS, Flags};
use keylatch::http::{Part, ServedParts};

use super::{File, file_is_refused, load, load_with};

#[test]
fn listeners_in_the_comments_of_the_defaults_show_all_defaults() {
    assert!(load(None, &[]).unwrap().listener.is_empty());
    let shown = DEFAULTS.lines().skip_while(|line| *line != "# [[listener]]");
    let shown = shown.take_while(|line| !line.is_empty());
    let shown: Vec<_> = shown.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
    let [tcp, unix] = load(Some(&shown.join("\n")), &[]).unwrap().listener.try_into().unwrap();
    assert_eq!((tcp.place().as_str(), tcp.tls), ("127.0.0.1:7070", Some(false)));
    for part in [Part::Api, Part::Guards, Part::Docs, Part::Metrics] {
        assert!(tcp.serves.have(part), "{part:?}");
    }
    assert_eq!(unix.place(), "unix:/run/keylatch/keylatch.sock");
    assert_eq!((unix.mode.as_deref(), unix.serves), (Some("0600"), ServedParts::ALL));
}

#[test]
fn listen_is_the_one_listener_of_its_kind() {
    for (listen, is_unix) in [("127.0.0.1:1", false), ("unix:/run/a.sock", true)] {
        let [only] =
            load(None, &[("KEYLATCH_LISTEN", listen)]).unwrap().listeners().try_into().unwrap();
        assert_eq!((only.place().as_str(), only.is_unix()), (listen, is_unix));
    }
    for port in ["7071", ":7071"] {
        let [only] =
            load(None, &[("KEYLATCH_LISTEN", port)]).unwrap().listeners().try_into().unwrap();
        assert_eq!(only.place(), "127.0.0.1:7071");
    }
    let [default] = load(None, &[]).unwrap().listeners().try_into().unwrap();
    assert_eq!(default.place(), "127.0.0.1:7070");
}

#[test]
fn listen_beside_listeners_is_refused_wherever_it_is_set() {
    const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:1\"\n";
    let file = File::new(LISTENER);
    let flags = Flags { config: Some(file.path()), ..Flags::default() };
    assert_eq!(load_with(&flags, &[]).unwrap().listeners()[0].place(), "127.0.0.1:1");
    assert!(load_with(&flags, &[("KEYLATCH_LISTEN", "")]).is_ok(), "to unset that of an image");
    // Also where it is the default.
    let by_flag = Flags { listen: Some("127.0.0.1:7070".to_owned()), ..flags.clone() };
    for refused in [
        load_with(&by_flag, &[]),
        load_with(&flags, &[("KEYLATCH_LISTEN", "127.0.0.1:7070")]),
        load(Some(&format!("listen = \"127.0.0.1:7070\"\n{LISTENER}")), &[]),
    ] {
        let error = refused.expect_err("both are set");
        assert!(error.contains("`listen` must not be set beside `[[listener]]`"), "{error}");
    }
}

#[test]
fn invalid_listener_is_named() {
    for (settings, key) in [
        ("", "listener[0].address"),
        ("address = \"127.0.0.1:1\"\nunix = \"/a\"", "listener[0].address"),
        ("address = \"127.0.0.1:1\"\nmode = \"0600\"", "listener[0].mode"),
        ("unix = \"/a\"\nmode = \"rw\"", "listener[0].mode"),
        ("unix = \"/a\"\nmode = \"0999\"", "listener[0].mode"),
        ("unix = \"/a\"\nmode = \"1777\"", "listener[0].mode"),
        ("unix = \"/a\"\nmode = 384", "listener[0].mode"),
        ("address = \"127.0.0.1:1\"\nowner = \"web\"", "listener[0].owner"),
        ("unix = \"/a\"\nowner = \"\"", "listener[0].owner"),
        ("unix = \"/a\"\nowner = \":\"", "listener[0].owner"),
        ("unix = \"/a\"\ntls = true", "listener[0].tls"),
        ("unix = \"/a\"\nserves = [\"docs\"]", "listener[0].serves"),
        ("unix = \"/a\"\nserves = [\"console\"]", "listener[0].serves"),
        ("unix = \"/a\"\nserves = [\"all\"]", "listener[0].serves"),
        ("unix = \"/a\"\nport = 1", "listener[0].port"),
    ] {
        file_is_refused(&format!("[[listener]]\n{settings}"), key);
    }
}
