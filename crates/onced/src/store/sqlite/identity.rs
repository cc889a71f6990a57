//! Whether the path of the database still leads to the file that the store has opened. A file that was removed or put
//! aside goes on taking writes from those who have it open, and whoever comes later finds nothing of them.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteConnectOptions;

use super::error;
use crate::store::{StoreError, StoreErrorKind};

#[cfg(test)]
mod tests;

const FILE: &str = "SELECT coalesce((SELECT file FROM pragma_database_list WHERE name = 'main'), '')";

/// The file as it was when the store was opened. A database in memory, or a temporary one, has none to watch.
#[derive(Clone)]
pub(super) struct Watched(Option<Arc<Known>>);

struct Known {
    /// What leads to it.
    path: PathBuf,
    /// What SQLite calls it, where it has followed symbolic links.
    opened: PathBuf,
    identity: Identity,
}

/// What tells one file from another. The time at which it was made, where the system knows it: once a file is gone,
/// and nobody has it open, its number is given to a new one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    number: (u64, u64),
    made: Option<SystemTime>,
}

impl Watched {
    /// Watches the file of that first connection, and says how to open the others: by a path that leads to the same
    /// place from any working directory, and without making a file where that one is gone.
    pub(super) async fn start(
        conn: &mut SqliteConnection,
        connect: SqliteConnectOptions,
    ) -> Result<(Self, SqliteConnectOptions), StoreError> {
        let opened = file_of(conn).await?;
        if opened.as_os_str().is_empty() {
            return Ok((Self(None), connect));
        }
        let identity = Identity::of(&fs::metadata(&opened).map_err(|source| missed(&opened, &source))?);
        let connect = connect.create_if_missing(false);
        // A link that leads elsewhere now would lead the next start elsewhere, too: the path as it was given is the one
        // to watch. An URI is no path.
        let given = std::path::absolute(connect.get_filename()).unwrap_or_else(|_| opened.clone());
        let (path, connect) = match fs::metadata(&given) {
            Ok(found) if Identity::of(&found) == identity => (given.clone(), connect.filename(given)),
            _ => (opened.clone(), connect),
        };
        Ok((Self(Some(Arc::new(Known { path, opened, identity }))), connect))
    }

    /// Whether there is a file, and not only memory.
    pub(super) fn is_a_file(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses unless the path leads to the file. What happens to the file after this look is for the next one to see.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match &self.0 {
            Some(known) => {
                known.check(&known.path)?;
                // The write-ahead log lies beside what SQLite has opened, by that name: a link in its place, which is a file
                // of its own, leads others to another log.
                known.compare(&known.opened, fs::symlink_metadata(&known.opened))
            }
            None => Ok(()),
        }
    }

    /// Refuses a connection that has opened anything else than the file, or the file by another name: its write-ahead log
    /// lies beside it by that name.
    pub(super) async fn check_opened(&self, conn: &mut SqliteConnection) -> Result<(), StoreError> {
        let Some(known) = &self.0 else { return Ok(()) };
        known.check(&known.path)?;
        let opened = file_of(conn).await?;
        if opened != known.opened {
            return Err(replaced(&opened));
        }
        known.check(&opened)
    }
}

impl Known {
    fn check(&self, path: &Path) -> Result<(), StoreError> {
        self.compare(path, fs::metadata(path))
    }

    fn compare(&self, path: &Path, found: io::Result<Metadata>) -> Result<(), StoreError> {
        match found {
            Ok(found) if Identity::of(&found) == self.identity => Ok(()),
            Ok(_) => Err(replaced(path)),
            Err(source) => Err(missed(path, &source)),
        }
    }
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        Self { number: number(found), made: found.created().ok() }
    }
}

#[cfg(unix)]
fn number(found: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

// There a file that is open cannot be removed or replaced.
#[cfg(not(unix))]
fn number(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

async fn file_of(conn: &mut SqliteConnection) -> Result<PathBuf, StoreError> {
    let file: String =
        sqlx::query_scalar(FILE).fetch_one(conn).await.map_err(|source| error::of(source, "ask which file is open"))?;
    Ok(PathBuf::from(file))
}

fn replaced(path: &Path) -> StoreError {
    let what = "is not the file that was opened: it was replaced. Put the first one back with its -wal, or restart to work with this one";
    unavailable(path, what)
}

fn missed(path: &Path, source: &io::Error) -> StoreError {
    if source.kind() == io::ErrorKind::NotFound {
        return unavailable(
            path,
            "was removed or moved away. Put it back with its -wal, or restart to begin with an empty one",
        );
    }
    unavailable(path, &format!("cannot be looked at: {source}"))
}

fn unavailable(path: &Path, what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("the SQLite file {} {what}", path.display()))
}
