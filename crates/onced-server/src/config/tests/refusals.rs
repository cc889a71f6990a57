//! Everything that is refused, with its line and with what would be right.

use super::*;

/// `(what is added, the line:column it is refused at, what the message says)`
type Row = (&'static str, &'static str, &'static str);

fn check(before: &str, after: &str, rows: &[Row]) {
    for (lines, place, says) in rows {
        let text = format!("{before}{lines}{after}");
        let errors = match read(&text) {
            Err(errors) => errors.to_string(),
            Ok(_) => panic!("not refused: {lines}"),
        };
        let first = format!("onced.toml:{place}: ");
        let said = errors.lines().find(|line| line.starts_with(&first) && line.contains(says));
        assert!(said.is_some(), "{lines}\nwanted {place}: {says}\ngot    {errors}");
        assert_eq!(errors.lines().filter(|line| line.starts_with("onced.toml")).count(), 1, "{errors}");
    }
}

const UPSTREAM: &str = "upstream = \"http://app:1\"\n";
const ROUTE: &str = "[[route]]\nname = \"orders\"\npath = \"/o\"\nupstream = \"http://app:1\"\n";

#[test]
fn at_the_top() {
    check(
        "",
        "",
        &[
            ("upstream = \"ftp://app\"", "1:1", "is not the URL of an upstream; write \"http://host:port\""),
            ("upstream = \"unix:app.sock\"", "1:1", "names no Unix socket by its whole path"),
            ("upstream = 3000", "1:1", "write upstream = \"http://127.0.0.1:3000\""),
            ("\nlisten = \"8080\"\nupstream = \"http://app:1\"", "2:1", "write \"127.0.0.1:8080\""),
            ("upstream = \"http://localhost:8080\"", "1:1", "is the gateway itself"),
        ],
    );
    check(
        UPSTREAM,
        "",
        &[
            ("own_prefix = \"_onced\"", "2:1", "write \"/_onced/\""),
            ("own_prefix = \"/\"", "2:1", "write \"/_onced/\""),
            ("shutdown_grace = 30", "2:1", "write it in quotes with its unit: shutdown_grace = \"30s\""),
            ("shutdown_grace = \"30\"", "2:1", "write a number and a unit"),
            ("shutdown_grace = \"99years\"", "2:1", "is too long; write at most"),
            ("[clients]\nmax_connections = 0", "3:1", "is not a whole number from 1 to"),
            ("[clients]\nmax_passed = 0", "3:1", "is not a whole number from 1 to"),
            ("[clients]\nhead_timeout = \"0s\"", "3:1", "is too short; write at least"),
            ("[clients]\nmax_head_bytes = \"1KiB\"", "3:1", "8KiB"),
            ("lisen = \"\"", "2:1", "has no setting `lisen`; did you mean `listen`?"),
            ("lease = \"30s\"", "2:1", "has no setting `lease`; write it in [defaults] or a [[route]]"),
            ("effect = \"external\"", "2:1", "every [[route]] says its own"),
            ("[routes]", "2:2", "did you mean `route`?"),
            ("[route]\nname = \"a\"", "2:2", "write [[route]], with two brackets"),
            ("store = \"sqlite:a.db\"", "2:1", "`store` is a section; write [store]"),
        ],
    );
    check(
        UPSTREAM,
        "",
        &[("listen = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:1\"", "3:1", "this is not TOML: duplicate key")],
    );
}

#[test]
fn what_is_not_toml_is_told_with_every_place() {
    let errors = read("upstream = \"http://app:1\nlisten = x\n\n[[route]\nlease = 1\n").unwrap_err().to_string();
    let places: Vec<&str> = errors.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["onced.toml:1:25", "onced.toml:2:10", "onced.toml:4:9"], "{errors}");
    assert!(errors.lines().all(|line| line.contains("this is not TOML: ")), "{errors}");
    assert!(
        read("\n\n  x\u{e9}y = 1").unwrap_err().to_string().starts_with("onced.toml:3:4: "),
        "columns are characters"
    );
}

