//! One throw-away database of either backend, with plain SQL beside what is tested.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, PgPool, Row, SqlitePool, TypeInfo, ValueRef};
use tempfile::TempDir;

use crate::postgres;

/// A supported database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// A file in a temporary folder, in WAL mode.
    Sqlite,
    /// A database on the server of the test run.
    Postgres,
}

impl Backend {
    /// All of them; a test that loops over it skips none.
    pub const ALL: [Self; 2] = [Self::Sqlite, Self::Postgres];
}

/// One SQL text for all backends, or one for each.
#[derive(Clone, Copy, Debug)]
pub struct SqlText<'a> {
    sqlite: &'a str,
    postgres: &'a str,
}

impl<'a> SqlText<'a> {
    /// Where the dialects differ.
    #[must_use]
    pub fn each(sqlite: &'a str, postgres: &'a str) -> Self {
        Self { sqlite, postgres }
    }
}

impl<'a> From<&'a str> for SqlText<'a> {
    fn from(both: &'a str) -> Self {
        Self::each(both, both)
    }
}

impl<'a> From<&'a String> for SqlText<'a> {
    fn from(both: &'a String) -> Self {
        Self::each(both, both)
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
}

impl Database {
    /// Creates an empty database.
    ///
    /// # Panics
    /// Where that is not possible, above all without a PostgreSQL server.
    pub async fn create(backend: Backend) -> Self {
        match backend {
            Backend::Sqlite => {
                let folder = tempfile::Builder::new().prefix("onced-").tempdir().expect("no temporary folder");
                Self::sqlite(folder.path().to_owned(), Some(folder)).await
            }
            Backend::Postgres => Self::postgres(postgres::Database::create().await).await,
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
        }
    }

    /// What onced is given: `sqlite:PATH` or `postgres://…`.
    #[must_use]
    pub fn url(&self) -> &str {
        match &self.home {
            Home::Sqlite { url, .. } => url,
            Home::Postgres(database) => database.url(),
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
            Home::Postgres(_) => None,
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
        let SqlText { sqlite, postgres } = sql.into();
        Ok(match self {
            Self::Sqlite(pool) => sqlx::raw_sql(AssertSqlSafe(sqlite)).execute(pool).await?.rows_affected(),
            Self::Postgres(pool) => sqlx::raw_sql(AssertSqlSafe(postgres)).execute(pool).await?.rows_affected(),
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
    ///
    /// # Panics
    /// Where the query fails.
    pub async fn text<'a>(&self, sql: impl Into<SqlText<'a>>) -> Vec<Vec<String>> {
        let SqlText { sqlite, postgres } = sql.into();
        match self {
            Self::Sqlite(pool) => {
                let rows = sqlx::raw_sql(AssertSqlSafe(sqlite)).fetch_all(pool).await.expect("test SQL failed");
                rows.iter().map(|row| (0..row.len()).map(|column| sqlite_text(row, column)).collect()).collect()
            }
            Self::Postgres(pool) => {
                let rows = sqlx::raw_sql(AssertSqlSafe(postgres)).fetch_all(pool).await.expect("test SQL failed");
                rows.iter().map(|row| (0..row.len()).map(|column| postgres_text(row, column)).collect()).collect()
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
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        return format!("x'{hex}'");
    }
    row.get_unchecked(column)
}

/// Statements without parameters come back as text, whatever the type.
fn postgres_text(row: &PgRow, column: usize) -> String {
    let value = row.try_get_raw(column).expect("no such column");
    if value.is_null() { "NULL".to_owned() } else { value.as_str().expect("the value is no text").to_owned() }
}
