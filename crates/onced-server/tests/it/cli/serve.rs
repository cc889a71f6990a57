//! `onced serve --upstream URL`, with nothing else said.

use onced_harness::{Recorder, RecorderOptions, Reply, Rule};
use testkit::http_client::{Request, send};

use super::{code, onced_in, serve_in};
use crate::fixture::LIMIT;

async fn upstream() -> Recorder {
    Recorder::start(RecorderOptions::default()).await.expect("the upstream can listen")
}

#[tokio::test]
async fn an_upstream_alone_is_served_with_the_defaults() {
    let (upstream, folder) = (upstream().await, tempfile::tempdir().expect("a folder"));
    let (address, process) = serve_in(folder.path(), &["--upstream", &upstream.url()]).await;
    let keyed = Request::post("/any/path?x=1", r#"{"a":1}"#).key("k1");
    let first = send(address, &keyed).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None));
    let again = send(address, &keyed).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.body, first.body);
    assert_eq!((upstream.count(), upstream.calls()[0].path.as_str()), (1, "/any/path"));
    assert_eq!(upstream.calls()[0].headers["onced-scope"], "http");

    // A key is optional: without one the request is forwarded, counted and logged.
    let bare = Request::post("/any/path", r#"{"a":1}"#);
    for _ in 0..2 {
        assert_eq!(send(address, &bare).await.status, 200);
    }
    assert_eq!(upstream.count(), 3);
    assert!(!upstream.calls()[2].headers.contains_key("onced-key"));
    let unprotected = |line: &str| line.contains("forwarded without a key: unprotected") && line.contains("count=2");
    process.wait_for_line(unprotected, LIMIT).await;

    // The ledger is a file of the folder that it was started in.
    assert!(folder.path().join("onced.db").is_file());
    let shown = onced_in(folder.path(), &["keys", "show", "http", "k1"]).await;
    assert!(shown.code == Some(0) && shown.out.contains("completed"), "{shown:?}");
}

#[tokio::test]
async fn a_lost_answer_is_not_sent_again_and_the_start_says_what_external_means() {
    for effect in [None, Some("idempotent")] {
        let (upstream, folder) = (upstream().await, tempfile::tempdir().expect("a folder"));
        upstream.script([Rule::on_run(1, Reply::lose_answer())]);
        let url = upstream.url();
        let more: Vec<&str> = effect.into_iter().flat_map(|effect| ["--effect", effect]).collect();
        let (address, process) = serve_in(folder.path(), &[&["--upstream", &url], &more[..]].concat()).await;
        let request = Request::post("/", "{}").key("k1");
        let lost = send(address, &request).await;
        assert_eq!((lost.status, code(&lost).as_str()), (504, "outcome-unknown"));
        let duplicate = send(address, &request).await;
        assert_eq!((duplicate.status, code(&duplicate).as_str()), (409, "in-progress"), "within the lease");
        assert_eq!(upstream.count(), 1);
        // The start says what `external` means, and only there.
        let warned = process.stderr().all().iter().any(|line| line.contains("until a person resolves it"));
        assert_eq!(warned, effect.is_none());
    }
}

#[tokio::test]
async fn a_key_can_be_required() {
    let (upstream, folder) = (upstream().await, tempfile::tempdir().expect("a folder"));
    let (address, _process) = serve_in(folder.path(), &["--upstream", &upstream.url(), "--require-key"]).await;
    let bare = send(address, &Request::post("/", "{}")).await;
    assert_eq!((bare.status, code(&bare).as_str()), (400, "key-missing"));
    assert_eq!(bare.header("content-type"), Some("application/problem+json"));
    assert_eq!(upstream.count(), 0, "nothing was forwarded");
    assert_eq!(send(address, &Request::post("/", "{}").key("k1")).await.status, 200);
    assert_eq!(send(address, &Request::new("GET", "/")).await.status, 200, "safe methods need none");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    for (args, words) in [
        (&["serve"][..], "there is nothing to serve; add --upstream http://127.0.0.1:3000"),
        (&["serve", "--upstream", "ftp://app"], "is not the URL of an upstream"),
        (&["serve", "--upstream", "http://127.0.0.1:8080"], "is the gateway itself"),
        (&["serve", "--upstream", "http://a:1", "--store", "onced.db"], "write \"sqlite:onced.db\""),
        (&["serve", "--upstream", "http://a:1", "--store", "sqlite:no/such/folder/x.db"], "cannot be opened"),
    ] {
        let ran = onced_in(folder.path(), args).await;
        assert!(ran.code == Some(1) && ran.err.contains(words), "{args:?}: {ran:?}");
    }
    let ran = onced_in(folder.path(), &["serve", "--upstream", "http://a:1", "--effect", "idempotnt"]).await;
    assert!(ran.code == Some(2) && ran.err.contains("idempotent"), "{ran:?}");
}
