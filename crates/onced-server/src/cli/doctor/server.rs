//! What settings, versions and the way to the database mean.

use std::time::Duration;

use onced::store::health::{Backends, PostgresSettings, SchemaVersion, Settings, SqliteSettings};

use super::finding::Finding;
use super::mariadb;

/// Beyond this the clocks are worth a look.
const SKEW: i64 = 1_000_000;
/// The oldest PostgreSQL that has what the ledger's statements need.
const OLDEST_POSTGRES: u32 = 120_000;
const GIB: u64 = 1 << 30;

pub(super) fn settings(settings: &Settings, wanted_connections: u32, free_disk: Option<u64>) -> Vec<Finding> {
    match settings {
        Settings::Postgres(settings) => vec![
            postgres_durability(settings),
            postgres_version(settings),
            postgres_writes(settings),
            connections(settings, wanted_connections),
        ],
        Settings::MariaDb(settings) => mariadb::settings(settings, wanted_connections),
        Settings::Sqlite(settings) => {
            let mut findings = vec![sqlite_durability(settings), sqlite_version(settings), sqlite_writes(settings)];
            findings.extend(free_disk.map(disk));
            findings
        }
    }
}

fn postgres_durability(settings: &PostgresSettings) -> Finding {
    let PostgresSettings { synchronous_commit, fsync, full_page_writes, .. } = settings;
    let seen =
        format!("synchronous_commit = {synchronous_commit}, fsync = {fsync}, full_page_writes = {full_page_writes}");
    if matches!(synchronous_commit.as_str(), "on" | "remote_apply") && fsync == "on" && full_page_writes == "on" {
        return Finding::ok("durability", seen, "what was confirmed survives a crash");
    }
    Finding::wrong(
        "durability",
        seen,
        "a crash of the server, or a failover, can lose commits that were confirmed: a trigger could take effect again",
        "set all three to on, in postgresql.conf or for the role and database (ALTER DATABASE … RESET synchronous_commit)",
    )
}

fn postgres_version(settings: &PostgresSettings) -> Finding {
    let seen = format!("PostgreSQL {}", settings.version);
    if settings.version_number >= OLDEST_POSTGRES {
        return Finding::ok("version", seen, "it has what the ledger's statements need");
    }
    Finding::wrong("version", seen, "the ledger's statements need PostgreSQL 12", "upgrade the server")
}

fn postgres_writes(settings: &PostgresSettings) -> Finding {
    match (settings.in_recovery, settings.read_only) {
        (true, _) => Finding::wrong(
            "writes",
            "this server is a standby",
            "decisions are made on the primary only: nothing can be claimed here",
            "name the primary in the store's URL (several hosts: target_session_attrs=read-write)",
        ),
        (false, true) => Finding::wrong(
            "writes",
            "transactions are read-only",
            "nothing can be claimed: every request with a key gets 503",
            "reset default_transaction_read_only for the role, the database and the server",
        ),
        (false, false) => Finding::ok("writes", "this server is a primary and takes writes", "keys can be claimed"),
    }
}

fn connections(settings: &PostgresSettings, wanted: u32) -> Finding {
    let PostgresSettings { max_connections, reserved_connections, used_connections, .. } = *settings;
    let free = max_connections.saturating_sub(reserved_connections).saturating_sub(used_connections);
    let seen = format!("{used_connections} of {max_connections} connections in use, {reserved_connections} reserved");
    if free >= wanted {
        return Finding::ok("connections", seen, format!("one gateway opens at most {wanted}; {free} are free"));
    }
    Finding::warn(
        "connections",
        seen,
        format!("one more gateway opens up to {wanted}, and {free} are free: requests would get 503"),
        "lower max_connections in [store], raise the server's, or end what holds connections (pg_stat_activity)",
    )
}

fn sqlite_durability(settings: &SqliteSettings) -> Finding {
    let synchronous = match settings.synchronous {
        0 => "OFF",
        1 => "NORMAL",
        2 => "FULL",
        _ => "EXTRA",
    };
    let seen = format!("journal_mode = {}, synchronous = {synchronous}, as onced opens it", settings.journal_mode);
    if settings.journal_mode != "wal" {
        return Finding::wrong(
            "durability",
            seen,
            "the file cannot be put into WAL mode: readers and writers block each other, and the ledger's bounds do not hold",
            "keep the file on a local disk, not on a network file system",
        );
    }
    if settings.synchronous < 2 {
        return Finding::wrong(
            "durability",
            seen,
            "a crash of the machine can lose commits that were confirmed: a trigger could take effect again",
            "let nothing set PRAGMA synchronous on the ledger's connections",
        );
    }
    Finding::ok(
        "durability",
        seen,
        "what was confirmed survives a crash; an application that writes to the file must set synchronous = FULL itself",
    )
}

