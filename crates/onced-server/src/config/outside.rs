//! What reading a configuration may ask of the machine: environment variables and small files.

use std::path::Path;
use std::time::Duration;

use super::document::{Entry, Section};

/// The surroundings of the process, so that tests can bring their own.
pub(crate) trait Outside {
    /// The value of an environment variable; `None` where it is not set or not text.
    fn variable(&self, name: &str) -> Option<String>;
    /// The text of a file; a relative path counts from the working directory.
    fn file(&self, path: &Path) -> std::io::Result<String>;
}

/// The surroundings of this process.
pub(crate) struct Process;

impl Outside for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> std::io::Result<String> {
        std::fs::read_to_string(path)
    }
}

/// The smallest lease, and the unit of `Retry-After`: one second. `ONCED_TEST_TENTHS=1`, for tests only, makes it a
/// tenth. This is the one place that reads the variable.
pub(crate) fn tick(outside: &dyn Outside) -> Duration {
    match outside.variable("ONCED_TEST_TENTHS").as_deref() {
        Some("1") => Duration::from_millis(100),
        Some(_) | None => Duration::from_secs(1),
    }
}

/// The text that `{ env = … }` or `{ file = … }` points to, without the blanks around it, and the entry that does.
pub(super) fn kept<'a>(entry: &Entry<'a>, section: &Section<'a>, right: &str) -> Option<(Entry<'a>, String)> {
    let outside = entry.document.outside;
    let (source, text) = match (section.get("env"), section.get("file")) {
        (Some(env), None) => {
            let text = outside.variable(env.text("NAME")?).filter(|text| !text.is_empty());
            if text.is_none() {
                env.refuse("is an environment variable that is not set; set it, or name another one");
            }
            (env, text?)
        }
        (None, Some(file)) => {
            let read = outside.file(Path::new(file.text("/run/secrets/name")?));
            let text = read.map_err(|error| {
                file.refuse(format!("cannot be read ({error}); name a file that this process may read"));
            });
            (file, text.ok()?)
        }
        (Some(_), Some(_)) | (None, None) => {
            entry.refuse(format!("must name one place; {right}"));
            return None;
        }
    };
    Some((source, text.trim().to_owned()))
}