#[test]
fn in_the_store_and_the_log() {
    check(
        "upstream = \"http://app:1\"\n[store]\n",
        "",
        &[
            ("url = \"onced.db\"", "3:1", "write \"sqlite:onced.db\""),
            ("url = \"mysql://me:geheim@db\"", "3:1", "url = \"mysql://me:***@db\" names no host and database"),
            ("url = \"sqlite::memory:\"", "3:1", "would forget every key"),
            ("url = [\"postgres://me:geheim@db\"]", "3:1", "url is not text; write url = "),
            ("url = { env = \"NOT_SET\" }", "3:9", "env = \"NOT_SET\" is an environment variable that is not set"),
            ("url = { file = \"/none\" }", "3:9", "file = \"/none\" cannot be read (no such file)"),
            ("url = {}", "3:1", "must name one place"),
        ],
    );
    check(
        "upstream = \"http://app:1\"\n[store]\n",
        "",
        &[
            ("password = \"geheim\"", "3:1", "[store] has no setting `password`; write one of url, schema"),
            ("schema = \"pg_x\"", "3:1", "write \"onced\""),
            ("schema = \"a\\\"; drop\"", "3:1", "write \"onced\""),
            ("max_connections = 0", "3:1", "is not a whole number from 1 to 1000"),
            ("log_deliveries = \"some\"", "3:1", "write \"all\", \"executed\" or \"off\""),
            ("schema = \"postgres://me:geheim@db\"", "3:1", "schema = \"postgres://me:***@db\" is not a plain name"),
            ("pooler = \"session\"", "3:1", "write \"none\" or \"transaction\""),
            ("pooler = \"transaction\"", "3:1", "is about PostgreSQL"),
            ("allow_weak_durability = \"yes\"", "3:1", "write allow_weak_durability = true, without quotes"),
            ("[log]\nlevel = \"information\"", "4:1", "write \"error\", \"warn\", \"info\", \"debug\" or \"trace\""),
            ("[log]\nlevel = \"inf\"", "4:1", "did you mean \"info\"?"),
            ("[log]\nformat = \"JSON\"", "4:1", "did you mean \"json\"?"),
        ],
    );
}

#[test]
fn a_routes_own_settings() {
    check(
        "[[route]]\nupstream = \"http://app:1\"\neffect = \"external\"\n",
        "",
        &[
            ("path = \"/o\"", "1:1", "[[route]] number 1 has no `name`; add name = \"orders\""),
            ("name = \"orders\"", "1:1", "[[route]] \"orders\" has no `path`; add path = \"/api/order\""),
            ("name = \"a b\"\npath = \"/o\"", "4:1", "such as \"orders.create\""),
            ("name = \"acme:orders\"\npath = \"/o\"", "4:1", "write \"acme.orders\""),
            ("name = \"http\"\npath = \"/o\"", "4:1", "is the scope of what matches no route"),
            ("name = \"orders\"\npath = \"o\"", "5:1", "write \"/api/order\""),
            ("name = \"orders\"\npath = \"/o*\"", "5:1", "write \"/api/order/*\""),
            ("name = \"orders\"\npath = \"/o/../p\"", "5:1", "write \"/p\""),
            ("name = \"orders\"\npath = \"/_onced/x\"", "5:1", "where the gateway's own endpoints are"),
            (
                "name = \"orders\"\npath = \"/o\"\nleese = \"1s\"",
                "6:1",
                "has no setting `leese`; did you mean `lease`?",
            ),
            ("name = \"orders\"\npath = \"/o\"\nmax-attempts = 1", "6:1", "did you mean `max_attempts`?"),
        ],
    );
    check(
        ROUTE,
        "",
        &[
            ("effect = \"extern\"", "5:1", "did you mean \"external\"?"),
            (
                "effect = \"external\"\n[[route]]\nname = \"orders\"\npath = \"/p\"\nupstream = \"http://app:1\"\nkey = \"off\"",
                "7:1",
                "is taken by the route in line 1",
            ),
        ],
    );
    check(
        "[[route]]\nname = \"a\"\npath = \"/a\"\neffect = \"external\"\n",
        "",
        &[
            ("", "1:1", "has no `upstream`; add upstream = "),
            ("upstream = \"http://me:geheim@app\"", "5:1", "\"http://me:***@app\" has a user or password in it"),
            ("upstream = \"http://127.0.0.1:8080\"", "5:1", "is the gateway itself, which listens on 127.0.0.1:8080"),
        ],
    );
}

#[test]
fn the_effect_is_asked_for_in_three_lines() {
    let errors = read(&format!("\n{ROUTE}")).unwrap_err().to_string();
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 4, "{errors}");
    assert!(lines[0].starts_with("onced.toml:2:1: [[route]] \"orders\" has no `effect`."), "{errors}");
    for (line, effect) in lines[1..].iter().zip(["same-database", "idempotent", "external"]) {
        assert!(line.starts_with(&format!("  effect = \"{effect}\"")), "{errors}");
    }
}

