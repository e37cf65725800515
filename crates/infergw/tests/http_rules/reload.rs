//! Backends that come and go while the gateway runs: by the configuration, by discovery, by the operator's hand.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use infergw::Running;
use infergw::config::load::load;
use infergw::config::{DnsName, PolicyName};
use infergw::reload::{Outcome, Source, Trigger};

use crate::support::client::{Answer, Client, ask, get};
use crate::support::upstream::{good, good_events};
use crate::support::{Script, Upstream, chat, gateway, gateway_with_admin, metric, stream, until};

/// A folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reload-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn entry(name: &str, upstream: &Upstream, rest: &str) -> String {
    format!("[[backends]]\nname = \"{name}\"\nurl = \"http://{}\"\nmodels = [\"m\"]\n{rest}\n", upstream.address)
}

/// A gateway of this file, which it does not watch, with an admin listener.
async fn of_file(file: &Path, text: &str) -> (Running, SocketAddr) {
    std::fs::write(file, text).unwrap();
    let config = load(Some(file)).unwrap();
    let taken = config.clone();
    let (running, admin) = gateway_with_admin(&[], move |target| {
        let server = target.server.clone();
        *target = taken;
        target.server.admin = server.admin;
    })
    .await;
    let path = file.to_owned();
    running.gateway().reload.from(Source::new(path.clone(), move || load(Some(&path))), config).await;
    (running, admin)
}

async fn reload(running: &Running) -> Outcome {
    running.gateway().reload.now(Trigger::Signal).await.unwrap()
}

async fn send(admin: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut client = Client::connect(admin).await;
    let length = body.len();
    client
        .send(format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{body}"))
        .await;
    client.answer().await
}

/// Names and states of all backends.
async fn states(admin: SocketAddr) -> Vec<(String, String)> {
    let listed = get(admin, "/admin/backends").await.json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    listed["backends"].as_array().unwrap().iter().map(|b| (text(&b["name"]), text(&b["state"]))).collect()
}

async fn names(admin: SocketAddr) -> Vec<String> {
    states(admin).await.into_iter().map(|(name, _)| name).collect()
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_says_where_and_what() {
    let a = Upstream::always(good(&["one"])).await;
    let file = folder("bad").join("infergw.toml");
    let (running, admin) = of_file(&file, &entry("a", &a, "")).await;
    for (text, expected) in [
        ("[[backends]]\nurll = \"http://h\"\n".to_owned(), "infergw.toml:2: unknown key 'urll'; did you mean 'url'?"),
        (entry("a", &a, "") + &entry("a", &a, ""), "backends 1 and 2 are both named 'a'"),
        ("[[backends]]\nurl = \"tcp://h\"\n".to_owned(), "write http://host:port"),
        (String::new(), "it names no backend at all"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let Outcome::Rejected { error } = reload(&running).await else { panic!("{text} was taken") };
        assert!(error.contains(expected), "{error}");
        let seen = get(admin, "/admin/reload").await.json();
        assert_eq!((&seen["last"]["outcome"], &seen["last"]["error"]), (&"rejected".into(), &error.into()));
        assert_eq!(names(admin).await, ["a"]);
        assert_eq!(ask(running.address(), "", &stream("x")).await.status, 200);
    }
    assert_eq!(metric(admin, "infergw_config_reloads_total", &["outcome=\"rejected\""]).await, 4.0);
    let refused = send(admin, "POST", "/admin/reload", "", "").await;
    assert_eq!((refused.status, &refused.error()["code"]), (409, &"config_rejected".into()));
}

#[tokio::test]
async fn a_reload_under_load_fails_no_request() {
    let upstreams = [
        Upstream::always(good(&["one"])).await,
        Upstream::always(good(&["one"])).await,
        Upstream::always(good(&["one"])).await,
    ];
    let file = folder("load").join("infergw.toml");
    let text = |of: &[usize]| -> String {
        of.iter().map(|&at| entry(&format!("u{at}"), &upstreams[at], &format!("weight = {}", at + of.len()))).collect()
    };
    let (running, admin) = of_file(&file, &text(&[0, 1])).await;
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (stop, asked, address) = (Arc::clone(&stop), Arc::clone(&asked), running.address());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let number = asked.fetch_add(1, Ordering::SeqCst);
                    let answer = ask(address, "", &stream(&format!("{client} {number}"))).await;
                    assert_eq!((answer.status, answer.text()), (200, good_events(&["one"])));
                }
            })
        })
        .collect();
    for round in 0..30 {
        let sets: [&[usize]; 4] = [&[1, 2], &[2], &[0, 2], &[0]];
        std::fs::write(&file, text(sets[round % 4])).unwrap();
        assert_eq!(reload(&running).await.as_str(), "applied");
        let before = asked.load(Ordering::SeqCst);
        until("requests between two reloads", async || (asked.load(Ordering::SeqCst) > before + 8).then_some(())).await;
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(metric(admin, "infergw_config_reloads_total", &["outcome=\"applied\""]).await, 30.0);
    assert!(upstreams.iter().all(|upstream| upstream.questions() > 0));
}

