//! Models with more names than one, and models that stand in for others.

use infergw::config::{Model, PolicyName};

use crate::support::client::{ask, get};
use crate::support::upstream::{good, good_events};
use crate::support::{Script, Upstream, gateway, stream};

fn model(name: &str, aliases: &[&str], fallbacks: &[&str]) -> Model {
    Model {
        name: name.into(),
        aliases: aliases.iter().map(ToString::to_string).collect(),
        fallbacks: fallbacks.iter().map(ToString::to_string).collect(),
        ..Model::default()
    }
}

#[tokio::test]
async fn a2_an_alias_changes_the_models_name_in_the_body_and_nothing_else() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |config| config.models = vec![model("m", &["gpt-4"], &[])]).await;
    let body =
        |name: &str| format!("{{\"seed\":1.50e0, \"model\" :\"{name}\" ,\"stream\":true,\"odd\":{{\"model\":\"x\"}}}}");
    assert_eq!(ask(gateway.address(), "", &body("gpt-4")).await.status, 200);
    assert_eq!(upstream.asked()[0].body, body("m").into_bytes());
    assert_eq!(ask(gateway.address(), "", &body("gpt-5")).await.status, 404);
    let listed = get(gateway.address(), "/v1/models").await.json();
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["gpt-4", "m"]);
}

#[tokio::test]
async fn answers_say_which_backend_made_them_and_why() {
    let broken = Upstream::always(Script::new().json("500 Internal Server Error", "{}")).await;
    let well = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&broken, &well], |config| {
        config.backends[1].name = Some("b".into());
        config.routing.policy = PolicyName::RoundRobin;
    })
    .await;
    let mut reasons = Vec::new();
    for number in 0..2 {
        let answer = ask(gateway.address(), "", &stream(&number.to_string())).await;
        assert_eq!(answer.header("x-infergw-backend"), Some("b"));
        assert_eq!(answer.header("x-infergw-model-fallback"), None);
        reasons.push(answer.header("x-infergw-reason").unwrap().to_owned());
    }
    reasons.sort();
    assert_eq!(reasons, ["retry, round_robin", "round_robin"]);
    drop(well);
    let failed = ask(gateway.address(), "", "{\"model\":\"m\",\"x\":1}").await;
    assert!(failed.status >= 500 && failed.header("x-infergw-reason").unwrap().contains("round_robin"), "{failed:?}");
}

#[tokio::test]
async fn a_model_has_its_own_policy() {
    let upstreams = [Upstream::always(good(&["one"])).await, Upstream::always(good(&["one"])).await];
    let gateway = gateway(&[&upstreams[0], &upstreams[1]], |config| {
        for backend in &mut config.backends {
            backend.models.push("n".into());
        }
        config.routing.policy = PolicyName::RoundRobin;
        config.models = vec![Model { policy: Some(PolicyName::Hash), ..model("n", &["alias"], &[]) }];
    })
    .await;
    let asked = || [upstreams[0].questions(), upstreams[1].questions()];
    for number in 0..6 {
        ask(gateway.address(), "", &stream(&number.to_string())).await;
    }
    assert_eq!(asked(), [3, 3]);
    for number in 0..6 {
        let body = format!("{{\"model\":\"alias\",\"stream\":true,\"n\":1,\"x\":{number}}}");
        let answer = ask(gateway.address(), "x-session-id: s\r\n", &body).await;
        assert_eq!(answer.header("x-infergw-reason"), Some("hash"));
    }
    assert!([[9, 3], [3, 9]].contains(&asked()), "{:?}", asked());
}

#[tokio::test]
async fn r4_a_fallback_answers_where_the_model_fails_before_anything_went_out() {
    let broken = Upstream::always(Script::new().json("500 Internal Server Error", "{}")).await;
    let well = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&broken, &well], |config| {
        config.backends[1].models = vec!["small".into()];
        config.models =
            vec![model("m", &["best"], &["mini"]), model("small", &["mini"], &[]), model("gone", &[], &["small"])];
    })
    .await;
    let asking = |name: &str| format!("{{\"model\":\"{name}\",\"stream\":true}}");
    for (name, tried) in [("m", 1), ("best", 2), ("gone", 2)] {
        let answer = ask(gateway.address(), "", &asking(name)).await;
        assert_eq!((answer.status, answer.text()), (200, good_events(&["one"])), "{name}");
        assert_eq!(answer.header("x-infergw-model-fallback"), Some("small"), "{name}");
        assert!(answer.header("x-infergw-reason").unwrap().starts_with("fallback"), "{answer:?}");
        assert_eq!(broken.questions(), tried, "{name}");
        assert_eq!(well.asked().last().unwrap().body, asking("small").into_bytes());
    }
    assert_eq!(ask(gateway.address(), "", &asking("unheard")).await.status, 404);
}
