//! One throw-away database of one of the backends, with plain SQL beside what is tested.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, Row, SqlitePool, TypeInfo, ValueRef};
use tempfile::TempDir;

use crate::{mariadb, postgres};

/// A supported database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// A file in a temporary folder, in WAL mode.
    Sqlite,
    /// A database on the PostgreSQL server of the test run.
    Postgres,
    /// A database on the MariaDB server of the test run.
    MariaDb,
}

impl Backend {
    /// All of them; a test that loops over it skips none.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::MariaDb];
}

/// One SQL text for all backends, or one for each.
#[derive(Clone, Copy, Debug)]
pub struct SqlText<'a> {
    sqlite: &'a str,
    postgres: &'a str,
    mariadb: &'a str,
}

impl<'a> SqlText<'a> {
    /// Where the dialects differ.
    #[must_use]
    pub fn each(sqlite: &'a str, postgres: &'a str, mariadb: &'a str) -> Self {
        Self { sqlite, postgres, mariadb }
    }
}

impl<'a> From<&'a str> for SqlText<'a> {
    fn from(all: &'a str) -> Self {
        Self::each(all, all, all)
    }
}

impl<'a> From<&'a String> for SqlText<'a> {
    fn from(all: &'a String) -> Self {
        Self::each(all, all, all)
    }
}

/// A fresh database, removed at the end.
#[derive(Debug)]
pub struct Database {
    sql: Sql,
    // Last, so that the pool is gone before the files are.
    home: Home,
}

#[derive(Debug)]
enum Home {
    // The folder is kept where it is ours to remove.
    Sqlite { folder: PathBuf, url: String, _kept: Option<TempDir> },
    Postgres(postgres::Database),
    MariaDb(mariadb::Database),
}

impl Database {
    /// Creates an empty database.
    ///
    /// # Panics
    /// Where that is not possible, above all without a server.
    pub async fn create(backend: Backend) -> Self {
        match backend {
            Backend::Sqlite => {
                let folder = tempfile::Builder::new().prefix("onced-").tempdir().expect("no temporary folder");
                Self::sqlite(folder.path().to_owned(), Some(folder)).await
            }
            Backend::Postgres => Self::postgres(postgres::Database::create().await).await,
            Backend::MariaDb => {
                let database = mariadb::Database::create().await;
                let sql = Sql::MariaDb(database.pool().await);
                Self { sql, home: Home::MariaDb(database) }
            }
        }
    }

    /// Creates an empty database on the PostgreSQL server of the newest version.
    ///
    /// # Panics
    /// Where that is not possible, above all without that server.
    pub async fn on_new_postgres() -> Self {
        Self::postgres(postgres::Database::create_on(postgres::new_server_url()).await).await
    }

    async fn postgres(database: postgres::Database) -> Self {
        Self { sql: Sql::Postgres(database.pool().await), home: Home::Postgres(database) }
    }

    /// Creates an empty SQLite database in a folder of the caller's, for example one on a disk of its own.
    ///
    /// # Panics
    /// Where that is not possible.
    pub async fn sqlite_in(folder: impl Into<PathBuf>) -> Self {
        Self::sqlite(folder.into(), None).await
    }

    async fn sqlite(folder: PathBuf, kept: Option<TempDir>) -> Self {
        let path = folder.join("test.db");
        let sql = Sql::Sqlite(sqlite_pool(&path).await);
        let url = format!("sqlite:{}", path.display());
        Self { sql, home: Home::Sqlite { folder, url, _kept: kept } }
    }

    /// Which backend it is.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.home {
            Home::Sqlite { .. } => Backend::Sqlite,
            Home::Postgres(_) => Backend::Postgres,
            Home::MariaDb(_) => Backend::MariaDb,
        }
    }

    /// What onced is given: `sqlite:PATH`, `postgres://…` or `mysql://…`.
    #[must_use]
    pub fn url(&self) -> &str {
        match &self.home {
            Home::Sqlite { url, .. } => url,
            Home::Postgres(database) => database.url(),
            Home::MariaDb(database) => database.url(),
        }
    }

    /// Plain SQL on it, over connections of its own.
    #[must_use]
    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    /// A folder that lives as long as the database, for files beside it; only SQLite has one.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match &self.home {
            Home::Sqlite { folder, .. } => Some(folder),
            Home::Postgres(_) | Home::MariaDb(_) => None,
        }
    }
}

/// A pool for SQL that knows nothing of onced. Clones share it.
#[derive(Clone, Debug)]
pub enum Sql {
    /// Of a SQLite file.
    Sqlite(SqlitePool),
    /// Of a PostgreSQL database.
    Postgres(PgPool),
    /// Of a MariaDB database.
    MariaDb(MySqlPool),
}