#[tokio::test]
async fn a_removed_backend_drains_and_an_added_one_serves() {
    let a = Upstream::always(Script::new().stream().say("one").wait_for(1).say("two").finish().done()).await;
    let b = Upstream::always(good(&["b"])).await;
    let file = folder("drain").join("infergw.toml");
    let (running, admin) = of_file(&file, &entry("a", &a, "")).await;
    let mut held = Client::connect(running.address()).await;
    held.post(crate::support::client::CHAT, "", &stream("held")).await;
    held.read_until("one").await;

    std::fs::write(&file, entry("b", &b, "")).unwrap();
    let Outcome::Applied { backends, .. } = reload(&running).await else { panic!("not applied") };
    assert_eq!((backends.added, backends.removed), (vec!["b".to_owned()], vec!["a".to_owned()]));
    let seen = states(admin).await;
    assert!(seen.contains(&("a".into(), "leaving".into())) && seen.len() == 2, "{seen:?}");
    for number in 0..10 {
        let answer = ask(running.address(), "", &stream(&number.to_string())).await;
        assert_eq!((answer.status, answer.text()), (200, good_events(&["b"])));
    }
    assert_eq!(a.questions(), 1, "it gets no new request");
    a.go_on();
    assert_eq!(held.answer().await.text(), good_events(&["one", "two"]));
    until("a has left", async || (names(admin).await == ["b"]).then_some(())).await;
    let series = async || get(admin, "/metrics").await.text().contains("backend=\"a\"");
    until("M3: its series are gone", async || (!series().await).then_some(())).await;
}

#[tokio::test]
async fn what_has_not_changed_keeps_its_connections_and_its_breaker() {
    let a = Upstream::always(good(&["one"])).await;
    let sick = Upstream::always(Script::new().json("500 Internal Server Error", "{}")).await;
    let b = Upstream::always(good(&["one"])).await;
    let file = folder("keep").join("infergw.toml");
    let tail = "[breaker]\npause = \"1h\"\nlongest = \"1h\"\n";
    let both = entry("a", &a, "") + &entry("sick", &sick, "");
    let (running, admin) = of_file(&file, &(both.clone() + tail)).await;
    let open = async || {
        ask(running.address(), "", &stream("x")).await;
        (metric(admin, "infergw_backend_breaker", &["backend=\"sick\""]).await == 2.0).then_some(())
    };
    until("the breaker is open", open).await;
    let (failed, connections) = (sick.questions(), a.connections());
    let changed = entry("a", &a, "weight = 3.0") + &entry("sick", &sick, "") + &entry("b", &b, "");
    std::fs::write(&file, changed + tail).unwrap();
    let Outcome::Applied { backends, .. } = reload(&running).await else { panic!("not applied") };
    assert_eq!((backends.added, backends.changed), (vec!["b".to_owned()], vec!["a".to_owned()]));
    assert_eq!(metric(admin, "infergw_backend_breaker", &["backend=\"sick\""]).await, 2.0);
    for number in 0..20 {
        assert_eq!(ask(running.address(), "", &stream(&number.to_string())).await.status, 200);
    }
    assert_eq!((sick.questions(), a.connections()), (failed, connections));
    let seen = get(admin, "/admin/backends/a").await.json();
    assert_eq!((&seen["weight"], &seen["breaker"]), (&3.0.into(), &"closed".into()));
}

