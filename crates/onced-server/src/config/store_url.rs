//! The database's URL, which may carry a password: checked, and never shown whole.

use std::fmt;

/// A database that keeps a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
    MariaDb,
}

/// The URL of the ledger's database. `Display` and `Debug` hide its password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl(String);

impl StoreUrl {
    /// Checks a URL. The message says what would be right, and does not repeat the URL.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
        match scheme {
            "postgres" | "postgresql" if rest.starts_with("//") && rest.len() > 2 => Ok(Self(text.to_owned())),
            "postgres" | "postgresql" => Err("names no host; write \"postgres://user@host/database\"".to_owned()),
            "sqlite" if rest.contains(":memory:") || rest.contains("mode=memory") => {
                Err("would forget every key at the next start; write \"sqlite:onced.db\"".to_owned())
            }
            "sqlite" if rest.trim_start_matches('/').is_empty() => {
                Err("names no file; write \"sqlite:onced.db\"".to_owned())
            }
            "sqlite" => Ok(Self(text.to_owned())),
            "mysql" | "mariadb" if is_named(rest) => Ok(Self(text.to_owned())),
            "mysql" | "mariadb" => Err("names no host and database; write \"mysql://user@host/database\"".to_owned()),
            _ => Err("is not the URL of a database; write \"sqlite:onced.db\", \"postgres://user@host/database\" or \
                 \"mysql://user@host/database\""
                .to_owned()),
        }
    }

    /// What it names.
    pub(crate) fn backend(&self) -> Backend {
        match self.0.split(':').next() {
            Some("sqlite") => Backend::Sqlite,
            Some("mysql" | "mariadb") => Backend::MariaDb,
            // Nothing else was let in.
            Some(_) | None => Backend::Postgres,
        }
    }

    /// The URL with its password, for connecting and nothing else.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

/// Whether a host and a database are named: MariaDB has no default for the latter.
fn is_named(rest: &str) -> bool {
    let rest = rest.split('?').next().unwrap_or(rest);
    let place = rest.strip_prefix("//").map(|place| place.rsplit_once('@').map_or(place, |(_, place)| place));
    let named = place.and_then(|place| place.split_once('/'));
    named.is_some_and(|(host, database)| !host.is_empty() && !database.is_empty())
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact_url(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// A URL without what may be secret in it: `postgres://me:***@host/db?sslpassword=***`. Where it cannot be told
/// what is what, more is hidden rather than less.
pub(crate) fn redact_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // `sqlite:onced.db` is harmless; `host=… password=…`, or a URL with a mistyped scheme, is not.
        let harmless = !url.contains('@') && !names_a_secret(url);
        return if harmless { url.to_owned() } else { "***".to_owned() };
    };
    // A password may hold any unescaped character: everything up to the last `@` belongs to it.
    let (credentials, place) = rest.rsplit_once('@').map_or((None, rest), |(before, after)| (Some(before), after));
    let credentials = credentials.map_or_else(String::new, |text| match text.split_once(':') {
        Some((user, _)) => format!("{user}:***@"),
        None if text.contains(['/', '?']) => "***@".to_owned(),
        None => format!("{text}@"),
    });
    let (path, query) = place.split_once('?').map_or((place, None), |(path, query)| (path, Some(query)));
    let query = query.map_or_else(String::new, |query| {
        let pairs: Vec<String> = query.split('&').map(redact_pair).collect();
        format!("?{}", pairs.join("&"))
    });
    format!("{scheme}://{credentials}{path}{query}")
}

fn redact_pair(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, _)) if names_a_secret(name) => format!("{name}=***"),
        Some(_) | None => pair.to_owned(),
    }
}

fn names_a_secret(text: &str) -> bool {
    let text = text.to_lowercase();
    ["pass", "pwd", "secret", "token"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("postgres://me:pw@db:5432/app", "postgres://me:***@db:5432/app"),
            ("postgres://me:p@w/?x@db/app", "postgres://me:***@db/app"),
            ("postgres://me@db/app?sslmode=require", "postgres://me@db/app?sslmode=require"),
            ("postgres://db/app?user=me&password=pw", "postgres://db/app?user=me&password=***"),
            ("postgres://:pw@db", "postgres://:***@db"),
            ("postgres:/me:pw@db", "***"),
            ("host=db password=pw", "***"),
            ("sqlite:onced.db", "sqlite:onced.db"),
            ("sqlite:///var/lib/onced.db", "sqlite:///var/lib/onced.db"),
            ("", ""),
        ] {
            assert_eq!(redact_url(url), shown);
        }
        let url = StoreUrl::parse("postgres://me:pw@db/app").unwrap();
        assert_eq!(format!("{url} {url:?}"), "postgres://me:***@db/app StoreUrl(postgres://me:***@db/app)");
        assert_eq!(url.expose(), "postgres://me:pw@db/app");
    }

    #[test]
    fn only_databases_that_keep_keys_are_taken() {
        for good in [
            "sqlite:onced.db",
            "sqlite://onced.db",
            "sqlite:///a/b.db",
            "postgres://h/d",
            "postgresql://h",
            "mysql://h/d",
            "mysql://u:p/w@h:3306/d?ssl-mode=REQUIRED",
            "mariadb://h/d",
        ] {
            assert!(StoreUrl::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "onced.db",
            "sqlite:",
            "sqlite://",
            "sqlite::memory:",
            "mysql://h",
            "mysql://h/",
            "mysql:///d",
            "mysql://u/x@h",
            "mysql:h/d",
            "postgres:h",
            "redis://h",
        ] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
