//! The table of every setting: where it stands, its default, what it means. Unknown names are refused by it, the
//! reference page is made from it, and a test holds the example file against it.

use std::fmt::Write as _;
use std::time::Duration;

use super::defaults as d;
use super::values::{shown, shown_bytes};

/// The part of the file that a setting stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Before the first section.
    Top,
    /// `[clients]`
    Clients,
    /// `[store]`
    Store,
    /// `url = { … }`
    StoreUrl,
    /// `[sweep]`
    Sweep,
    /// `[log]`
    Log,
    /// Only in a `[[route]]`.
    Route,
    /// In a `[[route]]`, or in `[defaults]` for all of them.
    Defaults,
    /// `key = { … }`
    Key,
    /// `fingerprint = { … }`
    Fingerprint,
    /// `conversation = { … }`, `step = { … }`, `tool = { … }`
    Part,
    /// `tenant = { … }`
    Tenant,
    /// An element of `tokens = [ … ]`
    Token,
    /// `cors = { … }`
    Cors,
    /// `rate_limit = { … }`
    RateLimit,
}

impl Place {
    const ALL: [Self; 15] = [
        Self::Top,
        Self::Clients,
        Self::Store,
        Self::StoreUrl,
        Self::Sweep,
        Self::Log,
        Self::Route,
        Self::Defaults,
        Self::Key,
        Self::Fingerprint,
        Self::Part,
        Self::Tenant,
        Self::Token,
        Self::Cors,
        Self::RateLimit,
    ];

    /// How messages and the reference call it.
    fn title(self) -> &'static str {
        match self {
            Self::Top => "at the top of the file",
            Self::Clients => "in [clients]",
            Self::Store => "in [store]",
            Self::StoreUrl => "in `url = { … }`",
            Self::Sweep => "in [sweep]",
            Self::Log => "in [log]",
            Self::Route => "in a [[route]]",
            Self::Defaults => "in [defaults] or a [[route]]",
            Self::Key => "in `key = { … }`",
            Self::Fingerprint => "in `fingerprint = { … }`",
            Self::Part => "in `conversation`, `step` or `tool` of an agent's key",
            Self::Tenant => "in `tenant = { … }`",
            Self::Token => "in an element of `tokens`",
            Self::Cors => "in `cors = { … }`",
            Self::RateLimit => "in `rate_limit = { … }`",
        }
    }
}

/// The sections of the file, which are not settings themselves.
pub(crate) const TABLES: [&str; 6] = ["clients", "store", "sweep", "log", "defaults", "route"];

/// One setting.
pub(crate) struct Setting {
    pub(crate) place: Place,
    pub(crate) name: &'static str,
    pub(crate) default: Standard,
    pub(crate) meaning: &'static str,
}