#[tokio::test]
async fn aliases_fallbacks_and_policies_change_and_what_needs_a_restart_is_named() {
    let a = Upstream::always(good(&["one"])).await;
    let file = folder("models").join("infergw.toml");
    let (running, _) = of_file(&file, &entry("a", &a, "")).await;
    let ask_alias = async || ask(running.address(), "", "{\"model\":\"gpt-4\",\"stream\":true}").await;
    assert_eq!(ask_alias().await.status, 404);
    let more = "[[models]]\nname = \"m\"\naliases = [\"gpt-4\"]\npolicy = \"hash\"\n[timeouts]\nidle = \"7s\"\n";
    std::fs::write(&file, entry("a", &a, "") + more).unwrap();
    let Outcome::Applied { needs_restart, .. } = reload(&running).await else { panic!("not applied") };
    assert_eq!(needs_restart, ["timeouts.idle"]);
    let answer = ask_alias().await;
    assert_eq!((answer.status, answer.header("x-infergw-reason")), (200, Some("hash_none")));
    assert_eq!(reload(&running).await, Outcome::Unchanged { needs_restart });
}

#[tokio::test]
async fn operators_add_drain_and_delete() {
    let a = Upstream::always(good(&["a"])).await;
    let b = Upstream::always(good(&["b"])).await;
    let (running, admin) = gateway_with_admin(&[&a], |config| config.routing.policy = PolicyName::RoundRobin).await;
    let entry = format!("{{\"name\":\"b\",\"url\":\"http://{}\",\"models\":[\"m\"],\"key\":\"sk-1\"}}", b.address);
    let added = send(admin, "POST", "/admin/backends", "", &entry).await;
    assert_eq!((added.status, &added.json()["origin"]), (201, &"admin".into()));
    assert!(!added.text().contains("sk-1"), "X5");
    let text = async |number: usize| ask(running.address(), "", &stream(&number.to_string())).await.text();
    until("b serves", async || (text(b.questions()).await == good_events(&["b"])).then_some(())).await;

    let drained = send(admin, "POST", "/admin/backends/http-1/drain", "", "").await;
    assert_eq!((drained.status, &drained.json()["state"]), (200, &"draining".into()));
    let before = a.questions();
    for number in 100..110 {
        assert_eq!(text(number).await, good_events(&["b"]));
    }
    assert_eq!(a.questions(), before);
    assert_eq!(send(admin, "DELETE", "/admin/backends/b", "", "").await.status, 202);
    // Its only backend is drained, which is not the same as having none.
    let nobody = ask(running.address(), "", &stream("x")).await;
    assert_eq!((nobody.status, nobody.error()["code"].as_str()), (503, Some("no_backend")));
    assert!(get(running.address(), "/readyz").await.text().contains("http-1 is being drained"));
    assert_eq!(send(admin, "POST", "/admin/backends/http-1/undrain", "", "").await.status, 200);
    assert_eq!(text(200).await, good_events(&["a"]));
    assert_eq!(send(admin, "POST", "/admin/backends", "", &entry).await.status, 201, "added again");
    assert_eq!(names(admin).await, ["http-1", "b"]);
}

#[tokio::test]
async fn what_operators_do_wrong_is_told_by_type() {
    let a = Upstream::always(good(&["a"])).await;
    let (_running, admin) = gateway_with_admin(&[&a], |_| {}).await;
    let page = "origin: http://evil\r\n";
    for (method, path, headers, body, status, code) in [
        ("POST", "/admin/backends", "", "{\"url\":\"http://h\",\"model\":[]}", 400, None),
        ("POST", "/admin/backends", "", "{\"url\":\"https://h\"}", 400, None),
        ("POST", "/admin/backends", "", "{\"url\":\"http://h\",\"weight\":0}", 400, None),
        ("POST", "/admin/backends", "", "{\"url\":\"http://h\",\"name\":\"a b\"}", 400, None),
        ("POST", "/admin/backends", "", "{\"url\":\"http://h\",\"name\":\"http-1\"}", 409, Some("backend_exists")),
        ("POST", "/admin/backends", page, "{\"url\":\"http://h\"}", 403, Some("cross_origin")),
        ("DELETE", "/admin/backends/b", "", "", 404, Some("backend_not_found")),
        ("GET", "/admin/backends/b", "", "", 404, Some("backend_not_found")),
        ("POST", "/admin/backends/b/drain", "", "", 404, Some("backend_not_found")),
        ("POST", "/admin/backends/http-1/stop", "", "", 404, Some("unknown_url")),
        ("DELETE", "/admin/backends", "", "", 405, Some("method_not_allowed")),
        ("GET", "/admin/backends/http-1/drain", "", "", 405, Some("method_not_allowed")),
        ("GET", "/admin/backendsx", "", "", 404, Some("unknown_url")),
        ("POST", "/admin/reload", "", "", 409, Some("no_config_source")),
    ] {
        let answer = send(admin, method, path, headers, body).await;
        assert_eq!((answer.status, answer.error()["code"].as_str()), (status, code), "{method} {path} {body}");
    }
    let answer = send(admin, "POST", "/admin/backends", "", "{\"url\":\"http://h\",\n\"model\":[]}").await;
    assert!(answer.text().contains("line 2): unknown key 'model'; did you mean 'models'?"), "{}", answer.text());
    assert_eq!(names(admin).await, ["http-1"]);
}

