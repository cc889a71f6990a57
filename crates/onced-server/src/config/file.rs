//! Reads the file: its top, `[store]`, `[sweep]`, `[log]`, and the routes, with the flags before all of it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onced_core::key::Scope;
use toml::de::DeTable;

use super::defaults as d;
use super::document::{Document, Entry, Section};
use super::flags::Flags;
use super::key_rule::{KeyRule, KeySource, Missing};
use super::outside;
use super::path::normalise;
use super::read_route;
use super::route::Route;
use super::settings::Place;
use super::store_url::{Backend, StoreUrl, redact_url};
use super::upstream::Upstream;
use super::values::Layers;
use super::{ClientsConfig, Config, LogConfig, LogFormat, LogLevel, StoreConfig, SweepConfig};
use onced::store::Pooler;
use onced::store::deliveries::LogDeliveries;
use onced_core::failure::Effect;

/// Reads the configuration. Whatever is wrong is noted in the document, and then `None` or stand-ins come back.
pub(super) fn read<'a>(document: &'a Document<'a>, root: &'a DeTable<'a>, flags: &Flags) -> Option<Config> {
    let top = Section::new(document, "the top of the file", 0, &[Place::Top], root);
    top.refuse_unknown();
    let tick = outside::tick(document.outside);
    let layers = Layers { own: Some(&top), defaults: None };
    let listen = layers.read("listen", d::LISTEN, read_listen);
    let own_prefix = layers.read("own_prefix", d::OWN_PREFIX.to_owned(), read_own_prefix).value;
    let shutdown_grace = layers.read("shutdown_grace", d::SHUTDOWN_GRACE, |e| e.duration(Duration::ZERO)).value;
    let clients = read_clients(table(document, root, "clients", &[Place::Clients]).as_ref());
    let store = read_store(document, table(document, root, "store", &[Place::Store]).as_ref(), flags);
    let sweep = read_sweep(table(document, root, "sweep", &[Place::Sweep]).as_ref(), tick);
    let log = read_log(table(document, root, "log", &[Place::Log]).as_ref());
    let defaults = table(document, root, "defaults", &[Place::Defaults]);
    if let Some(defaults) = &defaults {
        read_route::check_defaults(defaults, tick);
    }
    let default_route = read_default_route(document, &layers, defaults.as_ref(), flags, tick);
    let listen = flags.listen.unwrap_or(listen.value);
    let routes = read_routes(document, root, defaults.as_ref(), &own_prefix, listen, tick);
    if default_route.is_none() && routes.is_empty() && document.is_sound() {
        document.refuse_file(
            "there is nothing to serve; add upstream = \"http://127.0.0.1:3000\" at its top, or a [[route]]",
        );
    }
    if default_route.as_ref().is_some_and(|route| is_itself(&route.upstream, listen)) {
        match (&flags.upstream, top.get("upstream")) {
            (None, Some(entry)) => entry.refuse(itself(listen)),
            (Some(flag), _) => document.refuse_flag(format!("--upstream \"{}\" {}", redact_url(flag), itself(listen))),
            (None, None) => {}
        }
    }
    let store = store?;
    Some(Config { listen, clients, store, own_prefix, shutdown_grace, sweep, log, default_route, routes, tick })
}

/// A section of the file.
fn table<'a>(
    document: &'a Document<'a>,
    root: &'a DeTable<'a>,
    name: &'static str,
    places: &'static [Place],
) -> Option<Section<'a>> {
    let (key, value) = root.get_key_value(name)?;
    let Some(table) = value.get_ref().as_table() else {
        document.refuse(key.span().start, format!("`{name}` is a section; write [{name}], and its settings below"));
        return None;
    };
    Some(Section::new(document, format!("[{name}]"), value.span().start, places, table))
}

fn read_listen(entry: &Entry<'_>) -> Option<SocketAddr> {
    let address = entry.text("127.0.0.1:8080")?.parse().ok();
    if address.is_none() {
        entry.refuse("is not an address and a port; write \"127.0.0.1:8080\", \"0.0.0.0:8080\" or \"[::]:8080\"");
    }
    address
}

fn read_own_prefix(entry: &Entry<'_>) -> Option<String> {
    let text = entry.text(d::OWN_PREFIX)?;
    let plain = text.len() > 2 && text.starts_with('/') && text.ends_with('/') && normalise(text) == text;
    if !plain || text.contains(['?', '#', '*']) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        entry.refuse("is not the beginning of a path with a slash at both ends; write \"/_onced/\"");
        return None;
    }
    Some(text.to_owned())
}