impl Sql {
    /// Runs one or more statements and tells how many rows they changed.
    ///
    /// # Panics
    /// Where the database refuses.
    pub async fn execute<'a>(&self, sql: impl Into<SqlText<'a>>) -> u64 {
        self.try_execute(sql).await.expect("test SQL failed")
    }

    /// [`Sql::execute`] for SQL that may fail.
    ///
    /// # Errors
    /// What the database says.
    pub async fn try_execute<'a>(&self, sql: impl Into<SqlText<'a>>) -> Result<u64, sqlx::Error> {
        let SqlText { sqlite, postgres, mariadb } = sql.into();
        Ok(match self {
            Self::Sqlite(pool) => sqlx::raw_sql(AssertSqlSafe(sqlite)).execute(pool).await?.rows_affected(),
            Self::Postgres(pool) => sqlx::raw_sql(AssertSqlSafe(postgres)).execute(pool).await?.rows_affected(),
            Self::MariaDb(pool) => {
                let sql = with_key_quoted(mariadb);
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?.rows_affected()
            }
        })
    }

    /// The first column of the first row, as a number.
    ///
    /// # Panics
    /// Where the query fails or gives no number.
    pub async fn count<'a>(&self, sql: impl Into<SqlText<'a>>) -> i64 {
        let rows = self.text(sql).await;
        let first = rows.first().and_then(|row| row.first()).expect("the query gave no row");
        first.parse().unwrap_or_else(|_| panic!("the query gave {first:?}, not a number"))
    }

    /// All rows as text. NULL is `NULL`; bytes are as each database writes them: SQLite `x'00ff'`, PostgreSQL `\x00ff`.
    /// MariaDB does not tell bytes from text: they are shown as text where they are that, and else as `x'00ff'`.
    ///
    /// # Panics
    /// Where the query fails.
    pub async fn text<'a>(&self, sql: impl Into<SqlText<'a>>) -> Vec<Vec<String>> {
        let SqlText { sqlite, postgres, mariadb } = sql.into();
        match self {
            Self::Sqlite(pool) => {
                let rows = sqlx::raw_sql(AssertSqlSafe(sqlite)).fetch_all(pool).await.expect("test SQL failed");
                rows.iter().map(|row| (0..row.len()).map(|column| sqlite_text(row, column)).collect()).collect()
            }
            Self::Postgres(pool) => {
                let rows = sqlx::raw_sql(AssertSqlSafe(postgres)).fetch_all(pool).await.expect("test SQL failed");
                rows.iter().map(|row| (0..row.len()).map(|column| postgres_text(row, column)).collect()).collect()
            }
            Self::MariaDb(pool) => {
                let sql = with_key_quoted(mariadb);
                let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(pool).await.expect("test SQL failed");
                rows.iter().map(|row| (0..row.len()).map(|column| mariadb_text(row, column)).collect()).collect()
            }
        }
    }
}

async fn sqlite_pool(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    SqlitePoolOptions::new().max_connections(4).connect_with(options).await.expect("the SQLite file cannot be opened")
}

fn sqlite_text(row: &SqliteRow, column: usize) -> String {
    let value = row.try_get_raw(column).expect("no such column");
    if value.is_null() {
        return "NULL".to_owned();
    }
    if value.type_info().name() == "BLOB" {
        let bytes: Vec<u8> = row.get_unchecked(column);
        return hex(&bytes);
    }
    row.get_unchecked(column)
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}

/// Statements without parameters come back as text, whatever the type.
fn postgres_text(row: &PgRow, column: usize) -> String {
    let value = row.try_get_raw(column).expect("no such column");
    if value.is_null() { "NULL".to_owned() } else { value.as_str().expect("the value is no text").to_owned() }
}

/// As for PostgreSQL; the driver gives the bytes that the server sent.
fn mariadb_text(row: &MySqlRow, column: usize) -> String {
    match row.get_unchecked::<Option<Vec<u8>>, _>(column) {
        None => "NULL".to_owned(),
        Some(bytes) => match String::from_utf8(bytes) {
            Ok(text) if !text.contains(|letter: char| letter.is_control() && letter != '\n') => text,
            Ok(text) => hex(text.as_bytes()),
            Err(not_text) => hex(not_text.as_bytes()),
        },
    }
}

/// For MariaDB the column's name `key` is a word of the language, and needs quotes; a text for all backends has none.
/// Only the lower-case word outside of quotes and comments is meant.
#[must_use]
pub fn with_key_quoted(sql: &str) -> String {
    let (mut quoted, mut quote, mut word, mut rest) = (String::new(), None, String::new(), sql);
    while let Some(letter) = rest.chars().next() {
        if quote.is_none() && rest.starts_with("--") {
            let comment = rest.find('\n').unwrap_or(rest.len());
            quoted += &rest[..comment];
            rest = &rest[comment..];
            continue;
        }
        rest = &rest[letter.len_utf8()..];
        if quote.is_none() && (letter.is_alphanumeric() || letter == '_') {
            word.push(letter);
            continue;
        }
        quoted += quoted_word(&std::mem::take(&mut word));
        quoted.push(letter);
        match quote {
            Some(open) if open == letter => quote = None,
            None if matches!(letter, '\'' | '"' | '`') => quote = Some(letter),
            Some(_) | None => {}
        }
    }
    quoted + quoted_word(&word)
}

fn quoted_word(word: &str) -> &str {
    if word == "key" { "`key`" } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bare_word_key_is_quoted_and_nothing_else() {
        let sql = "-- a key's\nSELECT o.key, `key` FROM t WHERE key='a key' AND keys = 1 ORDER BY key";
        let quoted = "-- a key's\nSELECT o.`key`, `key` FROM t WHERE `key`='a key' AND keys = 1 ORDER BY `key`";
        assert_eq!(with_key_quoted(sql), quoted);
    }
}