fn sqlite_version(settings: &SqliteSettings) -> Finding {
    let seen = format!("SQLite {}", settings.version);
    if settings.has_wal_reset_fix {
        return Finding::ok("version", seen, "it has the fix of the WAL-reset fault");
    }
    Finding::wrong(
        "version",
        seen,
        "it has the WAL-reset fault: a writer that races a checkpoint can lose committed pages",
        "use SQLite 3.51.3, 3.50.7, 3.44.6 or newer in their branches; an application on the same file, too",
    )
}

fn sqlite_writes(settings: &SqliteSettings) -> Finding {
    let seen = settings.file.display().to_string();
    match &settings.not_writable {
        None => Finding::ok("writes", seen, "keys can be claimed"),
        Some(why) => Finding::wrong(
            "writes",
            format!("{seen}: {why}"),
            "nothing can be claimed: every request with a key gets 503",
            "let this user write to the file and its folder, and end what holds the write lock",
        ),
    }
}

fn disk(free: u64) -> Finding {
    let seen = format!("{} free where the file is", bytes(free));
    if free >= GIB {
        return Finding::ok("disk", seen, "there is room to grow");
    }
    Finding::warn(
        "disk",
        seen,
        "with a full disk nothing can be claimed: every request with a key gets 503",
        "free some space, or shorten `retention`; the file never shrinks by itself (VACUUM while nothing runs)",
    )
}

pub(super) fn schema(version: SchemaVersion) -> Finding {
    let SchemaVersion { found, known, foreign } = version;
    if foreign {
        return Finding::wrong(
            "schema",
            "a table of the ledger's name that onced did not make",
            "this onced does not touch it, and does not start",
            "move the table away, or give onced another schema or database",
        );
    }
    match found {
        None => Finding::wrong("schema", "there is none", "no gateway has used this database yet", "run onced migrate"),
        Some(found) if found < known => Finding::wrong(
            "schema",
            format!("version {found}, older than this onced's {known}"),
            "`onced serve` brings it up to date at its start; the other commands refuse it",
            "run onced migrate",
        ),
        Some(found) if found > known => Finding::wrong(
            "schema",
            format!("version {found}, newer than this onced's {known}"),
            "this onced does not start on it",
            "run the newer onced",
        ),
        Some(found) => Finding::ok("schema", format!("version {found}"), "it is the one that this onced knows"),
    }
}

/// `ahead` is how far the database's clock is ahead of this machine's, in microseconds; `round_trip` the error of that.
pub(super) fn clock(ahead: i64, round_trip: Duration) -> Finding {
    let error = i64::try_from(round_trip.as_micros() / 2).unwrap_or(i64::MAX);
    let seen = format!(
        "the database's clock is {:.3} s {} this machine's, give or take {:.3} s",
        Duration::from_micros(ahead.unsigned_abs()).as_secs_f64(),
        if ahead < 0 { "behind" } else { "ahead of" },
        Duration::from_micros(error.unsigned_abs()).as_secs_f64()
    );
    if ahead.saturating_abs().saturating_sub(error) <= SKEW {
        return Finding::ok("clock", seen, "the clocks agree");
    }
    Finding::warn(
        "clock",
        seen,
        "decisions use the database's clock alone and stay right; the times of the log and those of keys and deliveries \
         do not match, nor do Onced-Key-Expires and the Date header",
        "set both machines by NTP",
    )
}

/// Detects a pooler that lends a server's connection for one transaction. One that lends it for the whole session
/// cannot be told from none, and does no harm.
pub(super) fn pooler(backends: Option<Backends>) -> Option<Finding> {
    let Backends { first, second, first_meanwhile, first_afterwards } = backends?;
    let seen = format!(
        "server processes {first}, {first_meanwhile}, {first_afterwards} on one connection, {second} on another"
    );
    let is_one_to_one = first == first_meanwhile && first == first_afterwards && first != second;
    Some(if is_one_to_one {
        Finding::ok("pooler", seen, "each connection has a server process of its own")
    } else {
        Finding::wrong(
            "pooler",
            seen,
            "something between onced and PostgreSQL shares connections by transaction: prepared statements get mixed up, \
             and a statement can silently get another one's answer",
            "name PostgreSQL itself in the store's URL, or set the pooler to pool_mode = session",
        )
    })
}

/// Where the configuration says that there is one.
pub(super) fn pooler_by_transaction() -> Finding {
    Finding::ok(
        "pooler",
        "pooler = \"transaction\"",
        "each statement is a transaction of its own, which such a pooler keeps whole",
    )
}

