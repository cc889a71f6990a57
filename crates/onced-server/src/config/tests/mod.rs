//! What the configuration promises: defaults, inheritance, flags, matching and notices.

mod example;
mod fuzz;
mod refusals;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use http::Method;
use onced_core::decision::{Enter, MismatchPolicy, OnUnknown};
use onced_core::failure::{Effect, FinalPolicy, On5xx};
use onced_core::fingerprint::BodyRecipe;
use onced_core::pointer::Pointer;

use super::cors::Cors;
use super::outside::Outside;
use super::*;

/// Surroundings that a test makes up.
#[derive(Default)]
struct MadeUp {
    variables: BTreeMap<&'static str, &'static str>,
    files: BTreeMap<&'static str, &'static str>,
}

impl Outside for MadeUp {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(|text| (*text).to_owned())
    }

    fn file(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.files.get(path));
        text.map(|text| (*text).to_owned()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }
}

fn read_in(outside: &MadeUp, text: &str) -> Result<Config, ConfigErrors> {
    Config::read(text, "onced.toml", &Flags::default(), outside)
}

fn read(text: &str) -> Result<Config, ConfigErrors> {
    read_in(&MadeUp::default(), text)
}

/// The one route of a file whose `[[route]]` holds these lines, too.
fn route(lines: &str) -> Route {
    route_with("", lines)
}

