//! Goal: an identity may do what its permissions name, by prefix of the name, and nothing else;
//! what it may not is refused before the store is asked.
//!
//! Method: identities with narrow permissions, over HTTP. Each operation by itself is in the file
//! `access_matrix`.

use keylatch_testkit::{Answer, Keyring, Service};
use reqwest::Method;
use serde_json::{Value, json};

const ADMIN: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\", \"break\"] }]";
const TEAM: &str = "allow = [{ locks = \"team-a/\", may = [\"acquire\", \"read\"] }, \
                    { locks = \"team-b/public/\", may = [\"read\"] }]";

async fn send(
    service: &Service,
    key: &str,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Answer {
    let request = service.request(method, path).bearer_auth(key);
    let request = request.header("lock-token", "a-token-of-the-clients-own");
    Answer::of(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

async fn list(service: &Service, key: &str, query: &str) -> Answer {
    send(service, key, Method::GET, &format!("/v1/locks{query}"), None).await
}

fn names(page: &Answer) -> Vec<&str> {
    assert_eq!(page.status, 200, "{page:?}");
    let locks = page.json["locks"].as_array().unwrap().iter();
    let mut names: Vec<_> = locks.map(|lock| lock["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

/// A service with locks of two teams, an admin's key and a key of team a.
async fn service_of_two_teams() -> (Keyring, Service, String, String) {
    let mut keyring = Keyring::default();
    let (admin, team) = (keyring.add("admin", ADMIN), keyring.add("team-a", TEAM));
    let service = Service::start_with(keyring.config()).await;
    for name in ["team-a%2F1", "team-a%2F2", "team-ab", "team-b%2F1", "team-b%2Fpublic%2F1"] {
        let created =
            send(&service, &admin, Method::POST, &format!("/v1/locks/{name}"), Some(json!({})))
                .await;
        assert_eq!(created.status, 201, "{created:?}");
    }
    (keyring, service, admin, team)
}

#[tokio::test]
async fn list_shows_prefixes_that_may_be_read_and_no_others() {
    let (_keyring, service, admin, team) = service_of_two_teams().await;
    assert_eq!(names(&list(&service, &admin, "").await).len(), 5);
    assert_eq!(names(&list(&service, &team, "?prefix=team-a/").await), ["team-a/1", "team-a/2"]);
    assert_eq!(names(&list(&service, &team, "?prefix=team-a/2").await), ["team-a/2"]);
    assert_eq!(names(&list(&service, &team, "?prefix=team-b/public/").await), ["team-b/public/1"]);
    for query in
        ["", "?prefix=", "?prefix=team-a", "?prefix=team-b/", "?prefix=team-ab", "?prefix=Team-a/"]
    {
        let refused = list(&service, &team, query).await;
        refused.is_problem(403, "forbidden");
        assert_eq!(refused.json["field"], "prefix", "{query}: {refused:?}");
    }
}

/// A cursor is a position and no permission: of whatever listing it is, the prefix still holds.
#[tokio::test]
async fn cursor_of_another_prefix_shows_nothing_outside_the_own() {
    let (_keyring, service, admin, team) = service_of_two_teams().await;
    for of_admin in ["?limit=1", "?limit=2", "?prefix=team-b/&limit=1"] {
        let page = list(&service, &admin, of_admin).await;
        let cursor = page.json["next_cursor"].as_str().unwrap();
        for prefix in ["team-a/", "team-b/public/"] {
            let page = list(&service, &team, &format!("?prefix={prefix}&cursor={cursor}")).await;
            assert!(names(&page).iter().all(|name| name.starts_with(prefix)), "{page:?}");
        }
        let query = format!("?prefix=team-b/&cursor={cursor}");
        list(&service, &team, &query).await.is_problem(403, "forbidden");
    }
}

#[tokio::test]
async fn set_with_one_forbidden_name_is_refused_and_names_it() {
    let (_keyring, service, _, team) = service_of_two_teams().await;
    let mixed = json!({"names": ["team-a/7", "team-b/public/7"]});
    for (method, body) in
        [(Method::POST, Some(&mixed)), (Method::PUT, Some(&mixed)), (Method::DELETE, None)]
    {
        let query = if body.is_none() { "?name=team-a/7&name=team-b/public/7" } else { "" };
        let path = format!("/v1/locks{query}");
        let refused = send(&service, &team, method.clone(), &path, body.cloned()).await;
        refused.is_problem(403, "forbidden");
        assert_eq!(refused.json["name"], "team-b/public/7", "{method}: {refused:?}");
    }
    let own = json!({"names": ["team-a/7", "team-a/8"]});
    let granted = send(&service, &team, Method::POST, "/v1/locks", Some(own)).await;
    assert_eq!(granted.status, 201, "{granted:?}");
}

#[tokio::test]
async fn what_is_forbidden_asks_no_store() {
    let mut keyring = Keyring::default();
    let team = keyring.add("team-a", TEAM);
    let scraper = keyring.add("prometheus", "allow = [{ may = [\"metrics\"] }]");
    let service = Service::start_with(keyring.config()).await;
    for (method, path) in [
        (Method::POST, "/v1/locks/team-b%2F1"),
        (Method::PUT, "/v1/locks/team-b%2F1"),
        (Method::DELETE, "/v1/locks/team-b%2F1"),
        (Method::GET, "/v1/locks/team-b%2F1"),
        (Method::GET, "/v1/locks"),
        (Method::POST, "/v1/idempotency/team-a%2F1"),
    ] {
        let refused = send(&service, &team, method.clone(), path, None).await;
        refused.is_problem(403, "forbidden");
        assert_eq!(refused.json["retry"], Value::Null, "{refused:?}");
    }
    let metrics = send(&service, &scraper, Method::GET, "/metrics", None).await.text;
    // A scrape counts the unfinished records of both states itself.
    let steps = "keylatch_store_operation_duration_seconds_count";
    let steps: Vec<_> = metrics.lines().filter_map(|line| line.strip_prefix(steps)).collect();
    assert_eq!(steps, ["{operation=\"list\",outcome=\"done\"} 2"]);
}

/// The identity goes before the label, and no label of a client can pass for it.
#[tokio::test]
async fn owner_label_and_break_name_the_identity() {
    let mut keyring = Keyring::default();
    let [admin, ci] = ["admin", "ci"].map(|name| keyring.add(name, ADMIN));
    let service = Service::start_with(keyring.config()).await;
    let labels =
        [(None, "ci"), (Some("runner 7"), "ci: runner 7"), (Some("admin: x"), "ci: admin: x")];
    for (place, (label, owner)) in labels.into_iter().enumerate() {
        let path = format!("/v1/locks/{place}");
        let body = json!({"owner": label.unwrap_or_default()});
        let created = send(&service, &ci, Method::POST, &path, Some(body)).await;
        assert_eq!((created.status.as_u16(), &created.json["owner"]), (201, &owner.into()));
        let look = send(&service, &admin, Method::GET, &path, None).await;
        assert_eq!(look.json["owner"], owner, "{look:?}");
    }
    let set = json!({"names": ["a", "b"], "owner": "runner 7"});
    let created = send(&service, &ci, Method::POST, "/v1/locks", Some(set)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let look = send(&service, &admin, Method::GET, "/v1/locks/a", None).await;
    assert_eq!(look.json["owner"], "ci: runner 7", "{look:?}");
    let fencing_token = look.json["fencing_token"].as_u64().unwrap();
    let reason = json!({"fencing_token": fencing_token, "reason": "it hangs", "by": "ops"});
    let broken = send(&service, &admin, Method::POST, "/v1/locks/a/break", Some(reason)).await;
    assert_eq!(broken.status, 200, "{broken:?}");
    let look = send(&service, &admin, Method::GET, "/v1/locks/a", None).await;
    assert_eq!(look.json["broken"]["by"], "admin: ops", "{look:?}");
}

#[tokio::test]
async fn owner_label_that_leaves_no_room_for_the_identity_is_refused() {
    let (service, _keyring, ci) = Keyring::serve("ci", ADMIN).await;
    let body = |bytes| Some(json!({"owner": "x".repeat(bytes)}));
    let refused = send(&service, &ci, Method::POST, "/v1/locks/a", body(253)).await;
    refused.is_problem(400, "invalid-body");
    assert_eq!(refused.json["field"], "owner", "{refused:?}");
    assert_eq!(send(&service, &ci, Method::POST, "/v1/locks/a", body(252)).await.status, 201);
}