#[test]
fn times_that_do_not_go_together() {
    check(
        &format!("{ROUTE}effect = \"external\"\n"),
        "",
        &[
            (
                "heartbeat = \"20s\"",
                "6:1",
                "heartbeat = \"20s\" is slower than a third of the lease (30s); write at most \"10s\"",
            ),
            ("lease = \"10s\"\nheartbeat = \"4s\"", "7:1", "write at most \"3s 333ms\""),
            ("lease = \"999ms\"", "6:1", "write at least \"1s\""),
            ("settle = \"59s\"", "6:1", "is less than twice the upstream timeout (30s); write at least \"1m\""),
            ("settle = \"60s\"\nupstream_timeout = \"45s\"", "6:1", "write at least \"1m 30s\""),
            ("upgraded_timeout = \"0s\"", "6:1", "is too short; write at least"),
            ("max_execution = \"29s\"", "6:1", "is shorter than the upstream timeout (30s); write at least \"30s\""),
            ("upstream_timeout = \"20min\"", "6:1", "write less, or beside it max_execution = \"20m\""),
            (
                "retention = \"1day\"\nretry_window = \"25h\"",
                "7:1",
                "is longer than the retention (1day); write at most \"1day\"",
            ),
            ("retention = \"0s\"", "6:1", "write at least \"1s\""),
            ("upstream_timeout = \"0s\"", "6:1", "is too short; write at least \"1ms\""),
        ],
    );
    check(
        "[defaults]\nheartbeat = \"9s\"\n",
        "effect = \"external\"\nlease = \"12s\"",
        &[(ROUTE, "2:1", "is slower than a third of the lease (12s in line 8); write at most \"4s\"")],
    );
    check(
        "[defaults]\n",
        &format!("{ROUTE}key = \"off\""),
        &[
            ("heartbeat = \"11s\"\n", "2:1", "is slower than a third of the lease (30s)"),
            ("name = \"a\"\n", "2:1", "[defaults] has no setting `name`; write it in a [[route]]"),
            ("effect = \"external\"\n", "2:1", "every [[route]] says its own"),
            ("on_unknown = \"retry\"\n", "2:1", "write effect = \"idempotent\" instead"),
        ],
    );
}

#[test]
fn the_edge_itself_is_fine() {
    let edge = "effect = \"external\"\nheartbeat = \"10s\"\nsettle = \"60s\"\nmax_execution = \"30s\"\nlease = \"30s\"\n\
                retention = \"1day\"\nretry_window = \"1day\"";
    assert_eq!(route(edge).settle, SECOND * 60);
    assert_eq!(route("effect = \"external\"\nlease = \"1s\"").lease.length, SECOND);
    // A default that goes with no built-in value may go with what every route says.
    let slow = route_with("[defaults]\nheartbeat = \"15s\"", "effect = \"external\"\nlease = \"45s\"");
    assert_eq!(slow.heartbeat, SECOND * 15);
}

#[test]
fn settings_that_contradict_the_effect() {
    check(
        ROUTE,
        "",
        &[
            ("effect = \"external\"\non_unknown = \"retry\"", "6:1", "write effect = \"idempotent\" instead"),
            ("effect = \"same-database\"\non_unknown = \"retry\"", "6:1", "write effect = \"idempotent\" instead"),
            ("effect = \"idempotent\"\non_unknown = \"hold\"", "6:1", "write effect = \"external\""),
            ("effect = \"external\"\ndownstream_window = \"1h\"", "6:1", "only with effect = \"idempotent\""),
            ("effect = \"idempotent\"\non_5xx = \"failed\"", "6:1", "only with effect = \"external\""),
            ("effect = \"same-database\"\nno_effect = [404]", "6:1", "only with effect = \"external\""),
        ],
    );
}