fn route_with(before: &str, lines: &str) -> Route {
    let text = format!("{before}\n[[route]]\nname = \"orders\"\npath = \"/o\"\nupstream = \"http://app:1\"\n{lines}\n");
    read(&text).unwrap_or_else(|errors| panic!("{errors}")).routes.remove(0)
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[test]
fn a_route_has_the_documented_defaults() {
    let route = route("effect = \"external\"");
    assert_eq!(route.key, KeyRule::standard(Missing::Refuse));
    assert_eq!(route.key.source, KeySource::Header { name: "Idempotency-Key".parse().unwrap() });
    assert_eq!((route.fingerprint.clone(), route.mismatch), (BodyRecipe::All, MismatchPolicy::Reject));
    assert_eq!((route.final_policy, route.on_5xx), (FinalPolicy::Default, On5xx::Unknown));
    assert_eq!(route.no_effect, [401, 403, 407, 425, 429]);
    assert_eq!(route.wait, Duration::ZERO);
    assert_eq!((route.on_unknown, route.max_attempts), (OnUnknown::Reconcile, 5));
    assert_eq!((route.lease.length, route.lease.tick, route.heartbeat), (SECOND * 30, SECOND, SECOND * 10));
    assert_eq!((route.upstream_timeout, route.max_execution, route.settle), (SECOND * 30, SECOND * 900, SECOND * 60));
    assert_eq!((route.retention.keep, route.retention.retry_window), (DAY * 7, DAY * 7 / 2));
    assert_eq!(route.downstream_window, DAY);
    assert_eq!((route.max_request_bytes, route.max_response_bytes), (1 << 20, 1 << 20));
    assert_eq!((route.methods, route.store_headers.len()), (None, 0));
}

#[test]
fn the_gateway_has_the_documented_defaults() {
    let config = read("upstream = \"http://app:1\"").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!((config.own_prefix.as_str(), config.shutdown_grace, config.tick), ("/_onced/", SECOND * 30, SECOND));
    assert_eq!((config.store.url.expose(), config.store.schema.as_str()), ("sqlite:onced.db", "onced"));
    assert_eq!((config.store.max_connections, config.store.busy_timeout), (10, SECOND * 5));
    assert_eq!((config.store.log_deliveries, config.store.allow_weak_durability), (LogDeliveries::All, false));
    assert_eq!(config.store.pooler, Pooler::None);
    assert_eq!((config.sweep.every, config.sweep.keep_deliveries), (Some(SECOND * 600), DAY * 30));
    assert_eq!(config.sweep, SweepConfig::default());
    assert_eq!(config.log, LogConfig { format: LogFormat::Text, level: LogLevel::Info });
    let default = config.default_route.unwrap();
    assert_eq!((default.name.as_str(), default.effect, default.key.missing), ("http", Effect::External, Missing::Pass));
}

#[test]
fn what_follows_from_other_settings_follows_them() {
    assert_eq!(route("effect = \"external\"\nlease = \"6s\"").heartbeat, SECOND * 2);
    assert_eq!(route("effect = \"external\"\nwait = \"60s\"").wait, SECOND * 60, "the most that there is");
    assert_eq!(route("effect = \"external\"\nupstream_timeout = \"31s\"").settle, SECOND * 62);
    assert_eq!(route("effect = \"external\"\nretention = \"10days\"").retention.retry_window, DAY * 5);
    assert_eq!(route("effect = \"idempotent\"").on_unknown, OnUnknown::Retry);
    assert_eq!(route("effect = \"idempotent\"").policy().enter, Enter::PendingExternal);
    assert_eq!(route("effect = \"same-database\"").policy().enter, Enter::InProgress);
    // A lease may be shorter than the upstream's timeout: heartbeats renew it.
    assert_eq!(route("effect = \"external\"\nlease = \"1s\"\nupstream_timeout = \"10min\"").lease.length, SECOND);
}

#[test]
fn a_route_goes_before_the_defaults_and_they_before_the_built_in() {
    let defaults = "[defaults]\nlease = \"60s\"\nmax_attempts = 2\nkey = \"optional\"\non_unknown = \"hold\"";
    let own = route_with(defaults, "effect = \"idempotent\"\nmax_attempts = 9");
    assert_eq!((own.lease.length, own.max_attempts, own.key.missing), (SECOND * 60, 9, Missing::Pass));
    assert_eq!(own.on_unknown, OnUnknown::Retry, "a default for other effects is no contradiction");
    assert_eq!(route_with(defaults, "effect = \"external\"").on_unknown, OnUnknown::Hold);
}

#[test]
fn a_contract_stands_between_the_route_and_the_defaults() {
    const POST: Method = Method::POST;
    let of = |defaults: &str, own: &str| {
        let defaults = if defaults.is_empty() { String::new() } else { format!("[defaults]\n{defaults}") };
        let route = route_with(&defaults, &format!("effect = \"idempotent\"\n{own}"));
        (route.final_policy, route.retention.keep / 86_400, route.methods.unwrap_or_default())
    };
    let (v1, v2) = ("contract = \"stripe-v1\"", "contract = \"stripe-v2\"");
    let (everything, success) = (FinalPolicy::Everything, FinalPolicy::Success);
    let both = vec![POST, Method::DELETE];
    let days = |number| SECOND * number;
    assert_eq!(of("", v1), (everything, days(7), vec![]));
    assert_eq!(of("", v2), (success, days(31), both.clone()));
    assert_eq!(of(v1, ""), of("", v1));
    assert_eq!(of(v2, ""), of("", v2));
    // Each level goes before the next: the route, its contract, [defaults], their contract.
    let own = "final = \"default\"\nretention = \"3days\"\nmethods = [\"POST\"]";
    let as_written = (FinalPolicy::Default, days(3), vec![POST]);
    assert_eq!(of("", &format!("{own}\n{v2}")), as_written);
    assert_eq!(of(own, v2), of("", v2));
    assert_eq!(of(own, v1), (everything, days(3), vec![POST]), "what its contract leaves open");
    assert_eq!(of(&format!("{own}\n{v2}"), ""), as_written);
    assert_eq!(
        of("retention = \"3days\"\ncontract = \"stripe-v2\"", "final = \"everything\""),
        (everything, days(3), both)
    );
    // A route's contract replaces that of [defaults].
    assert_eq!(of(v2, v1), of("", v1));
    assert_eq!(of(v2, "contract = \"none\""), of("", ""));
    let v2 = route("effect = \"idempotent\"\ncontract = \"stripe-v2\"");
    assert_eq!(v2.retention.retry_window, DAY * 31 / 2, "it follows the retention");
    let text = "upstream = \"http://app:1\"\n[defaults]\ncontract = \"stripe-v2\"";
    let rest = read(text).unwrap().default_route.unwrap();
    assert_eq!((rest.final_policy, rest.methods), (success, None), "what matches no route has every method");
}

#[test]
fn pages_of_other_origins_may_call_where_the_route_says_so() {
    let of = |defaults: &str, own: &str| route_with(defaults, &format!("effect = \"external\"\n{own}")).cors;
    let everybody = Cors { origins: Origins::Any, credentials: false, headers: Vec::new(), max_age: SECOND * 600 };
    assert_eq!(of("", ""), None);
    assert_eq!(of("", "cors = { origins = [\"*\"] }"), Some(everybody.clone()));
    let defaults = "[defaults]\ncors = { origins = [\"*\"] }";
    assert_eq!(of(defaults, ""), Some(everybody));
    assert_eq!(of(defaults, "cors = \"none\""), None);
    let own = "cors = { origins = [\"https://shop.example\", \"http://127.0.0.1:3000\", \"http://[::1]:81\"], \
               credentials = true, headers = [\"X-Cart-Id\"], max_age = \"1day\" }";
    let listed = ["https://shop.example", "http://127.0.0.1:3000", "http://[::1]:81"].map(|text| text.parse().unwrap());
    let expected = Cors {
        origins: Origins::Listed(listed.into()),
        credentials: true,
        headers: vec!["x-cart-id".parse().unwrap()],
        max_age: DAY,
    };
    assert_eq!(of(defaults, own), Some(expected));
    assert!(of("", "cors = { origins = [\"app://local\", \"https://shop.example:8443\"] }").is_some());
}

#[test]
fn keys_come_from_where_the_route_says() {
    let key = |text: &str| route(&format!("effect = \"external\"\nkey = {text}")).key;
    let pointer = |text| Pointer::parse(text).unwrap();
    assert_eq!(key("\"off\"").source, KeySource::Off);
    assert_eq!(key("\"optional\""), KeyRule::standard(Missing::Pass));
    assert_eq!(key("{ from = \"header\", missing = \"pass\" }"), KeyRule::standard(Missing::Pass));
    assert_eq!(key("{ from = \"pointer\", pointer = \"/id\" }").source, KeySource::Pointer(pointer("/id")));
    let agent = key("{ from = \"agent\", conversation = { header = \"X-C\" }, step = { pointer = \"/s\" }, \
         tool = { pointer = \"/t\" }, arguments = \"/a\", within_step = \"by-arguments\" }");
    let expected = AgentParts {
        conversation: PartSource::Header("x-c".parse().unwrap()),
        step: PartSource::Pointer(pointer("/s")),
        tool: Tool::From(PartSource::Pointer(pointer("/t"))),
        arguments: Some(pointer("/a")),
        within_step: WithinStep::ByArguments,
    };
    assert_eq!(agent, KeyRule { source: KeySource::Agent(expected), missing: Missing::Refuse });
}

#[test]
fn an_agents_arguments_are_its_request_unless_the_route_says_otherwise() {
    let agent = "effect = \"external\"\nkey = { from = \"agent\", conversation = { header = \"X-C\" }, \
                 step = { header = \"X-S\" }, tool = \"t\", arguments = \"/a\" }";
    assert_eq!(route(agent).fingerprint, BodyRecipe::Only(vec![Pointer::parse("/a").unwrap()]));
    assert_eq!(route(&format!("{agent}\nfingerprint = \"raw\"")).fingerprint, BodyRecipe::Raw);
}

#[test]
fn sweeping_may_be_off() {
    let sweep = |text: &str| read(&format!("upstream = \"http://app:1\"\n[sweep]\n{text}"));
    assert_eq!(sweep("every = \"off\"").unwrap().sweep.every, None);
    assert_eq!(sweep("every = \"1h\"").unwrap().sweep.every, Some(SECOND * 3600));
    assert_eq!(sweep("keep_deliveries = \"0s\"").unwrap().sweep.keep_deliveries, Duration::ZERO);
    for (text, words) in [
        ("every = \"often\"", "is not a duration"),
        ("every = \"0s\"", "is too short"),
        ("each = 1", "no setting `each`"),
    ] {
        let errors = sweep(text).unwrap_err().to_string();
        assert!(errors.contains(words), "{errors}");
    }
}

#[test]
fn a_route_without_keys_is_not_asked_for_its_effect() {
    assert!(!route("key = \"off\"").is_keyed());
    assert!(!route_with("[defaults]\nkey = \"off\"", "").is_keyed());
}

#[test]
fn tests_may_count_in_tenths() {
    let text = "upstream = \"http://app:1\"\n[defaults]\nlease = \"100ms\"";
    let tenths = MadeUp { variables: [("ONCED_TEST_TENTHS", "1")].into(), ..MadeUp::default() };
    let config = read_in(&tenths, text).unwrap();
    assert_eq!(config.tick, Duration::from_millis(100));
    assert_eq!(config.default_route.unwrap().lease.tick, Duration::from_millis(100));
    let errors = read(text).unwrap_err().to_string();
    assert!(errors.contains("lease = \"100ms\" is too short; write at least \"1s\""), "{errors}");
}

#[test]
fn the_stores_url_may_be_kept_elsewhere() {
    let outside = MadeUp {
        variables: [("DB", "postgres://me:pw@db/app")].into(),
        files: [("/secret", "sqlite:kept.db\n")].into(),
    };
    let url = |text: &str| {
        let text = format!("upstream = \"http://app:1\"\n[store]\nurl = {text}");
        read_in(&outside, &text).unwrap().store.url.expose().to_owned()
    };
    assert_eq!(url("{ env = \"DB\" }"), "postgres://me:pw@db/app");
    assert_eq!(url("{ file = \"/secret\" }"), "sqlite:kept.db");
}

#[test]
fn flags_alone_are_a_configuration() {
    let flags = Flags { upstream: Some("http://app:1".to_owned()), ..Flags::default() };
    let config = Config::from_flags(&flags).unwrap();
    assert_eq!(config, read("upstream = \"http://app:1\"").unwrap());
    let flags = Flags { require_key: true, effect: Some(Effect::Idempotent), ..flags };
    let route = Config::from_flags(&flags).unwrap().default_route.unwrap();
    assert_eq!(
        (route.key.missing, route.effect, route.on_unknown),
        (Missing::Refuse, Effect::Idempotent, OnUnknown::Retry)
    );
    let errors = Config::from_flags(&Flags::default()).unwrap_err().to_string();
    assert!(errors.contains("add --upstream"), "{errors}");
    assert_eq!(effect_from_word("same-database"), Ok(Effect::SameDatabase));
    assert!(effect_from_word("externel").unwrap_err().contains("did you mean \"external\"?"));
}

#[test]
fn flags_go_before_the_file() {
    let flags = Flags {
        listen: Some("0.0.0.0:1234".parse().unwrap()),
        upstream: Some("http://other:2".to_owned()),
        store: Some("sqlite:other.db".to_owned()),
        effect: Some(Effect::SameDatabase),
        require_key: true,
    };
    // What a flag replaces need not even be there: the variable of `url` is not set.
    let text = "listen = \"127.0.0.1:1\"\nupstream = \"http://app:1\"\n[store]\nurl = { env = \"NOT_SET\" }\n\
                schema = \"ours\"\n[defaults]\nkey = \"off\"";
    let config = Config::read(text, "onced.toml", &flags, &MadeUp::default()).unwrap();
    assert_eq!((config.listen.port(), config.store.url.expose()), (1234, "sqlite:other.db"));
    assert_eq!(config.store.schema, "ours");
    let route = config.default_route.unwrap();
    assert_eq!((route.upstream.to_string().as_str(), route.effect), ("http://other:2", Effect::SameDatabase));
    assert_eq!(route.key, KeyRule::standard(Missing::Refuse));
}

#[test]
fn the_most_particular_route_wins_wherever_it_stands() {
    let route = |name: &str, path: &str, methods: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"{path}\"\nupstream = \"http://app:1\"\nkey = \"off\"\n{methods}\n"
        )
    };
    let text = [
        "upstream = \"http://app:1\"\n".to_owned(),
        route("all-a", "/a/*", ""),
        route("all-ab", "/a/b/*", ""),
        route("exact", "/a/b/c", ""),
        route("post", "/a/b/c", "methods = [\"POST\", \"PUT\"]"),
        route("again", "/a/b/c", "methods = [\"PUT\"]"),
    ]
    .concat();
    let config = read(&text).unwrap();
    let name = |method: Method, path: &str| match config.route_for(&method, path) {
        Match::Route(route) | Match::Default(route) => route.name.to_string(),
        Match::None => "none".to_owned(),
    };
    assert_eq!(name(Method::GET, "/a/x"), "all-a");
    assert_eq!(name(Method::GET, "/a/b/x"), "all-ab");
    assert_eq!(name(Method::GET, "/a/b/c"), "exact");
    assert_eq!(name(Method::POST, "/a/b/c"), "post");
    assert_eq!(name(Method::PUT, "/a/b/c"), "post", "the first of equals");
    assert_eq!(name(Method::POST, "/a/./b/%63"), "post", "another spelling of the path");
    assert_eq!(name(Method::POST, "/b"), "http");
    assert_eq!(name(Method::OPTIONS, "*"), "http");
    let alone = Config { default_route: None, ..config.clone() };
    assert_eq!(alone.route_for(&Method::POST, "/b"), Match::None);
    let shadowed: Vec<String> = config.warnings().into_iter().filter(|text| text.contains("instead")).collect();
    assert_eq!(shadowed.len(), 1);
    assert!(shadowed[0].starts_with("route \"again\": PUT /a/b/c goes to route \"post\" instead"), "{shadowed:?}");
}