#[tokio::test]
async fn a_discovery_file_is_followed_and_a_bad_one_changes_nothing() {
    let a = Upstream::always(good(&["a"])).await;
    let b = Upstream::always(good(&["b"])).await;
    let file = folder("discovery").join("backends.json");
    let listed = |upstream: &Upstream| format!("[{{\"url\":\"http://{}\",\"models\":[\"m\"]}}]", upstream.address);
    std::fs::write(&file, listed(&a)).unwrap();
    let (running, admin) = gateway_with_admin(&[], |config| config.discovery.file = Some(file.clone())).await;
    let gives = async |word: &str| {
        (ask(running.address(), "", &stream(word)).await.text() == good_events(&[word])).then_some(())
    };
    until("a serves", async || gives("a").await).await;
    assert_eq!(names(admin).await, ["file-1"]);
    // As editors and Kubernetes do it: another file under the same name.
    let beside = file.with_extension("new");
    std::fs::write(&beside, "[{\"urls\": 1}]").unwrap();
    std::fs::rename(&beside, &file).unwrap();
    let rejected = async || metric(admin, "infergw_discovery_updates_total", &["outcome=\"rejected\""]).await;
    until("the bad file was seen", async || (rejected().await == 1.0).then_some(())).await;
    gives("a").await.expect("nothing has changed");
    std::fs::write(&beside, listed(&b)).unwrap();
    std::fs::rename(&beside, &file).unwrap();
    until("b serves", async || gives("b").await).await;
}

#[tokio::test]
async fn the_addresses_of_a_dns_name_are_backends() {
    let a = Upstream::always(good(&["a"])).await;
    let dns = DnsName {
        host: "localhost".into(),
        port: a.address.port(),
        name: "pod".into(),
        models: vec!["m".into()],
        weight: None,
        key: None,
    };
    let (running, admin) = gateway_with_admin(&[], |config| {
        config.discovery.dns = vec![dns];
        config.discovery.interval = std::time::Duration::from_millis(100);
    })
    .await;
    until("the name is resolved", async || (names(admin).await == ["pod-1"]).then_some(())).await;
    assert_eq!(ask(running.address(), "", &stream("x")).await.header("x-infergw-backend"), Some("pod-1"));
    // What was deleted by hand does not come back with the next look-up.
    assert_eq!(send(admin, "DELETE", "/admin/backends/pod-1", "", "").await.status, 202);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(names(admin).await.is_empty());
    assert_eq!(ask(running.address(), "", &chat("x")).await.status, 404);
}

#[tokio::test]
async fn the_file_is_watched() {
    let a = Upstream::always(good(&["a"])).await;
    let b = Upstream::always(good(&["b"])).await;
    let folder = folder("watched");
    let file = folder.join("infergw.toml");
    // As Kubernetes mounts a ConfigMap: a link through a link, and only the inner one changes.
    let version = |number: usize, of: &Upstream| {
        let name = format!("version-{number}");
        std::fs::create_dir_all(folder.join(&name)).unwrap();
        std::fs::write(folder.join(&name).join("infergw.toml"), entry(&format!("b{number}"), of, "")).unwrap();
        let _ = std::fs::remove_file(folder.join("data-new"));
        std::os::unix::fs::symlink(&name, folder.join("data-new")).unwrap();
        std::fs::rename(folder.join("data-new"), folder.join("data")).unwrap();
    };
    let _ = std::fs::remove_file(&file);
    std::os::unix::fs::symlink("data/infergw.toml", &file).unwrap();
    version(1, &a);
    let config = load(Some(&file)).unwrap();
    let mut running = gateway(&[], |target| target.backends.clone_from(&config.backends)).await;
    let path = file.clone();
    running.reload_from(Source::new(file.clone(), move || load(Some(&path))), config).await;
    assert_eq!(ask(running.address(), "", &stream("x")).await.text(), good_events(&["a"]));
    version(2, &b);
    let text = async || ask(running.address(), "", &stream("x")).await.text();
    until("b serves", async || (text().await == good_events(&["b"])).then_some(())).await;
    // And as editors do it: in place of the link there is a file.
    std::fs::write(folder.join("beside"), entry("a", &a, "")).unwrap();
    std::fs::rename(folder.join("beside"), &file).unwrap();
    until("a serves again", async || (text().await == good_events(&["a"])).then_some(())).await;
}

