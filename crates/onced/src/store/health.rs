//! The facts about a ledger's health: settings, versions, what stands unfinished, how it grows. What is right, doubtful
//! or wrong about them is for others to say.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use onced_core::record::Status;
use onced_core::time::Timestamp;

use super::StoreError;

/// How the database is set, as our connections see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Of PostgreSQL.
    Postgres(PostgresSettings),
    /// Of SQLite.
    Sqlite(SqliteSettings),
    /// Of MariaDB.
    MariaDb(MariaDbSettings),
}

/// How PostgreSQL is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettings {
    /// As it says it: `15.18`.
    pub version: String,
    /// As a number: 150018.
    pub version_number: u32,
    /// What a commit waits for before it is confirmed: with `off` for nothing, so that a crash loses it.
    pub synchronous_commit: String,
    /// Whether what is written is forced to the disk.
    pub fsync: String,
    /// Whether a page that was half written in a crash can be restored.
    pub full_page_writes: String,
    /// A standby, or a server that is still recovering.
    pub in_recovery: bool,
    /// Transactions of ours begin read-only.
    pub read_only: bool,
    /// How many connections the server takes.
    pub max_connections: u32,
    /// Of those, for superusers.
    pub reserved_connections: u32,
    /// Of those, in use now, ours included.
    pub used_connections: u32,
}

/// How SQLite is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteSettings {
    /// The library's version.
    pub version: String,
    /// Whether that version cannot lose pages when a writer races a checkpoint.
    pub has_wal_reset_fix: bool,
    /// `wal`, or what the file could be put into.
    pub journal_mode: String,
    /// 0 OFF, 1 NORMAL, 2 FULL, 3 EXTRA.
    pub synchronous: i64,
    /// The file.
    pub file: PathBuf,
    /// Why the file takes no writes, where it takes none.
    pub not_writable: Option<String>,
}

/// How MariaDB is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MariaDbSettings {
    /// As it says it: `10.11.19-MariaDB-0+deb12u1`.
    pub version: String,
    /// `innodb_flush_log_at_trx_commit`: with 1 a commit is on the disk before it is confirmed.
    pub flush_log_at_commit: u32,
    /// Whether a page that was half written in a crash can be restored.
    pub doublewrite: bool,
    /// Whether commits are written to a binary log as well, which then decides about them after a crash.
    pub log_bin: bool,
    /// After how many commits the binary log is forced to the disk; 0 for whenever the system likes.
    pub sync_binlog: u32,
    /// Whether it is a node of a Galera cluster.
    pub galera: bool,
    /// A replica, or a primary that takes no writes.
    pub read_only: bool,
    /// Whether a lock that is not got in time undoes the whole transaction.
    pub rollback_on_timeout: bool,
    /// The ledger's tables, if any, that are not in InnoDB: nothing is rolled back there.
    pub other_engine: Option<String>,
    /// The most bytes that a statement and its parameters may have: an outcome beyond it cannot be stored.
    pub max_allowed_packet: u64,
    /// How many connections the server takes.
    pub max_connections: u32,
    /// Of those, in use now and to be seen, ours included.
    pub used_connections: u32,
}

impl MariaDbSettings {
    /// The first two numbers of the version; zeros where they cannot be read.
    pub fn release(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// The version of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaVersion {
    /// What was found; `None` where there is no schema of ours.
    pub found: Option<i64>,
    /// What this binary knows.
    pub known: i64,
    /// A table of that name which is not ours.
    pub foreign: bool,
}

/// What the server says about who it is talking to: the number of its process, asked in turn on two connections.
/// Behind a pooler that lends a server's connection for one transaction, they change or are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backends {
    /// The first connection.
    pub first: i32,
    /// The second, inside a transaction.
    pub second: i32,
    /// The first again, while the second is inside its transaction.
    pub first_meanwhile: i32,
    /// The first again, afterwards.
    pub first_afterwards: i32,
}

/// Unfinished records of one status, and whether their owner is presumed alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The status.
    pub status: Status,
    /// No owner is presumed alive.
    pub lease_over: bool,
    /// How many.
    pub count: u64,
    /// Of those, held for a person.
    pub held: u64,
    /// How long ago the oldest began.
    pub oldest: Duration,
}

/// Finished records that have expired and are still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// How many.
    pub count: u64,
    /// How long ago the first of them expired.
    pub longest: Duration,
}

/// How the ledger grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Records.
    pub keys: u64,
    /// Of those, made within a day.
    pub keys_of_a_day: u64,
    /// How long those are kept on average.
    pub kept: Duration,
    /// What all records take, indexes included, where it can be told.
    pub keys_bytes: Option<u64>,
    /// Lines of deliveries.
    pub deliveries: u64,
    /// Of those, of the last day.
    pub deliveries_of_a_day: u64,
    /// What all those lines take, where it can be told.
    pub deliveries_bytes: Option<u64>,
    /// What the whole ledger takes.
    pub total_bytes: u64,
}

/// What a ledger can be asked about itself. Nothing is written.
pub trait Health: Send {
    /// Its settings.
    fn settings(&mut self) -> impl Future<Output = Result<Settings, StoreError>> + Send;

    /// The version of its schema; what is not there or not ours is a fact, not an error.
    fn schema_version(&mut self) -> impl Future<Output = Result<SchemaVersion, StoreError>> + Send;

    /// The database's clock: the machine's, not the one that tests can stop.
    fn database_time(&mut self) -> impl Future<Output = Result<Timestamp, StoreError>> + Send;

    /// Who answers on two connections; `None` where there is no server, or a pooler that the store knows of.
    fn backends(&mut self) -> impl Future<Output = Result<Option<Backends>, StoreError>> + Send;

    /// Unfinished records, by status and by whether their lease is over.
    fn unfinished(&mut self) -> impl Future<Output = Result<Vec<Unfinished>, StoreError>> + Send;

    /// Finished records that have expired.
    fn overdue(&mut self) -> impl Future<Output = Result<Overdue, StoreError>> + Send;

    /// How it grows. Reads whole tables.
    fn growth(&mut self) -> impl Future<Output = Result<Growth, StoreError>> + Send;
}