/// What holds where a setting is not written.
pub(crate) enum Standard {
    /// It must be written.
    Required,
    /// Nothing.
    Nothing,
    /// This very text of the file.
    Text(&'static str),
    /// A text in quotes.
    Word(&'static str),
    /// A duration.
    Time(Duration),
    /// A size.
    Bytes(u64),
    /// A number.
    Number(u32),
    /// It follows from other settings, in these words.
    Follows(&'static str),
}

impl Standard {
    /// As the reference shows it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Required => "required".to_owned(),
            Self::Nothing => "none".to_owned(),
            Self::Text(text) => format!("`{text}`"),
            Self::Word(word) => format!("`\"{word}\"`"),
            Self::Time(duration) => format!("`\"{}\"`", shown(*duration)),
            Self::Bytes(bytes) => format!("`\"{}\"`", shown_bytes(*bytes)),
            Self::Number(number) => format!("`{number}`"),
            Self::Follows(words) => (*words).to_owned(),
        }
    }
}

const fn setting(place: Place, name: &'static str, default: Standard, meaning: &'static str) -> Setting {
    Setting { place, name, default, meaning }
}

use Place::{
    Clients, Cors, Defaults, Fingerprint, Key, Log, Part, RateLimit, Route, Store, StoreUrl, Sweep, Tenant, Token, Top,
};
use Standard::{Bytes, Follows, Nothing, Number, Required, Text, Time, Word};

/// Every setting, in the order of the reference.
#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    setting(Top, "listen", Word("127.0.0.1:8080"), "Address and port to listen on."),
    setting(Top, "upstream", Nothing, "Where a request goes that matches no route: its scope is `http`, its key optional, its effect `external`. Without it such a request gets 404."),
    setting(Top, "own_prefix", Word(d::OWN_PREFIX), "Where the gateway's own endpoints live."),
    setting(Top, "shutdown_grace", Time(d::SHUTDOWN_GRACE), "How long running requests may take to finish once the gateway is told to stop."),
    setting(Clients, "max_connections", Number(d::MAX_CLIENTS), "How many clients are connected at most; others wait until one leaves. Each takes up to two of the process's open files. As many requests with a key are read, executed or answered at once, also of clients that have hung up."),
    setting(Clients, "max_passed", Number(d::MAX_PASSED), "How many requests pass unguarded at once (safe methods, and whatever has no key), until their answers have ended, upgraded connections until they have; others wait for `body_timeout` at most and then get 503."),
    setting(Clients, "head_timeout", Time(d::HEAD_TIMEOUT), "How long a connection may be without a request: none comes, or its head does not end. After that it is closed."),
    setting(Clients, "body_timeout", Time(d::BODY_TIMEOUT), "How long the body of a request with a key may take to arrive; after that the answer is 408."),
    setting(Clients, "write_timeout", Time(d::WRITE_TIMEOUT), "How long a client may take nothing of what is sent to it; after that its connection is closed. Over HTTP/2 an answer of which nothing is taken for so long is given up, and the others go on."),
    setting(Clients, "max_head_bytes", Bytes(d::MAX_HEAD_BYTES), "The largest head of a request, at least 8 KiB and at most 1 MiB; a larger one gets 431. It has 100 headers at most."),
    setting(Store, "url", Word(d::STORE_URL), "The database of the ledger: `sqlite:FILE`, `postgres://…`, or `mysql://…` for MariaDB; or where to read that from, `{ env = … }` or `{ file = … }`."),
    setting(Store, "schema", Word(d::SCHEMA), "PostgreSQL: the schema of the tables."),
    setting(Store, "max_connections", Number(d::MAX_CONNECTIONS), "How many connections the gateway opens at most."),
    setting(Store, "busy_timeout", Time(d::BUSY_TIMEOUT), "How long a statement waits for the database's lock or for a free connection."),
    setting(Store, "log_deliveries", Word("all"), "Which deliveries are written down: `all`, `executed` or `off`."),
    setting(Store, "replay_memory", Bytes(d::REPLAY_MEMORY), "How much memory is kept for outcomes that were lately replayed, so that a storm of retries does not ask the database each time; 0: none. An outcome is answered with for a minute at most before its record is read again."),
    setting(Store, "pooler", Word("none"), "PostgreSQL: what stands before the server. `transaction`: a pooler that lends a server's connection for one transaction (PgBouncer: `pool_mode = transaction`). Each statement is then a transaction of its own, and no outcome is answered with from memory. Without this setting the gateway does not start behind one. `none`: nothing, or a pooler that lends for a session."),
    setting(Store, "allow_weak_durability", Text("false"), "Start although the database may lose commits in a power failure."),
    setting(StoreUrl, "env", Nothing, "The environment variable that holds the URL."),
    setting(StoreUrl, "file", Nothing, "The file that holds the URL."),
    setting(Sweep, "every", Time(d::SWEEP_EVERY), "How often the gateway deletes keys that have finished and expired, and old lines of the log of deliveries; `off`: never, `onced sweep` does it."),
    setting(Sweep, "keep_deliveries", Time(d::KEEP_DELIVERIES), "How long lines of the log of deliveries are kept; those of an unfinished key stay as long as it is."),
    setting(Log, "format", Word("text"), "`text` for people, `json` for machines."),
    setting(Log, "level", Word("info"), "`error`, `warn`, `info`, `debug` or `trace`."),
    setting(Route, "name", Required, "The scope of the route's keys. A key is unique within it; renaming a route forgets its keys."),
    setting(Route, "path", Required, "`/api/order` is that path alone, `/api/order/*` every path that begins with `/api/order/`. An exact path goes before a longer beginning, that before a shorter one."),
    setting(Route, "upstream", Required, "Where the route's requests go: `http://host:port`, `https://host:port` or `unix:/path/of.sock`."),
    setting(Route, "effect", Required, "What the upstream does: `same-database`, `idempotent` or `external`."),
    setting(Defaults, "observe", Text("false"), "Everything is decided and recorded, and nothing is withheld: what would have been stopped is forwarded as it came. Nothing is protected."),
    setting(Defaults, "upstream_http", Word("auto"), "Which HTTP is spoken to the upstream: `1.1`, `2`, or `auto`: with TLS what the upstream chooses, else 1.1."),
    setting(Defaults, "upstream_ca", Follows("what the machine trusts"), "A PEM file with the certificates that an `https` upstream's is checked against, instead of those that the machine trusts."),
    setting(Defaults, "upstream_keep_alive", Time(d::UPSTREAM_KEEP_ALIVE), "How long a connection to the upstream is kept for the next request; `0s` for not at all. A request with a key to an `external` upstream always gets a new one."),
    setting(Defaults, "contract", Word("none"), "Whose habits clients expect: `stripe-v1` (`final = \"everything\"`), `stripe-v2` (`final = \"success\"`, `retention = \"31days\"`, `methods = [\"POST\", \"DELETE\"]`). What the route writes itself goes before its contract, that before [defaults], that before a contract in [defaults]."),
    setting(Defaults, "tenant", Word("none"), "Whose keys these are: `none` (all callers share them), or `{ from = … }`. A caller without a tenant gets 401."),
    setting(Defaults, "cors", Word("none"), "Which pages of other origins may call the route from a browser: `none` (the upstream says so itself), or `{ origins = … }`: then the gateway answers preflights, and the upstream's `Access-Control-*` are taken out."),
    setting(Defaults, "rate_limit", Word("none"), "How often one caller may send: `{ requests = …, per = … }`. Over it the answer is 429. Callers are told apart by `tenant`; without one all are one caller."),
    setting(Defaults, "body_syntax", Word("any"), "`json`: a request with a key whose body is not JSON (RFC 8259) gets 400, whatever its media type says."),
    setting(Defaults, "methods", Nothing, "The methods that the route is for; all where it is not written. `GET`, `HEAD`, `OPTIONS` and `TRACE` pass through without a key."),
    setting(Defaults, "key", Word("required"), "Where the key comes from: `required` or `optional` (the header `Idempotency-Key`), `off`, or `{ from = … }`."),
    setting(Defaults, "fingerprint", Follows("`\"all\"`; for an agent's key with `arguments`, those"), "What of the body tells two requests apart: `all`, `raw`, `none`, `{ only = … }` or `{ ignore = … }`."),
    setting(Defaults, "mismatch", Word("reject"), "A known key with another request: `reject` answers 422, `note` logs it and goes on as if it were the same."),
    setting(Defaults, "wait", Time(d::WAIT), "How long a duplicate of a running request waits for its outcome before it gets 409; a minute at most. `Prefer: wait=N` of a request goes before it. At most half of `[clients] max_connections` wait at once; the next gets its 409 at once."),
    setting(Defaults, "final", Word("default"), "Which answers are the outcome: `default` (2xx, 3xx and most 4xx), `everything`, `success` (2xx only)."),
    setting(Defaults, "on_5xx", Word("unknown"), "`external` only. `failed` states that the upstream rolls everything back whenever it answers 5xx (502 and 504 excepted)."),
    setting(Defaults, "no_effect", Text("[401, 403, 407, 425, 429]"), "`external` only. Statuses by which the upstream says that it did nothing."),
    setting(Defaults, "on_unknown", Follows("`\"reconcile\"`; `\"retry\"` where the effect is `idempotent`"), "What happens to an unknown outcome: `reconcile` or `hold`. Without a probe both are held for a person."),
    setting(Defaults, "max_attempts", Number(d::MAX_ATTEMPTS), "How often execution may begin under one key."),
    setting(Defaults, "lease", Time(d::LEASE), "How long an attempt is presumed alive without a heartbeat; at least 1 s."),
    setting(Defaults, "heartbeat", Follows("a third of the lease"), "How often a running attempt renews its lease; at most a third of it."),
    setting(Defaults, "upstream_timeout", Time(d::UPSTREAM_TIMEOUT), "How long the upstream may take to answer."),
    setting(Defaults, "connect_timeout", Time(d::CONNECT_TIMEOUT), "How long connecting to the upstream may take."),
    setting(Defaults, "upgraded_timeout", Time(d::UPGRADED_TIMEOUT), "How long an upgraded connection (a WebSocket) may be silent in both directions; after that it is closed."),
    setting(Defaults, "max_execution", Time(d::MAX_EXECUTION), "How long an attempt's lease is renewed at most; at least the upstream timeout."),
    setting(Defaults, "settle", Follows("60 s or twice the upstream timeout, whichever is more"), "How long after an unclear call \"it did not happen\" is first believed; at least twice the upstream timeout."),
    setting(Defaults, "retention", Time(d::RETENTION), "How long a key and its outcome are kept."),
    setting(Defaults, "retry_window", Follows("half the retention"), "How long an outcome is kept at least after it was stored; at most the retention."),
    setting(Defaults, "downstream_window", Time(d::DOWNSTREAM_WINDOW), "`idempotent` only. How long the upstream remembers a key; after that nothing is sent again."),
    setting(Defaults, "max_request_bytes", Bytes(d::MAX_REQUEST_BYTES), "The largest request body; a larger one gets 413."),
    setting(Defaults, "max_response_bytes", Bytes(d::MAX_RESPONSE_BYTES), "The largest answer body that is stored; a larger one reaches its first caller only."),
    setting(Defaults, "store_headers", Text("[]"), "Headers of the answer that are stored and replayed beside the usual ones."),
    setting(Key, "from", Required, "`header`, `pointer` or `agent`."),
    setting(Key, "missing", Word("refuse"), "A request without a key: `refuse` answers 400, `pass` forwards it unprotected."),
    setting(Key, "header", Word("Idempotency-Key"), "`from = \"header\"`: the header that holds the key."),
    setting(Key, "pointer", Nothing, "`from = \"pointer\"`: where in the JSON body the key is, `/id`."),
    setting(Key, "conversation", Nothing, "`from = \"agent\"`: where the run or conversation is named, `{ header = … }` or `{ pointer = … }`."),
    setting(Key, "step", Nothing, "`from = \"agent\"`: where the step within it is named, likewise."),
    setting(Key, "tool", Nothing, "`from = \"agent\"`: the tool's name as text, or where it is named."),
    setting(Key, "arguments", Nothing, "`from = \"agent\"`: where in the JSON body the arguments are, `/arguments`."),
    setting(Key, "within_step", Word("one-per-tool"), "`from = \"agent\"`: `one-per-tool` (other arguments under the same step are refused) or `by-arguments` (they are another call)."),
    setting(Fingerprint, "only", Nothing, "JSON pointers: nothing else of the body counts."),
    setting(Fingerprint, "ignore", Nothing, "JSON pointers: everything else of the body counts."),
    setting(Part, "header", Nothing, "The header that holds it."),
    setting(Part, "pointer", Nothing, "Where it is in the JSON body."),
    setting(Tenant, "from", Required, "`header` (set by a trusted proxy), `bearer` (the caller's token) or `jwt` (a claim of a JWT that something in front has verified; it is not verified here)."),
    setting(Tenant, "header", Follows("`\"Authorization\"` where `from = \"jwt\"`"), "The header that names the tenant, or that holds the JWT."),
    setting(Tenant, "tokens", Nothing, "`from = \"bearer\"`: the tokens that are known, `[{ tenant = …, env = … }]`. Without the list every token is a tenant of its own, by its hash: not for tokens that change between a request and its retry."),
    setting(Tenant, "claim", Nothing, "`from = \"jwt\"`: the claim that names the tenant."),
    setting(Token, "tenant", Required, "Whose token it is."),
    setting(Token, "env", Nothing, "The environment variable that holds the token."),
    setting(Token, "file", Nothing, "The file that holds the token."),
    setting(Cors, "origins", Required, "The origins as browsers write them, `[\"https://shop.example\"]`; `[\"*\"]` for all."),
    setting(Cors, "credentials", Text("false"), "Whether browsers may send cookies and the like; not with `origins = [\"*\"]`."),
    setting(Cors, "headers", Text("[]"), "Request headers that pages may send beside `Content-Type`, `Authorization`, `Prefer`, `Idempotency-Key` and those that the key is made from."),
    setting(Cors, "max_age", Time(d::CORS_MAX_AGE), "How long a browser may remember what a preflight has said; a day at most."),
    setting(RateLimit, "requests", Required, "How many requests."),
    setting(RateLimit, "per", Time(d::RATE_PER), "In how much time; a day at most."),
    setting(RateLimit, "burst", Follows("`requests`"), "How many at once."),
];

