//! What can go wrong between us and a database, in four kinds that decide what may be done next.

use std::fmt;

/// An error of the store: its kind for the program, its words for people, its source for the debugger.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    words: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What may be done after a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The transaction was rolled back for a reason that passes (a serialization failure, a deadlock, a lock that was
    /// not got in time). The whole transaction may be run again.
    Transient,
    /// The store could not be asked: nothing was sent.
    Unavailable,
    /// The connection broke while a statement was under way: it may have been committed or not.
    Lost,
    /// The database refuses, or holds what this version does not understand. Running again does not help.
    Refused,
}

impl StoreError {
    /// An error of that kind, in those words.
    pub fn new(kind: StoreErrorKind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into(), source: None }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn with_source(
        kind: StoreErrorKind,
        words: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, words: words.into(), source: Some(source.into()) }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn refused(words: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Refused, words)
    }

    /// The same error, of which more is known: what may be done next.
    pub(crate) fn with_kind(self, kind: StoreErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// What happened, without the kind.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// What may be done next.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the whole transaction may simply be run again.
    pub fn is_transient(&self) -> bool {
        self.kind == StoreErrorKind::Transient
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StoreErrorKind::Transient => "transient",
            StoreErrorKind::Unavailable => "store unavailable",
            StoreErrorKind::Lost => "connection lost",
            StoreErrorKind::Refused => "refused",
        };
        write!(f, "{} ({kind})", self.words)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

/// What is being done while a transaction is committed.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) const COMMIT: &str = "commit";

/// Whether an application's own statement failed because the database rolled its transaction back for a reason that passes:
/// the whole transaction may be run again. Not where MariaDB says that a statement was ended by a person or by its time-out:
/// it may have been the application's own commit, which is then done or not.
pub fn passes(error: &sqlx::Error) -> bool {
    let Some(answer) = error.as_database_error() else { return false };
    #[cfg(feature = "mysql")]
    if super::mysql::error::is_interruption(answer) {
        return false;
    }
    kind_of(answer) == Some(StoreErrorKind::Transient)
}

/// By the database whose answer it is; `None` where that is none of ours.
fn kind_of(answer: &(dyn sqlx::error::DatabaseError + 'static)) -> Option<StoreErrorKind> {
    #[cfg(feature = "postgres")]
    if answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
        return Some(super::postgres::error::kind_of(answer));
    }
    #[cfg(feature = "sqlite")]
    if answer.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return Some(super::sqlite::error::kind_of(answer));
    }
    #[cfg(feature = "mysql")]
    if answer.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().is_some() {
        return Some(super::mysql::error::kind_of(answer));
    }
    let _ = answer;
    None
}

/// Translates what every driver has in common; `of_database` reads the code of the database's own answer.
// The driver's errors are its own to extend.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
#[allow(clippy::wildcard_enum_match_arm)]
pub(crate) fn translate(
    error: sqlx::Error,
    doing: &'static str,
    of_database: impl FnOnce(&dyn sqlx::error::DatabaseError) -> StoreErrorKind,
) -> StoreError {
    let (kind, words) = match &error {
        sqlx::Error::Database(answer) => {
            // Only the message: details can quote a row's values.
            (of_database(answer.as_ref()), format!("{doing}: {}", answer.message()))
        }
        sqlx::Error::PoolTimedOut => {
            (StoreErrorKind::Unavailable, format!("{doing}: no connection became free in time"))
        }
        sqlx::Error::PoolClosed => (StoreErrorKind::Unavailable, format!("{doing}: the store is closed")),
        sqlx::Error::Io(source) => (StoreErrorKind::Lost, format!("{doing}: {source}")),
        sqlx::Error::WorkerCrashed => (StoreErrorKind::Lost, format!("{doing}: the connection's worker is gone")),
        sqlx::Error::Protocol(source) => (StoreErrorKind::Lost, format!("{doing}: {source}")),
        other => (StoreErrorKind::Refused, format!("{doing}: {other}")),
    };
    StoreError::with_source(kind, words, error)
}

#[cfg(all(test, any(feature = "sqlite", feature = "postgres", feature = "mysql")))]
mod tests {
    use super::*;

    #[test]
    fn words_name_the_kind_and_keep_the_source() {
        let error = translate(sqlx::Error::PoolTimedOut, "claim", |_| StoreErrorKind::Refused);
        assert_eq!(error.to_string(), "claim: no connection became free in time (store unavailable)");
        assert!(std::error::Error::source(&error).is_some());
        assert!(!error.is_transient());
    }
}
