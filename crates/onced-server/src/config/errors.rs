//! What is wrong with a configuration, each with its place and with what would be right.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// Where it stands.
    pub(crate) at: Position,
    /// What is wrong and what would be right. It may have several lines, and never shows a password.
    pub(crate) message: String,
}

/// Where something is wrong. The order is the order of reporting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Position {
    /// On the command line.
    Flags,
    /// In the file as a whole.
    File(String),
    /// At a place in the file, lines and columns counted from 1.
    Place {
        /// The file, as it was named.
        file: String,
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Position::Flags => f.write_str(&self.message),
            Position::File(file) => write!(f, "{file}: {}", self.message),
            Position::Place { file, line, column } => write!(f, "{file}:{line}:{column}: {}", self.message),
        }
    }
}

/// Everything that is wrong with a configuration, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Sorts them, and drops what was found twice (a default that every route inherits).
    pub(crate) fn new(mut list: Vec<ConfigError>) -> Self {
        list.sort_by(|a, b| a.at.cmp(&b.at));
        let mut kept: Vec<ConfigError> = Vec::with_capacity(list.len());
        for error in list {
            if !kept.contains(&error) {
                kept.push(error);
            }
        }
        Self(kept)
    }

    /// Each of them.
    pub(crate) fn list(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.list().iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