#[test]
fn keys_that_cannot_be_found() {
    check(
        &format!("{ROUTE}effect = \"external\"\n"),
        "",
        &[
            ("key = \"needed\"", "6:1", "write \"required\", \"optional\" or \"off\", or where the key comes from"),
            (
                "key = { from = \"provider\" }",
                "6:9",
                "is not in this version; write \"header\", \"pointer\" or \"agent\"",
            ),
            ("key = { from = \"composite\" }", "6:9", "is not in this version"),
            ("key = { from = \"hash\" }", "6:9", "is not in this version"),
            ("key = { from = \"heder\" }", "6:9", "did you mean \"header\"?"),
            ("key = { pointer = \"/id\" }", "6:1", "`key` has no `from`; add from = \"header\""),
            ("key = { from = \"header\", pointer = \"/id\" }", "6:26", "belongs to from = \"pointer\""),
            ("key = { from = \"header\", header = \"X Y\" }", "6:26", "is not the name of a header"),
            ("key = { from = \"header\", header = \"Authorization\" }", "6:26", "holds a credential"),
            ("key = { from = \"header\", header = \"Onced-Key\" }", "6:26", "name another one"),
            ("key = { from = \"header\", missing = \"ignore\" }", "6:26", "write \"refuse\" or \"pass\""),
            ("key = { from = \"pointer\" }", "6:1", "has no `pointer`; add pointer = \"/id\""),
            ("key = { from = \"pointer\", pointer = \"id\" }", "6:27", "write \"/\" before every name"),
            (
                "[route.key]\nfrom = \"agent\"\nstep = { header = \"X-S\" }\ntool = \"t\"",
                "6:8",
                "has no `conversation`; add",
            ),
            (
                "[route.key]\nfrom = \"agent\"\nconversation = \"X-C\"\nstep = { header = \"X-S\" }\ntool = \"t\"",
                "8:1",
                "write conversation = { header = \"X-…\" }",
            ),
            (
                "[route.key]\nfrom = \"agent\"\nconversation = { header = \"X-C\" }\nstep = { header = \"X-S\" }\ntool = \"t\"\n\
          within_step = \"by-arguments\"",
                "11:1",
                "write arguments = \"/arguments\"",
            ),
        ],
    );
}

#[test]
fn lists_and_sizes() {
    check(
        &format!("{ROUTE}effect = \"external\"\n"),
        "",
        &[
            ("methods = \"POST\"", "6:1", "is not a list; write methods = [\"POST\"]"),
            ("methods = []", "6:1", "take it out for all methods"),
            ("methods = [\n  \"POST\",\n  \"put\",\n]", "8:3", "write \"PUT\""),
            ("no_effect = [200]", "6:14", "is not a whole number from 400 to 599"),
            ("no_effect = [502]", "6:14", "proves nothing; take it out"),
            ("max_attempts = 0", "6:1", "is not a whole number from 1 to 1000000"),
            ("max_request_bytes = \"1 mib\"", "6:1", "such as \"512KiB\" or \"1MiB\""),
            ("max_request_bytes = 0", "6:1", "write \"1B\" to \"256MiB\""),
            ("max_response_bytes = \"1GiB\"", "6:1", "write \"0B\" to \"256MiB\""),
            ("store_headers = [\"X-Fine\", \"Set-Cookie\"]", "6:28", "is never replayed; take it out"),
            ("store_headers = [\"WWW-Authenticate\"]", "6:18", "is never replayed"),
            ("store_headers = [\"Date\"]", "6:18", "is never replayed"),
            ("store_headers = [\"Server\"]", "6:18", "is never replayed"),
            ("store_headers = [\"Transfer-Encoding\"]", "6:18", "is never replayed"),
            ("fingerprint = \"some\"", "6:1", "write \"all\", \"raw\" or \"none\""),
            ("fingerprint = { only = [] }", "6:17", "write fingerprint = \"none\""),
            ("fingerprint = { only = [\"id\"] }", "6:25", "is not a JSON pointer"),
            ("fingerprint = { only = [\"/a\"], ignore = [\"/b\"] }", "6:1", "says both"),
            ("mismatch = \"ignore\"", "6:1", "write \"reject\" or \"note\""),
            ("wait = 5", "6:1", "write it in quotes with its unit"),
            ("wait = \"61s\"", "6:1", "write at most \"1m\""),
            ("final = \"succes\"", "6:1", "did you mean \"success\"?"),
            ("on_5xx = \"fail\"", "6:1", "did you mean \"failed\"?"),
        ],
    );
}

#[test]
fn everything_wrong_is_told_at_once_in_the_order_of_the_file_and_without_secrets() {
    let text = format!(
        "listen = 1\n[store]\nurl = \"mysql://me:geheim@db\"\n[defaults]\nlease = \"x\"\n{ROUTE}heartbeat = \"1h\"\nleese = 1\n"
    );
    let errors = read(&text).unwrap_err();
    let lines: Vec<usize> = errors
        .list()
        .iter()
        .filter_map(|error| match &error.at {
            Position::Place { line, .. } => Some(*line),
            Position::File(_) | Position::Flags => None,
        })
        .collect();
    // The heartbeat is not held against a lease that could not be read.
    assert_eq!(lines, [1, 3, 5, 6, 11], "{errors}");
    assert!(!errors.to_string().contains("geheim"), "{errors}");
}

