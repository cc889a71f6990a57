//! The flags of `onced serve`, which go before the file.

use std::net::SocketAddr;

use onced_core::failure::Effect;

use super::values::Words;

/// What the command line says. `onced serve --upstream URL` needs no file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// `--listen`: goes before `listen`.
    pub(crate) listen: Option<SocketAddr>,
    /// `--upstream`: goes before the file's `upstream`, for what matches no route.
    pub(crate) upstream: Option<String>,
    /// `--store`: goes before the `url` of `[store]`.
    pub(crate) store: Option<String>,
    /// `--effect`: what that upstream does; `external` where nothing is said.
    pub(crate) effect: Option<Effect>,
    /// `--require-key`: what goes to that upstream must carry a key.
    pub(crate) require_key: bool,
}

/// Reads the value of `--effect` with the words of the file.
pub(crate) fn effect_from_word(word: &str) -> Result<Effect, String> {
    Effect::from_word(word).ok_or_else(|| Effect::advice(word))
}
