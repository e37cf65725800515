//! Engines that are killed, stopped, shut down.

use std::time::{Duration, Instant};

use ts_client::{
    ClientConfig, EndCause, EngineClient, Error, GroupPhase, LoadBalance, RankLoss, RankStatus, RequestStream, Routing,
    Tuning,
};

use super::{chunk, config, finish, group, is, pinned, reaches, request, rest, until, within};

/// R3: a killed engine ends its streams within this time.
const NOTICED: Duration = Duration::from_secs(2);

fn ranks_alone() -> Tuning {
    let mut tuning = Tuning::default();
    tuning.rank_loss = RankLoss::Rank;
    tuning
}

fn least_in_flight(config: ClientConfig) -> ClientConfig {
    ClientConfig { routing: Routing::Aggregated(LoadBalance::LeastInFlight), ..config }
}

async fn running(client: &EngineClient, rid: &str, rank: i64) -> RequestStream {
    let mut stream = within(client.generate(pinned(rid, 1_000_000, rank))).await.unwrap();
    chunk(&mut stream).await;
    stream
}

/// Kill rank 1 of 2 while both run, and see what each policy promises.
async fn kill_in_mid_burst(config: ClientConfig) {
    let (client, mut engines) = group(least_in_flight(config), ranks_alone(), &["--max-model-len", "2000000"]).await;
    let mut survivor = running(&client, "survivor", 0).await;
    let mut victims = Vec::new();
    for number in 0..4 {
        victims.push(running(&client, &format!("victim-{number}"), 1).await);
    }
    engines[1].kill();
    let killed = Instant::now();
    for victim in &mut victims {
        let end = rest(victim).await.1.unwrap_err();
        assert!(end.contains("engine 1") && end.contains("closed"), "it names the rank: {end}");
        assert!(matches!(victim.end_cause(), Some(EndCause::RankLost { engine_index: 1, .. })));
    }
    assert!(killed.elapsed() < NOTICED, "{:?}", killed.elapsed());
    assert_eq!(client.in_flight(), [1, 0]);
    assert_eq!(client.state().phase, GroupPhase::Degraded);

    for number in 0..20 {
        let mut stream = within(client.generate(request(&format!("later-{number}"), 2))).await.unwrap();
        assert_eq!(stream.engine_index(), 0, "0 of 20 go to the dead rank");
        finish(&mut stream).await;
    }
    let to_the_dead = within(client.generate(pinned("pinned", 1, 1))).await;
    assert!(
        matches!(&to_the_dead, Err(Error::Unavailable(why)) if why.to_string().contains("engine 1")),
        "{to_the_dead:?}"
    );
    chunk(&mut survivor).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_mid_burst_over_tcp() {
    kill_in_mid_burst(config(2)).await;
}

/// The sockets at paths in a folder of their own.
fn over_ipc(folder: &std::path::Path) -> ClientConfig {
    std::fs::create_dir_all(folder).unwrap();
    let at = |name: &str| format!("ipc://{}/{name}", folder.display());
    ClientConfig { input_address: at("in"), output_address: at("out"), ..config(2) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_mid_burst_over_ipc() {
    let folder = std::env::temp_dir().join(format!("ts-client-burst-{}", std::process::id()));
    kill_in_mid_burst(over_ipc(&folder)).await;
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_idle_over_tcp() {
    kill_while_idle(config(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_idle_over_ipc() {
    let folder = std::env::temp_dir().join(format!("ts-client-idle-{}", std::process::id()));
    kill_while_idle(over_ipc(&folder)).await;
    std::fs::remove_dir_all(&folder).unwrap();
}

async fn kill_while_idle(config: ClientConfig) {
    let (client, mut engines) = group(config, ranks_alone(), &[]).await;
    engines[0].kill();
    let killed = Instant::now();
    let state = reaches(&client, "the loss is noticed", is(GroupPhase::Degraded)).await;
    assert!(killed.elapsed() < NOTICED);
    assert_eq!((state.ranks[0].status, state.ranks[1].status), (RankStatus::Lost, RankStatus::Ready));
    for number in 0..20 {
        let mut stream = within(client.generate(request(&format!("r{number}"), 1))).await.unwrap();
        assert_eq!(stream.engine_index(), 1);
        finish(&mut stream).await;
    }
}

/// Without a rank the group cannot work: all streams end, survivors are told, requests are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_a_group() {
    let (client, mut engines) = group(config(2), Tuning::default(), &["--max-model-len", "2000000"]).await;
    let mut streams = [running(&client, "on-0", 0).await, running(&client, "on-1", 1).await];
    engines[1].kill();
    for stream in &mut streams {
        let end = rest(stream).await.1.unwrap_err();
        assert!(end.contains("engine 1 is lost"), "{end}");
    }
    let state = client.state();
    assert_eq!((state.phase, state.serving), (GroupPhase::Lost, false));
    let refused = within(client.generate(request("refused", 1))).await;
    assert!(matches!(&refused, Err(Error::Unavailable(why)) if why.to_string().contains("engine 1")), "{refused:?}");
    until("the survivor has its abort", || engines[0].aborts() == ["on-0"]).await;
}

/// R2: stopped, it slows nobody, its streams end after the set silence, and it comes back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_continued() {
    let mut tuning = ranks_alone();
    tuning.silence = Duration::from_secs(3);
    tuning.ping_after = Duration::from_millis(500);
    let (client, engines) = group(least_in_flight(config(2)), tuning, &["--max-model-len", "2000000"]).await;
    let mut victim = running(&client, "victim", 1).await;
    engines[1].signal("STOP");
    let stopped = Instant::now();
    let judge = async {
        let end = rest(&mut victim).await.1.unwrap_err();
        assert!(end.contains("engine 1") && end.contains("sent nothing"), "{end}");
    };
    let others = async {
        // What goes to the other rank meanwhile does not wait for the stopped one.
        let mut slowest = Duration::ZERO;
        for number in 0..50 {
            let start = Instant::now();
            let mut stream = within(client.generate(pinned(&format!("other-{number}"), 3, 0))).await.unwrap();
            finish(&mut stream).await;
            slowest = slowest.max(start.elapsed());
        }
        slowest
    };
    let (_, slowest) = tokio::join!(judge, others);
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(stopped.elapsed() > Duration::from_secs(2), "not before the silence is over");
    let state = reaches(&client, "it is out of service", is(GroupPhase::Degraded)).await;
    assert_eq!(state.ranks[1].status, RankStatus::Silent);
    for number in 0..20 {
        let mut stream = within(client.generate(request(&format!("later-{number}"), 1))).await.unwrap();
        assert_eq!(stream.engine_index(), 0);
        finish(&mut stream).await;
    }

    engines[1].signal("CONT");
    reaches(&client, "it is back", is(GroupPhase::Ready)).await;
    let mut again = within(client.generate(pinned("again", 3, 1))).await.unwrap();
    finish(&mut again).await;
    assert_eq!(engines[1].aborts(), ["victim"], "what was reported as failed does not run on");
}

/// A rank that computes for long without output answers the sign of life and is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_first_token_is_not_silence() {
    let mut tuning = Tuning::default();
    tuning.silence = Duration::from_secs(4);
    tuning.ping_after = Duration::from_millis(400);
    let (client, engines) = group(config(1), tuning, &["--ttft-ms", "8000"]).await;
    let mut stream = within(client.generate(request("slow", 2))).await.unwrap();
    assert_eq!(finish(&mut stream).await, [1, 2]);
    assert_eq!(client.stats()[0].losses, 0);
    assert_eq!(engines[0].adds(), ["slow"]);
}

/// A shutdown in a group: all streams end as the published client ends them, and the client waits for the return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shut_down_in_a_group() {
    let (client, mut engines) = group(config(2), Tuning::default(), &["--max-model-len", "2000000"]).await;
    let mut streams = [running(&client, "on-0", 0).await, running(&client, "on-1", 1).await];
    engines[1].signal("TERM");
    for stream in &mut streams {
        assert_eq!(rest(stream).await.1, Err("an engine shut down".to_owned()));
    }
    until("it exited", || !engines[1].is_running()).await;
    let state = reaches(&client, "the loss is noticed", |state| state.ranks[1].status == RankStatus::Lost).await;
    assert_eq!((state.phase, state.ranks[0].status), (GroupPhase::Lost, RankStatus::Ready));
}

/// A shutdown among independent ranks: only the one that went away is affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shut_down_alone() {
    let (client, engines) = group(config(2), ranks_alone(), &["--max-model-len", "2000000"]).await;
    let mut survivor = running(&client, "on-0", 0).await;
    let mut victim = running(&client, "on-1", 1).await;
    engines[1].signal("TERM");
    assert_eq!(rest(&mut victim).await.1, Err("an engine shut down".to_owned()));
    assert_eq!(victim.end_cause(), Some(EndCause::EngineShutDown { engine_index: Some(1) }));
    chunk(&mut survivor).await;
    assert_eq!(client.state().phase, GroupPhase::Degraded);
    assert_eq!(client.stats()[0].losses, 0);
}

/// An announcement that nothing follows does not stop service for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_false_announcement_is_got_over() {
    let mut tuning = Tuning::default();
    tuning.sentinel_grace = Duration::from_millis(500);
    let args = ["--fault", "sentinel-after=3", "--max-model-len", "2000000"];
    let (client, _engines) = group(config(1), tuning, &args).await;
    let mut stream = within(client.generate(request("cut", 1_000_000))).await.unwrap();
    assert_eq!(rest(&mut stream).await.1, Err("an engine shut down".to_owned()));
    reaches(&client, "service goes on", is(GroupPhase::Ready)).await;
    let mut next = within(client.generate(request("next", 3))).await.unwrap();
    assert_eq!(finish(&mut next).await, [1, 2, 3]);
}