#[test]
fn wrong_flags_are_called_flags() {
    let refuse = |flags: Flags| Config::read("", "onced.toml", &flags, &MadeUp::default()).unwrap_err().to_string();
    let upstream = |url: &str| Flags { upstream: Some(url.to_owned()), ..Flags::default() };
    assert!(refuse(upstream("http://me:geheim@app")).starts_with("--upstream \"http://me:***@app\" has a user"));
    assert!(refuse(upstream("http://127.0.0.1:8080")).contains("is the gateway itself"));
    let store = Flags { store: Some("x://me:geheim@db".to_owned()), ..upstream("http://app:1") };
    assert!(refuse(store).starts_with("--store \"x://me:***@db\" is not the URL"));
    assert!(refuse(Flags { require_key: true, ..Flags::default() }).starts_with("--require-key is about an upstream"));
    let effect = Flags { effect: Some(Effect::External), ..Flags::default() };
    assert!(refuse(effect).starts_with("--effect external says"));
}

#[test]
fn a_file_that_says_nothing_or_is_not_there_is_refused() {
    assert!(read("").unwrap_err().to_string().starts_with("onced.toml: there is nothing to serve; add upstream = "));
    let errors = Config::load(Path::new("/nowhere/onced.toml")).unwrap_err().to_string();
    assert!(errors.starts_with("/nowhere/onced.toml: cannot be read ("), "{errors}");
}

#[test]
fn callers() {
    let effect = format!("{ROUTE}effect = \"external\"\n");
    check(
        &effect,
        "",
        &[
            ("tenant = \"bearer\"", "6:1", "does not say who calls; write \"none\""),
            ("tenant = { header = \"X-Tenant\" }", "6:1", "has no `from`; add from = \"bearer\""),
            ("tenant = { from = \"cookie\" }", "6:12", "is not known; write \"header\", \"bearer\" or \"jwt\""),
            ("tenant = { from = \"header\" }", "6:1", "has no `header`; add"),
            ("tenant = { from = \"jwt\" }", "6:1", "has no `claim`; add"),
            ("tenant = { from = \"bearer\", claim = \"sub\" }", "6:29", "belongs to from = \"jwt\"; take it out"),
            ("tenant = { from = \"bearer\", tokens = [] }", "6:29", "is empty, so that nobody could call"),
            ("tenant = { from = \"bearer\", tokens = [\"s3cret\"] }", "6:39", "a token is not written here"),
            ("tenant = { from = \"bearer\", tokens = [{ tenant = \"a\" }] }", "6:39", "must name one place"),
            (
                "tenant = { from = \"bearer\", tokens = [{ tenant = \"a\", env = \"UNSET\" }] }",
                "6:55",
                "is an environment variable that is not set",
            ),
            ("tenant = { from = \"bearer\", tokens = \"s3cret\" }", "6:29", "tokens is not a list"),
            (
                "tenant = { from = \"header\", header = \"Authorization\" }",
                "6:29",
                "holds a credential, and a tenant is stored and shown",
            ),
            ("rate_limit = 100", "6:1", "is no limit; write { requests = 100, per = \"1s\" }"),
            ("rate_limit = { per = \"1s\" }", "6:1", "has no `requests`; add"),
            ("rate_limit = { requests = 0 }", "6:16", "is not a whole number from 1"),
            ("rate_limit = { requests = 1, per = \"2days\" }", "6:1", "counts over more than a day"),
            ("rate_limit = { requests = 1, per = \"1day\", burst = 32 }", "6:1", "write a smaller burst"),
            ("key = \"off\"\nbody_syntax = \"json\"", "7:1", "this route has key = \"off\"; take it out"),
            ("key = \"off\"\nrate_limit = { requests = 1 }", "7:1", "this route has key = \"off\"; take it out"),
            ("key = \"off\"\nwait = \"1s\"", "7:1", "this route has key = \"off\"; take it out"),
            ("key = \"off\"\ncontract = \"stripe-v2\"", "7:1", "this route has key = \"off\"; take it out"),
            ("contract = \"stripe\"", "6:1", "is not known; write \"none\", \"stripe-v1\" or \"stripe-v2\""),
            ("contract = \"stripe-v2\"\nretry_window = \"32days\"", "7:1", "is longer than the retention"),
            ("body_syntax = \"xml\"", "6:1", "is not known; write \"any\" or \"json\""),
        ],
    );
    let long = "n".repeat(48);
    let text = format!(
        "[[route]]\nname = \"{long}\"\npath = \"/o\"\nupstream = \"http://app:1\"\neffect = \"external\"\ntenant = {{ from = \"bearer\" }}"
    );
    let errors = read(&text).unwrap_err().to_string();
    assert!(errors.contains("onced.toml:2:1: ") && errors.contains("at most 47 characters"), "{errors}");
    for tokens in [
        "[\"s3cret\"]",
        "\"s3cret\"",
        "{ acme = \"s3cret\" }",
        "[{ tenant = \"a\", token = \"s3cret\" }]",
        "[{ token = \"s3cret\" }]",
    ] {
        for from in ["bearer", "header"] {
            let written = format!("{effect}tenant = {{ from = \"{from}\", header = \"X-T\", tokens = {tokens} }}");
            let errors = read(&written).unwrap_err().to_string();
            assert!(!errors.contains("s3cret"), "{errors}");
        }
    }
}