/// 1.5 MiB, as people read it.
pub(super) fn bytes(count: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| count >= *unit) {
        // One digit after the point is shown: what the conversion loses is not seen.
        Some((unit, name)) => format!("{:.1} {name}", count as f64 / unit as f64),
        None => format!("{count} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{self, Ok, Warn, Wrong};
    use super::*;

    fn postgres() -> PostgresSettings {
        PostgresSettings {
            version: "15.18".to_owned(),
            version_number: 150_018,
            synchronous_commit: "on".to_owned(),
            fsync: "on".to_owned(),
            full_page_writes: "on".to_owned(),
            in_recovery: false,
            read_only: false,
            max_connections: 100,
            reserved_connections: 3,
            used_connections: 20,
        }
    }

    fn sqlite() -> SqliteSettings {
        SqliteSettings {
            version: "3.53.0".to_owned(),
            has_wal_reset_fix: true,
            journal_mode: "wal".to_owned(),
            synchronous: 2,
            file: "/a.db".into(),
            not_writable: None,
        }
    }

    /// The verdicts that are not ok.
    fn verdicts(settings: &Settings) -> Vec<(&'static str, Verdict)> {
        let findings = super::settings(settings, 10, Some(GIB));
        findings.iter().filter(|f| f.verdict != Ok).map(|f| (f.name, f.verdict)).collect()
    }

    #[test]
    fn every_wrong_setting_is_found_and_no_other() {
        assert_eq!(verdicts(&Settings::Postgres(postgres())), []);
        let text = |text: &str| text.to_owned();
        for (settings, found) in [
            (PostgresSettings { synchronous_commit: text("off"), ..postgres() }, ("durability", Wrong)),
            (PostgresSettings { synchronous_commit: text("local"), ..postgres() }, ("durability", Wrong)),
            (PostgresSettings { fsync: text("off"), ..postgres() }, ("durability", Wrong)),
            (PostgresSettings { full_page_writes: text("off"), ..postgres() }, ("durability", Wrong)),
            (PostgresSettings { version_number: 110_022, ..postgres() }, ("version", Wrong)),
            (PostgresSettings { in_recovery: true, ..postgres() }, ("writes", Wrong)),
            (PostgresSettings { read_only: true, ..postgres() }, ("writes", Wrong)),
            (PostgresSettings { used_connections: 88, ..postgres() }, ("connections", Warn)),
        ] {
            assert_eq!(verdicts(&Settings::Postgres(settings)), [found]);
        }
        assert_eq!(verdicts(&Settings::Postgres(PostgresSettings { used_connections: 87, ..postgres() })), []);
        assert_eq!(verdicts(&Settings::Sqlite(sqlite())), []);
        for (settings, found) in [
            (SqliteSettings { synchronous: 0, ..sqlite() }, ("durability", Wrong)),
            (SqliteSettings { synchronous: 1, ..sqlite() }, ("durability", Wrong)),
            (SqliteSettings { journal_mode: text("delete"), ..sqlite() }, ("durability", Wrong)),
            (SqliteSettings { has_wal_reset_fix: false, ..sqlite() }, ("version", Wrong)),
            (SqliteSettings { not_writable: Some(text("read-only")), ..sqlite() }, ("writes", Wrong)),
        ] {
            assert_eq!(verdicts(&Settings::Sqlite(settings)), [found]);
        }
        assert_eq!(disk(GIB - 1).verdict, Warn);
    }

    /// PgBouncer is not part of the test machine: what it does is put in as facts.
    #[test]
    fn a_pooler_is_known_by_server_processes_that_change_or_are_shared() {
        let verdict = |first, second, first_meanwhile, first_afterwards| {
            pooler(Some(Backends { first, second, first_meanwhile, first_afterwards })).map(|finding| finding.verdict)
        };
        assert_eq!(pooler(None), None);
        assert_eq!(verdict(1, 2, 1, 1), Some(Ok));
        assert_eq!(verdict(1, 1, 2, 1), Some(Wrong), "the one that was free was lent to the other");
        assert_eq!(verdict(1, 2, 3, 1), Some(Wrong));
        assert_eq!(verdict(1, 2, 1, 2), Some(Wrong));
        assert_eq!(verdict(1, 1, 1, 1), Some(Wrong), "one for both");
    }

    #[test]
    fn clocks_differ_only_beyond_what_was_measured() {
        for (ahead, round_trip, verdict) in [
            (0, 1, Ok),
            (1_000_000, 0, Ok),
            (1_000_001, 0, Warn),
            (-1_000_001, 0, Warn),
            (1_400_000, 1_000, Ok),
            (1_600_000, 1_000, Warn),
            (i64::MIN, 0, Warn),
        ] {
            assert_eq!(clock(ahead, Duration::from_millis(round_trip)).verdict, verdict, "{ahead}, {round_trip}");
        }
    }

    #[test]
    fn a_schema_is_right_only_where_it_is_the_known_one() {
        let of = |found, foreign| schema(SchemaVersion { found, known: 2, foreign }).verdict;
        assert_eq!([of(None, true), of(None, false), of(Some(1), false), of(Some(3), false)], [Wrong; 4]);
        assert_eq!(of(Some(2), false), Ok);
    }

    #[test]
    fn bytes_are_shown_for_people() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(3 << 40)], ["0 B", "1023 B", "1.5 KiB", "3.0 TiB"]);
    }
}