#[tokio::test]
async fn a_backend_without_a_name_is_known_by_its_address() {
    let a = Upstream::always(good(&["a"])).await;
    let b = Upstream::always(good(&["b"])).await;
    let file = folder("unnamed").join("infergw.toml");
    let unnamed =
        |upstream: &Upstream| format!("[[backends]]\nurl = \"http://{}\"\nmodels = [\"m\"]\n", upstream.address);
    let (running, admin) = of_file(&file, &(unnamed(&a) + &unnamed(&b))).await;
    assert_eq!(names(admin).await, ["http-1", "http-2"]);
    std::fs::write(&file, unnamed(&b)).unwrap();
    let Outcome::Applied { backends, .. } = reload(&running).await else { panic!("not applied") };
    assert_eq!((backends.removed.len(), backends.replaced.len(), backends.added.len()), (1, 0, 0));
    assert_eq!(names(admin).await, ["http-2"]);
    assert_eq!(ask(running.address(), "", &stream("x")).await.text(), good_events(&["b"]));
}

#[tokio::test]
async fn keys_change_and_are_not_lost_by_accident() {
    let a = Upstream::always(good(&["a"])).await;
    let file = folder("keys").join("infergw.toml");
    let keys = |keys: &[&str]| -> String {
        keys.iter().map(|key| format!("[[keys]]\nkey = \"{key}\"\ntenant = \"t\"\n")).collect()
    };
    let (running, admin) = of_file(&file, &(entry("a", &a, "") + &keys(&["one"]))).await;
    let status = async |key: &str| {
        ask(running.address(), &format!("authorization: Bearer {key}\r\n"), &stream(key)).await.status
    };
    assert_eq!((status("one").await, status("two").await), (200, 401));
    std::fs::write(&file, entry("a", &a, "") + &keys(&["two"])).unwrap();
    assert_eq!(reload(&running).await.as_str(), "applied");
    assert_eq!((status("one").await, status("two").await), (401, 200));
    assert!(a.asked().iter().all(|asked| asked.header("authorization").is_none()), "X2");
    std::fs::write(&file, entry("a", &a, "")).unwrap();
    let Outcome::Rejected { error } = reload(&running).await else { panic!("it was taken") };
    assert!(error.contains("everybody would be let in"), "{error}");
    assert_eq!((status("one").await, status("two").await), (401, 200));
    assert!(!get(admin, "/admin/reload").await.text().contains("two"), "X5");
}

#[tokio::test]
async fn limits_change_while_requests_wait() {
    let a = Upstream::always(Script::new().stream().say("one").hold()).await;
    let file = folder("limits").join("infergw.toml");
    let limit = |number: usize| format!("[admission]\nconcurrency = {number}\n");
    let (running, admin) = of_file(&file, &(entry("a", &a, "") + &limit(1))).await;
    let mut clients = Vec::new();
    for number in 0..3 {
        let mut client = Client::connect(running.address()).await;
        client.post(crate::support::client::CHAT, "", &stream(&number.to_string())).await;
        clients.push(client);
    }
    let of = async |name: &str| metric(admin, name, &[]).await;
    until("two wait", async || (of("infergw_admission_queued").await == 2.0).then_some(())).await;
    std::fs::write(&file, entry("a", &a, "") + &limit(2)).unwrap();
    assert_eq!(reload(&running).await.as_str(), "applied");
    until("one waits", async || (of("infergw_admission_queued").await == 1.0).then_some(())).await;
    until("two run", async || (a.questions() == 2).then_some(())).await;
    std::fs::write(&file, entry("a", &a, "")).unwrap();
    assert_eq!(reload(&running).await.as_str(), "applied");
    until("all run", async || (a.questions() == 3).then_some(())).await;
    drop(clients);
    until("none runs", async || (of("infergw_admission_running").await == 0.0).then_some(())).await;
}