fn read_clients(section: Option<&Section<'_>>) -> ClientsConfig {
    if let Some(section) = section {
        section.refuse_unknown();
    }
    let layers = Layers { own: section, defaults: None };
    let time = |name, default| layers.read(name, default, |entry| entry.duration(Duration::from_millis(1))).value;
    let number = |name, default| {
        let most = layers.read(name, default, |entry| entry.number(1..=1_000_000)).value;
        usize::try_from(most).unwrap_or(usize::MAX)
    };
    let head = layers.read("max_head_bytes", d::MAX_HEAD_BYTES, |entry| entry.bytes(8 << 10..=1 << 20)).value;
    ClientsConfig {
        max_connections: number("max_connections", d::MAX_CLIENTS),
        max_passed: number("max_passed", d::MAX_PASSED),
        head_timeout: time("head_timeout", d::HEAD_TIMEOUT),
        body_timeout: time("body_timeout", d::BODY_TIMEOUT),
        write_timeout: time("write_timeout", d::WRITE_TIMEOUT),
        max_head_bytes: usize::try_from(head).unwrap_or(usize::MAX),
    }
}

fn read_store(document: &Document<'_>, section: Option<&Section<'_>>, flags: &Flags) -> Option<StoreConfig> {
    if let Some(section) = section {
        section.refuse_unknown();
    }
    let layers = Layers { own: section, defaults: None };
    let url = match (&flags.store, layers.get("url")) {
        (Some(flag), _) => StoreUrl::parse(flag)
            .map_err(|message| document.refuse_flag(format!("--store \"{}\" {message}", redact_url(flag))))
            .ok(),
        (None, Some(entry)) => read_url(&entry),
        (None, None) => StoreUrl::parse(d::STORE_URL).ok(),
    };
    let schema = layers.read("schema", d::SCHEMA.to_owned(), read_schema).value;
    let max_connections = layers.read("max_connections", d::MAX_CONNECTIONS, |entry| entry.number(1..=1000)).value;
    let busy_timeout = layers.read("busy_timeout", d::BUSY_TIMEOUT, |entry| entry.duration(Duration::ZERO)).value;
    let log_deliveries = layers.read("log_deliveries", LogDeliveries::All, Entry::word).value;
    let replay_memory = layers.read("replay_memory", d::REPLAY_MEMORY, |entry| entry.bytes(0..=1 << 30)).value;
    let pooler = layers.read("pooler", Pooler::None, Entry::word);
    if let (Some(entry), Some(url), Pooler::Transaction) = (pooler.entry, &url, pooler.value)
        && url.backend() != Backend::Postgres
    {
        entry.refuse("is about PostgreSQL, and the ledger is another database; leave it out");
    }
    let pooler = pooler.value;
    let allow_weak_durability = layers.read("allow_weak_durability", d::ALLOW_WEAK_DURABILITY, Entry::switch).value;
    Some(StoreConfig {
        url: url?,
        schema,
        max_connections,
        busy_timeout,
        log_deliveries,
        replay_memory,
        pooler,
        allow_weak_durability,
    })
}

/// The URL as text, or from where it is kept.
fn read_url(entry: &Entry<'_>) -> Option<StoreUrl> {
    if let Some(text) = entry.value.as_str() {
        return StoreUrl::parse(text).map_err(|message| entry.refuse(message)).ok();
    }
    let right = "write url = \"sqlite:onced.db\", url = { env = \"NAME\" } or url = { file = \"PATH\" }";
    let Some(section) = entry.section(&[Place::StoreUrl]) else {
        entry.refuse(format!("is not text; {right}"));
        return None;
    };
    section.refuse_unknown();
    let (source, text) = outside::kept(entry, &section, right)?;
    StoreUrl::parse(&text).map_err(|message| source.refuse(format!("holds a text that {message}"))).ok()
}

fn read_schema(entry: &Entry<'_>) -> Option<String> {
    let text = entry.text(d::SCHEMA)?;
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let all = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if !first || !all || text.len() > 63 || text.starts_with("pg_") {
        entry.refuse("is not a plain name of a schema; write \"onced\", or another of a-z, 0-9 and _, without \"pg_\"");
        return None;
    }
    Some(text.to_owned())
}

