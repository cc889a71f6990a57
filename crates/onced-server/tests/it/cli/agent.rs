//! An agent's tool calls: the key comes from the conversation, the step and the tool; the arguments are the request.

use std::net::SocketAddr;

use onced_harness::{Call, Recorder, RecorderOptions, Reply};
use serde_json::{Value, json};
use testkit::http_client::{Answer, Request, race_same, send};
use testkit::{Backend, Database};

use super::code;
use crate::fixture::{Gateway, route, sql};

/// A tool server behind the gateway.
struct Tools {
    database: Database,
    upstream: Recorder,
    gateway: Gateway,
}

/// A call as an agent's framework sends it.
#[derive(Clone)]
struct ToolCall {
    conversation: Option<&'static str>,
    key: Option<&'static str>,
    body: Value,
}

fn call() -> ToolCall {
    let body = json!({ "step": 4, "tool": "send_email", "tool_call_id": "call_1", "arguments": { "to": "a", "n": 1 } });
    ToolCall { conversation: Some("conv-17"), key: None, body }
}

impl ToolCall {
    fn with(mut self, member: &str, value: Value) -> Self {
        self.body[member] = value;
        self
    }

    fn without(mut self, member: &str) -> Self {
        self.body.as_object_mut().expect("the body is an object").remove(member);
        self
    }

    fn in_conversation(self, conversation: Option<&'static str>) -> Self {
        Self { conversation, ..self }
    }

    fn key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }

    fn request(&self) -> Request {
        let request = Request::post("/tools/call", self.body.to_string()).header("content-type", "application/json");
        let parts = [("x-conversation-id", self.conversation), ("idempotency-key", self.key)];
        parts.iter().filter_map(|(name, value)| Some((name, (*value)?))).fold(request, |r, (name, v)| r.header(name, v))
    }
}

impl Tools {
    async fn start(backend: Backend, within_step: &str) -> Self {
        let database = Database::create(backend).await;
        // Each execution answers something else.
        let options = RecorderOptions::default()
            .effect_fn(async |call: Call| Some(Reply::ok().json(format!("{{\"sent\":{}}}", call.seq))));
        let upstream = Recorder::start(options).await.expect("the upstream can listen");
        let key = format!(
            "key = {{ from = \"agent\", conversation = {{ header = \"X-Conversation-Id\" }}, step = {{ pointer = \"/step\" }}, \
             tool = {{ pointer = \"/tool\" }}, arguments = \"/arguments\", within_step = \"{within_step}\" }}"
        );
        let gateway =
            Gateway::start(&database, &route("tools", "/tools/call", &upstream.url(), "external", &key)).await;
        Self { database, upstream, gateway }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.address
    }

    async fn send(&self, call: &ToolCall) -> Answer {
        send(self.address(), &call.request()).await
    }

    async fn executes(&self, call: &ToolCall) -> Answer {
        let before = self.upstream.count();
        let answer = self.send(call).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, None), "{}", call.body);
        assert_eq!(self.upstream.count(), before + 1, "{}", call.body);
        answer
    }

    async fn replays(&self, call: &ToolCall, first: &Answer) {
        let before = self.upstream.count();
        let answer = self.send(call).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (200, Some("true")), "{}", call.body);
        assert_eq!((&answer.body, self.upstream.count()), (&first.body, before), "{}", call.body);
    }

    async fn refuses(&self, call: &ToolCall, status: u16, words: &str) {
        let before = self.upstream.count();
        let answer = self.send(call).await;
        assert_eq!((answer.status, code(&answer).as_str()), (status, words), "{}", call.body);
        assert!(!answer.text().contains("sent"), "no stored answer is shown: {}", answer.text());
        assert_eq!(self.upstream.count(), before, "{}", call.body);
    }

    async fn keys(&self) -> Vec<String> {
        let table = sql::table(self.database.backend());
        let rows = self.database.sql().text(&format!("SELECT key FROM {table} ORDER BY key")).await;
        rows.into_iter().map(|row| row[0].clone()).collect()
    }
}