/// Words of later versions, with what to do until then.
const LATER: [(&str, &str); 2] = [
    ("reconcile_url", "an unknown outcome is held for a person"),
    ("public_url", "signatures are not verified in this version"),
];

/// The setting of that name in one of these places.
pub(crate) fn find(places: &[Place], name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name && places.contains(&setting.place))
}

/// What to write instead of a name that does not belong in these places.
pub(crate) fn advice_for_unknown(places: &[Place], name: &str) -> String {
    let here = || SETTINGS.iter().filter(|s| places.contains(&s.place)).map(|s| s.name);
    if let Some((_, until_then)) = LATER.iter().find(|(later, _)| *later == name) {
        return format!("it is not in this version; {until_then}");
    }
    if name == "effect" {
        let rest = "for what matches no route, write one with path = \"/*\", or use --effect";
        return format!("what an upstream does has no default, and every [[route]] says its own; {rest}");
    }
    if let Some(elsewhere) = SETTINGS.iter().find(|setting| setting.name == name) {
        return format!("write it {}", elsewhere.place.title());
    }
    let tables = TABLES.into_iter().filter(|_| places.contains(&Place::Top));
    match nearest(name, here().chain(tables)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write one of {}", here().collect::<Vec<_>>().join(", ")),
    }
}

/// The known word that was probably meant, if one is near enough.
pub(crate) fn nearest<'w>(written: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let plain = written.to_lowercase().replace('-', "_");
    known
        .map(|word| (distance(&plain, &word.replace('-', "_")), word))
        .filter(|(far, word)| *far <= (word.len() / 3).max(1))
        .min_by_key(|(far, _)| *far)
        .map(|(_, word)| word)
}

/// How many characters must be changed, added or dropped to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, in_a) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((in_b, diagonal), above) in b.iter().zip(&row).zip(row.iter().skip(1)) {
            let left = next.last().copied().unwrap_or(0);
            next.push((diagonal + usize::from(in_a != *in_b)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

/// Every setting with its default, as the Markdown tables of the reference.
pub(crate) fn reference_table() -> String {
    let mut page = String::new();
    for place in Place::ALL {
        // Writing to a String cannot fail.
        let _ = write!(page, "### {}\n\n| setting | default | meaning |\n| --- | --- | --- |\n", capitalised(place));
        for setting in SETTINGS.iter().filter(|setting| setting.place == place) {
            let _ = writeln!(page, "| `{}` | {} | {} |", setting.name, setting.default.shown(), setting.meaning);
        }
        page.push('\n');
    }
    // One empty line between the tables, none at the end.
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn capitalised(place: Place) -> String {
    let title = place.title();
    let (first, rest) = title.split_at_checked(1).unwrap_or((title, ""));
    format!("{}{rest}", first.to_uppercase())
}