#[test]
fn notices_say_what_is_worth_a_second_look() {
    let notices = |lines: &str| {
        let text = format!("[[route]]\nname = \"o\"\npath = \"/o\"\nupstream = \"http://app:1\"\n{lines}\n");
        read(&text).unwrap().warnings()
    };
    assert_eq!(notices("effect = \"same-database\""), [""; 0]);
    assert_eq!(notices("effect = \"idempotent\""), [""; 0]);
    assert_eq!(notices("key = \"off\""), [""; 0]);
    for (lines, notice) in [
        ("effect = \"external\"", "409 outcome-unknown"),
        ("effect = \"external\"", "whenever it answers 5xx, on_5xx = \"failed\""),
        ("effect = \"external\"\nfinal = \"success\"", "a 3xx or 4xx"),
        ("effect = \"idempotent\"\ndownstream_window = \"30s\"", "is not longer than the lease"),
        ("effect = \"idempotent\"\nmethods = [\"GET\"]", "pass through"),
        ("effect = \"idempotent\"\nkey = \"optional\"", "unprotected"),
        ("effect = \"idempotent\"\nfingerprint = \"none\"", "first one's answer"),
        ("effect = \"idempotent\"\n[store]\nallow_weak_durability = true", "may happen twice"),
        ("effect = \"idempotent\"\n[store]\nlog_deliveries = \"off\"", "cannot be looked up"),
    ] {
        let found = notices(lines);
        assert!(found.iter().any(|text| text.contains(notice)), "{lines}: {found:?}");
    }
}

#[test]
fn the_reference_page_is_what_the_code_says() {
    let page = include_str!("../../../../../docs/reference/configuration.md");
    assert!(page.ends_with(&reference_table()), "docs/reference/configuration.md: run `onced config reference` again");
}
