//! The example file parses, shows every setting with its true default, and the reference lists them all.

use std::collections::BTreeSet;

use super::super::document::Document;
use super::super::settings::{Place, SETTINGS, Setting, Standard};
use super::*;

const EXAMPLE: &str = include_str!("../../../../../onced.example.toml");

/// The example with every setting in force that it shows behind a `#` and without a space.
fn with_everything_in_force() -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(shown) if shown.starts_with(|first: char| first.is_ascii_lowercase()) => format!("{shown}\n"),
        Some(_) | None => format!("{line}\n"),
    };
    EXAMPLE.lines().map(line).collect()
}

#[test]
fn the_example_has_one_route_of_each_kind() {
    let config = read(EXAMPLE).unwrap_or_else(|errors| panic!("{errors}"));
    for effect in [Effect::SameDatabase, Effect::Idempotent, Effect::External] {
        assert!(config.routes.iter().any(|route| route.is_keyed() && route.effect == effect), "{effect}");
    }
    let count = |is: fn(&KeySource) -> bool| config.routes.iter().filter(|route| is(&route.key.source)).count();
    assert_eq!(count(|source| matches!(source, KeySource::Off)), 1);
    assert_eq!(count(|source| matches!(source, KeySource::Agent(_))), 1);
    assert_eq!(count(|source| matches!(source, KeySource::Pointer(_))), 1);
    assert_eq!(count(|source| matches!(source, KeySource::Header { name } if name == "x-shopify-webhook-id")), 1);
    assert!(config.routes.iter().any(|route| route.key == KeyRule::standard(Missing::Pass)));
    assert!(config.routes.iter().all(|route| route.upstream.to_string() == "http://127.0.0.1:3000"));
}

#[test]
fn the_defaults_that_the_example_shows_are_the_true_ones() {
    let plain = read(EXAMPLE).unwrap();
    let shown = read(&with_everything_in_force()).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(
        shown.default_route.as_ref().map(|route| route.upstream.to_string()),
        Some("http://127.0.0.1:3000".into())
    );
    assert_eq!(Config { default_route: None, ..shown }, plain);
}

#[test]
fn the_defaults_of_the_reference_are_the_true_ones() {
    for setting in SETTINGS {
        let section = match setting.place {
            Place::Top => "",
            Place::Clients => "[clients]",
            Place::Store => "[store]",
            Place::Sweep => "[sweep]",
            Place::Log => "[log]",
            Place::Defaults => "[defaults]",
            Place::Route
            | Place::StoreUrl
            | Place::Key
            | Place::Fingerprint
            | Place::Part
            | Place::Tenant
            | Place::Token
            | Place::Cors
            | Place::RateLimit => continue,
        };
        let text = match &setting.default {
            Standard::Required | Standard::Nothing | Standard::Follows(_) => continue,
            Standard::Text(_) | Standard::Word(_) | Standard::Time(_) | Standard::Bytes(_) | Standard::Number(_) => {
                setting.default.shown().trim_matches('`').to_owned()
            }
        };
        let tail = "[[route]]\nname = \"o\"\npath = \"/o\"\nupstream = \"http://app:1\"\neffect = \"external\"";
        let written = read(&format!("{section}\n{} = {text}\n{tail}", setting.name));
        assert_eq!(written, read(tail), "{} = {text}", setting.name);
        assert!(
            EXAMPLE.contains(&format!("\n#{} = {text}\n", setting.name)),
            "the example shows {} otherwise",
            setting.name
        );
    }
}

#[test]
fn the_example_and_the_reference_show_every_setting() {
    let reference = reference_table();
    for Setting { name, .. } in SETTINGS {
        let in_example = ["\n", "\n#", "\n#   ", "{ ", ", "].map(|before| format!("{before}{name} = "));
        assert!(in_example.iter().any(|text| EXAMPLE.contains(text)), "onced.example.toml does not show `{name}`");
        assert!(reference.contains(&format!("| `{name}` |")), "the reference does not list `{name}`");
    }
}

/// The other way round holds as well: reading asks for nothing that the table lacks (an assertion in `Section::get`).
#[test]
fn every_setting_of_the_table_is_read() {
    let outside = MadeUp { variables: [("DB", "sqlite:a.db")].into(), ..MadeUp::default() };
    let text = with_everything_in_force().replace("url = \"sqlite:onced.db\"", "url = { env = \"DB\" }");
    // What an example cannot have in force: it would need a secret, or a second kind of the same.
    let also = |name, tenant| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nupstream = \"http://app:1\"\neffect = \"external\"\ntenant = {tenant}\n"
        )
    };
    let listed = also("listed", "{ from = \"bearer\", tokens = [{ tenant = \"acme\", env = \"DB\" }] }");
    let claim = also("claim", "{ from = \"jwt\", claim = \"org\", header = \"X-Token\" }");
    let text = format!("{text}\n{listed}\n{claim}");
    let document = Document::new("onced.toml", &text, &outside);
    let root = document.tables();
    let config = super::super::file::read(&document, &root, &Flags::default());
    assert!(config.is_some());
    let asked = document.asked();
    assert!(document.is_sound());
    let table: BTreeSet<(Place, &str)> = SETTINGS.iter().map(|setting| (setting.place, setting.name)).collect();
    assert_eq!(asked, table);
}