async fn one_per_tool(backend: Backend) {
    let tools = Tools::start(backend, "one-per-tool").await;
    let first = tools.executes(&call()).await;
    // A repeated call, however its framework numbers it and writes its JSON.
    tools.replays(&call(), &first).await;
    tools.replays(&call().with("tool_call_id", json!("call_2")), &first).await;
    tools.replays(&call().with("step", json!("4")), &first).await;
    tools.replays(&call().with("arguments", json!({ "n": 1.0, "to": "a" })), &first).await;
    // Each part of the key makes another call.
    tools.executes(&call().with("step", json!(5))).await;
    tools.executes(&call().with("tool", json!("send_letter"))).await;
    tools.executes(&call().in_conversation(Some("conv-18"))).await;
    // The parts cannot run into each other.
    tools.executes(&call().in_conversation(Some("conv-1")).with("step", json!("74"))).await;
    // A call that was planned anew with other arguments is seen, and is neither executed nor replayed.
    tools.refuses(&call().with("arguments", json!({ "to": "b", "n": 1 })), 422, "key-reused").await;
    tools.refuses(&call().without("arguments"), 422, "key-reused").await;
    tools.replays(&call(), &first).await;
    let keys = tools.keys().await;
    assert_eq!(keys.len(), 5);
    assert!(keys.iter().all(|key| key.starts_with("agent1_") && !key.contains("conv")), "{keys:?}");
}

async fn an_explicit_key_goes_first(backend: Backend) {
    let tools = Tools::start(backend, "one-per-tool").await;
    let derived = tools.executes(&call()).await;
    let explicit = tools.executes(&call().key("op-1")).await;
    assert_ne!(derived.body, explicit.body);
    tools.replays(&call().key("op-1"), &explicit).await;
    // The key alone says which call it is; the arguments must still be the same.
    let elsewhere = call().key("op-1").in_conversation(Some("conv-99")).with("step", json!(9));
    tools.replays(&elsewhere, &explicit).await;
    tools.replays(&call().key("op-1").in_conversation(None).without("step"), &explicit).await;
    tools.refuses(&call().key("op-1").with("arguments", json!({})), 422, "key-reused").await;
    tools.refuses(&call().key("\"op"), 400, "key-invalid").await;
    tools.replays(&call(), &derived).await;
    assert!(tools.keys().await.contains(&"op-1".to_owned()));
}

async fn missing_parts(backend: Backend) {
    let tools = Tools::start(backend, "one-per-tool").await;
    for part in ["step", "tool"] {
        tools.refuses(&call().without(part), 400, "key-missing").await;
        tools.refuses(&call().with(part, Value::Null), 400, "key-missing").await;
        tools.refuses(&call().with(part, json!("")), 400, "key-invalid").await;
    }
    tools.refuses(&call().with("step", json!(1.5)), 400, "key-missing").await;
    tools.refuses(&call().in_conversation(None), 400, "key-missing").await;
    tools.refuses(&call().in_conversation(Some("")), 400, "key-invalid").await;
    assert_eq!(tools.keys().await, Vec::<String>::new(), "nothing was stored");
}

async fn at_once(backend: Backend) {
    let tools = Tools::start(backend, "one-per-tool").await;
    tools.upstream.hold();
    let address = tools.address();
    let race = tokio::spawn(async move { race_same(12, &[address], &call().request()).await });
    tools.upstream.wait_for_held(1, crate::fixture::LIMIT).await.expect("one call reaches the tool");
    tools.upstream.release();
    let answers = race.await.expect("all are answered");
    let answered = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert!(answered(200) >= 1 && answered(200) + answered(409) == 12, "{answers:?}");
    assert_eq!(tools.upstream.count(), 1);
}

async fn by_arguments(backend: Backend) {
    let tools = Tools::start(backend, "by-arguments").await;
    let first = tools.executes(&call()).await;
    tools.replays(&call().with("tool_call_id", json!("call_2")), &first).await;
    tools.replays(&call().with("arguments", json!({ "n": 1.0, "to": "a" })), &first).await;
    // Other arguments are another call: parallel calls of one step are separate effects.
    let second = tools.executes(&call().with("arguments", json!({ "to": "b", "n": 1 }))).await;
    assert_ne!(first.body, second.body);
    tools.executes(&call().with("arguments", json!({ "to": "a", "n": "1" }))).await;
    tools.executes(&call().with("step", json!(5))).await;
    tools.replays(&call(), &first).await;
    tools.refuses(&call().in_conversation(None), 400, "key-missing").await;
    // An explicit key still goes first, and is bound to its arguments.
    let explicit = tools.executes(&call().key("op-1")).await;
    tools.replays(&call().key("op-1"), &explicit).await;
    tools.refuses(&call().key("op-1").with("arguments", json!({})), 422, "key-reused").await;
    assert_eq!(tools.keys().await.len(), 5);
}

macro_rules! on_all {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name(testkit::Backend::Sqlite).await; })*
        }
        mod postgres {
            $(#[tokio::test] async fn $name() { super::$name(testkit::Backend::Postgres).await; })*
        }
        mod mariadb {
            $(#[tokio::test] async fn $name() { super::$name(testkit::Backend::MariaDb).await; })*
        }
    };
}

on_all!(one_per_tool, an_explicit_key_goes_first, missing_parts, at_once, by_arguments);
