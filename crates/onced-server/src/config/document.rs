//! A TOML file with the place of everything in it, and the list of what is wrong.

use std::cell::RefCell;
use std::collections::BTreeSet;

use toml::de::{DeTable, DeValue};

use super::errors::{ConfigError, Position};
use super::outside::Outside;
use super::settings::{self, Place};
use super::store_url::redact_url;

/// The file being read. What is wrong is collected, so that one run tells all of it.
pub(crate) struct Document<'a> {
    file: &'a str,
    text: &'a str,
    pub(crate) outside: &'a dyn Outside,
    errors: RefCell<Vec<ConfigError>>,
    asked: RefCell<BTreeSet<(Place, &'static str)>>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str, outside: &'a dyn Outside) -> Self {
        Self { file, text, outside, errors: RefCell::default(), asked: RefCell::default() }
    }

    /// Reads the text. What is not TOML is refused here.
    pub(crate) fn tables(&self) -> DeTable<'a> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.refuse(
                at,
                format!(
                    "this is not TOML: {}; a setting is `name = value`, text stands in double quotes, a section \
                     begins with [name]",
                    error.message()
                ),
            );
        }
        table.into_inner()
    }

    /// Notes that what stands at that byte of the text is wrong.
    pub(crate) fn refuse(&self, at: usize, message: impl Into<String>) {
        let (line, column) = self.line_and_column(at);
        self.note(Position::Place { file: self.file.to_owned(), line, column }, message.into());
    }

    /// Notes that the file as a whole is wrong.
    pub(crate) fn refuse_file(&self, message: impl Into<String>) {
        self.note(Position::File(self.file.to_owned()), message.into());
    }

    /// Notes that a flag is wrong.
    pub(crate) fn refuse_flag(&self, message: impl Into<String>) {
        self.note(Position::Flags, message.into());
    }

    fn note(&self, at: Position, message: String) {
        self.errors.borrow_mut().push(ConfigError { at, message });
    }

    /// The line of a byte of the text, counted from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.line_and_column(at).0
    }

    fn line_and_column(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let column = before.get(line_start..).map_or(0, |s| s.chars().count());
        (before.matches('\n').count() + 1, column + 1)
    }

    /// Whether nothing was refused so far.
    pub(crate) fn is_sound(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// What was refused.
    pub(crate) fn into_errors(self) -> Vec<ConfigError> {
        self.errors.into_inner()
    }

    /// Which settings the reading code has asked for: tests compare it with the table of settings.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> BTreeSet<(Place, &'static str)> {
        self.asked.borrow().clone()
    }
}

/// One table of the file.
pub(crate) struct Section<'a> {
    pub(crate) document: &'a Document<'a>,
    /// How messages call it: `[store]`, `[[route]] "orders"`.
    pub(crate) title: String,
    /// Where it begins.
    pub(crate) at: usize,
    places: &'static [Place],
    table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    pub(crate) fn new(
        document: &'a Document<'a>,
        title: impl Into<String>,
        at: usize,
        places: &'static [Place],
        table: &'a DeTable<'a>,
    ) -> Self {
        Self { document, title: title.into(), at, places, table }
    }

    /// What is written under that name.
    pub(crate) fn get(&self, name: &'static str) -> Option<Entry<'a>> {
        let place = settings::find(self.places, name).map(|setting| setting.place);
        debug_assert!(place.is_some(), "`{name}` is missing in the table of settings");
        self.document.asked.borrow_mut().extend(place.map(|place| (place, name)));
        let (key, value) = self.table.get_key_value(name)?;
        let (at, span) = (key.span().start, value.span());
        Some(Entry { document: self.document, name, at, value: value.get_ref(), start: span.start, end: span.end })
    }

    /// What is written under that name; refused where nothing is.
    pub(crate) fn required(&self, name: &'static str, example: &str) -> Option<Entry<'a>> {
        let entry = self.get(name);
        if entry.is_none() {
            self.document.refuse(self.at, format!("{} has no `{name}`; add {example}", self.title));
        }
        entry
    }

    /// Refuses every name that does not belong here, with the name that was probably meant.
    pub(crate) fn refuse_unknown(&self) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if settings::find(self.places, name).is_none() && !self.is_table_of_the_file(name) {
                let advice = settings::advice_for_unknown(self.places, name);
                self.document.refuse(key.span().start, format!("{} has no setting `{name}`; {advice}", self.title));
            }
        }
    }

    fn is_table_of_the_file(&self, name: &str) -> bool {
        self.places.contains(&Place::Top) && settings::TABLES.contains(&name)
    }
}

/// One value of the file, with its name and place.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) document: &'a Document<'a>,
    pub(crate) name: &'static str,
    /// Where its name stands; for an element of a list, the element itself.
    pub(crate) at: usize,
    pub(crate) value: &'a DeValue<'a>,
    start: usize,
    end: usize,
}

impl<'a> Entry<'a> {
    /// Refuses it: `name = value` as written, then the message.
    pub(crate) fn refuse(&self, message: impl AsRef<str>) {
        self.document.refuse(self.at, format!("{} {}", self.shown(), message.as_ref()));
    }

    /// `name = value` as written, on one line, without the password of a URL.
    pub(crate) fn shown(&self) -> String {
        // Whoever writes a token there, against the advice, is not to find it in a log.
        if self.name == "tokens" {
            return self.name.to_owned();
        }
        let may_be_a_url = |text: &str| matches!(self.name, "url" | "upstream") || text.contains("://");
        let written = self.document.text.get(self.start..self.end).unwrap_or("…");
        let value = match self.value.as_str() {
            Some(text) if may_be_a_url(text) => format!("\"{}\"", redact_url(text)),
            None if may_be_a_url(written) => return self.name.to_owned(),
            Some(_) | None => written.to_owned(),
        };
        let first_line = value.lines().next().unwrap_or("");
        let cut = first_line.char_indices().nth(80).map_or(first_line.len(), |(i, _)| i);
        let rest = if cut < value.len() { "…" } else { "" };
        format!("{} = {}{rest}", self.name, first_line.get(..cut).unwrap_or(first_line))
    }

    /// The elements of a list; refused where it is none.
    pub(crate) fn elements(&self, example: &str) -> Option<Vec<Entry<'a>>> {
        let Some(array) = self.value.as_array() else {
            self.refuse(format!("is not a list; write {} = {example}", self.name));
            return None;
        };
        let element = |value: &'a toml::Spanned<DeValue<'a>>| {
            let span = value.span();
            Entry { at: span.start, value: value.get_ref(), start: span.start, end: span.end, ..*self }
        };
        Some(array.iter().map(element).collect())
    }

    /// The table that this value is, for names of `places`.
    pub(crate) fn section(&self, places: &'static [Place]) -> Option<Section<'a>> {
        let table = self.value.as_table()?;
        Some(Section::new(self.document, format!("`{}`", self.name), self.at, places, table))
    }
}