#[test]
fn pages_of_other_origins() {
    check(
        &format!("{ROUTE}effect = \"external\"\n"),
        "",
        &[
            (
                "cors = true",
                "6:1",
                "does not say who may call; write { origins = [\"https://shop.example\"] } or \"none\"",
            ),
            ("cors = \"*\"", "6:1", "does not say who may call"),
            ("cors = { credentials = true }", "6:1", "has no `origins`; add origins = "),
            ("cors = { origin = [\"*\"], origins = [\"*\"] }", "6:10", "did you mean `origins`?"),
            ("cors = { origins = \"*\" }", "6:10", "is not a list; write origins = [\"https://shop.example\"]"),
            ("cors = { origins = [] }", "6:10", "is empty, so that nobody could call; write cors = \"none\""),
            (
                "cors = { origins = [\"*\"], credentials = true }",
                "6:27",
                "together with origins = [\"*\"]; name the origins",
            ),
            ("cors = { origins = [\"https://a.example\", \"*\"] }", "6:42", "means every origin"),
            ("cors = { origins = [\"shop.example\"] }", "6:21", "is not an origin; write scheme and host"),
            ("cors = { origins = [\"null\"] }", "6:21", "is not an origin"),
            ("cors = { origins = [\"https://müller.example\"] }", "6:21", "(xn--…)"),
            ("cors = { origins = [\"https://shop.example/\"] }", "6:21", "write \"https://shop.example\""),
            ("cors = { origins = [\"https://shop.example/cart\"] }", "6:21", "write \"https://shop.example\""),
            ("cors = { origins = [\"https://shop.example:443\"] }", "6:21", "write \"https://shop.example\""),
            ("cors = { origins = [\"http://Shop.example:80\"] }", "6:21", "write \"http://shop.example\""),
            ("cors = { origins = [\"https://me@shop.example\"] }", "6:21", "write \"https://shop.example\""),
            ("cors = { origins = [\"https://*.example\"] }", "6:21", "name each origin"),
            ("cors = { origins = [\"*\"], credentials = \"yes\" }", "6:27", "is neither true nor false"),
            ("cors = { origins = [\"*\"], headers = [\"X Y\"] }", "6:38", "is not the name of a header"),
            ("cors = { origins = [\"*\"], headers = [\"*\"] }", "6:38", "name each header"),
            ("cors = { origins = [\"*\"], max_age = 600 }", "6:27", "write it in quotes with its unit"),
            ("cors = { origins = [\"*\"], max_age = \"25h\" }", "6:27", "write at most \"1day\""),
        ],
    );
}

#[test]
fn one_token_belongs_to_one_tenant() {
    let outside = MadeUp { variables: [("A", "same"), ("B", "same ")].into(), ..MadeUp::default() };
    let tokens = "[{ tenant = \"a\", env = \"A\" }, { tenant = \"b\", env = \"B\" }]";
    let text = format!("{ROUTE}effect = \"external\"\ntenant = {{ from = \"bearer\", tokens = {tokens} }}");
    let errors = read_in(&outside, &text).unwrap_err().to_string();
    assert!(errors.contains("holds the same token as one before it") && !errors.contains("same \""), "{errors}");
}