fn read_sweep(section: Option<&Section<'_>>, tick: Duration) -> SweepConfig {
    if let Some(section) = section {
        section.refuse_unknown();
    }
    let layers = Layers { own: section, defaults: None };
    let read_every = |entry: &Entry<'_>| match entry.value.as_str() {
        Some("off") => Some(None),
        Some(_) | None => entry.duration(tick).map(Some),
    };
    SweepConfig {
        every: layers.read("every", Some(d::SWEEP_EVERY), read_every).value,
        keep_deliveries: layers
            .read("keep_deliveries", d::KEEP_DELIVERIES, |entry| entry.duration(Duration::ZERO))
            .value,
    }
}

fn read_log(section: Option<&Section<'_>>) -> LogConfig {
    if let Some(section) = section {
        section.refuse_unknown();
    }
    let layers = Layers { own: section, defaults: None };
    LogConfig {
        format: layers.read("format", LogFormat::Text, Entry::word).value,
        level: layers.read("level", LogLevel::Info, Entry::word).value,
    }
}

/// The route of what matches no other: from the file's `upstream`, or from the flags.
fn read_default_route(
    document: &Document<'_>,
    top: &Layers<'_, '_>,
    defaults: Option<&Section<'_>>,
    flags: &Flags,
    tick: Duration,
) -> Option<Route> {
    let written = top.get("upstream");
    let upstream = match (&flags.upstream, written) {
        (Some(flag), _) => Upstream::parse(flag)
            .map_err(|message| document.refuse_flag(format!("--upstream \"{}\" {message}", redact_url(flag))))
            .ok()?,
        (None, Some(entry)) => read_route::read_upstream(&entry)?,
        (None, None) => {
            if let Some(effect) = flags.effect {
                document.refuse_flag(format!(
                    "--effect {effect} says what an upstream does, and there is none for it; add --upstream \
                     http://127.0.0.1:3000, or write `effect` in the [[route]]"
                ));
            }
            if flags.require_key {
                document.refuse_flag(
                    "--require-key is about an upstream, and there is none for it; add --upstream \
                     http://127.0.0.1:3000, or write key = \"required\" in the [[route]]",
                );
            }
            return None;
        }
    };
    let mut route = read_route::default_route(defaults, upstream, flags.effect.unwrap_or(Effect::External), tick)?;
    if flags.require_key {
        match route.key.source {
            KeySource::Off => route.key = KeyRule::standard(Missing::Refuse),
            KeySource::Header { .. } | KeySource::Pointer(_) | KeySource::Agent(_) => {
                route.key.missing = Missing::Refuse;
            }
        }
    }
    Some(route)
}

fn read_routes<'a>(
    document: &'a Document<'a>,
    root: &'a DeTable<'a>,
    defaults: Option<&Section<'_>>,
    own_prefix: &str,
    listen: SocketAddr,
    tick: Duration,
) -> Vec<Route> {
    let Some((key, value)) = root.get_key_value("route") else { return Vec::new() };
    let tables = value.get_ref().as_array().filter(|array| array.iter().all(|table| table.get_ref().is_table()));
    let Some(tables) = tables else {
        document.refuse(key.span().start, "`route` is a list of sections; write [[route]], with two brackets");
        return Vec::new();
    };
    let mut names: Vec<(Scope, usize)> = Vec::new();
    let mut routes = Vec::new();
    for (number, table) in (1..).zip(tables.iter()) {
        let Some(content) = table.get_ref().as_table() else { continue };
        let places = &[Place::Route, Place::Defaults];
        let section = Section::new(document, read_route::title(content, number), table.span().start, places, content);
        let Some(route) = read_route::read(&section, defaults, own_prefix, tick) else { continue };
        if let (Some((_, line)), Some(entry)) =
            (names.iter().find(|(name, _)| *name == route.name), section.get("name"))
        {
            entry.refuse(format!(
                "is taken by the route in line {line}; write another name: two routes would share keys"
            ));
        }
        if let Some(entry) = section.get("upstream").filter(|_| is_itself(&route.upstream, listen)) {
            entry.refuse(itself(listen));
        }
        names.push((route.name.clone(), document.line(section.at)));
        routes.push(route);
    }
    routes
}

fn itself(listen: SocketAddr) -> String {
    format!("is the gateway itself, which listens on {listen}; write the address of the app behind it")
}

/// Whether requests to that upstream would come back.
fn is_itself(upstream: &Upstream, listen: SocketAddr) -> bool {
    let Some((host, port)) = upstream.host_and_port() else { return false };
    let is_here = match host.parse::<IpAddr>() {
        Ok(ip) => ip == listen.ip() || (listen.ip().is_unspecified() && ip.is_loopback()),
        Err(_) => host.eq_ignore_ascii_case("localhost") && (listen.ip().is_loopback() || listen.ip().is_unspecified()),
    };
    is_here && port == listen.port()
}
