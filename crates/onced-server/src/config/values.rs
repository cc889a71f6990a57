//! Reads single values: durations, sizes, numbers, words, header names, pointers.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use onced_core::pointer::Pointer;

use super::document::{Entry, Section};
use super::settings::nearest;

/// No duration may be longer: the databases would count beyond their calendars.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A choice among words.
pub(crate) trait Words: Copy + PartialEq + 'static {
    /// Every word with what it means.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for it.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }

    /// Reads the word; `None` where it is none of them.
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }

    /// All the words, as advice.
    fn advice(written: &str) -> String {
        let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
        let near = nearest(written, words.iter().copied()).map(|word| format!("; did you mean \"{word}\"?"));
        format!("write {}{}", one_of(&words), near.unwrap_or_default())
    }
}

/// `"a", "b" or "c"`.
pub(crate) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some(_) | None => quoted.concat(),
    }
}

/// A duration as it is written in the file.
pub(crate) fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// A value, where it was written, and whether it could be read.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a, T> {
    pub(crate) value: T,
    pub(crate) entry: Option<Entry<'a>>,
    pub(crate) sound: bool,
}

/// A section and the defaults that stand behind it.
pub(crate) struct Layers<'a, 's> {
    pub(crate) own: Option<&'s Section<'a>>,
    pub(crate) defaults: Option<&'s Section<'a>>,
}

impl<'a> Layers<'a, '_> {
    pub(crate) fn get(&self, name: &'static str) -> Option<Entry<'a>> {
        self.own_entry(name).or_else(|| self.defaults.and_then(|section| section.get(name)))
    }

    /// Only what the section says itself.
    pub(crate) fn own_entry(&self, name: &'static str) -> Option<Entry<'a>> {
        self.own.and_then(|section| section.get(name))
    }

    /// Whether the section says this itself, rather than the defaults.
    pub(crate) fn is_own(&self, entry: &Entry<'a>) -> bool {
        self.own_entry(entry.name).is_some_and(|own| own.at == entry.at)
    }

    /// Reads a value; `default` where it is not written or was refused.
    pub(crate) fn read<T>(
        &self,
        name: &'static str,
        default: T,
        read: impl FnOnce(&Entry<'a>) -> Option<T>,
    ) -> Given<'a, T> {
        let entry = self.get(name);
        match entry.as_ref().map(read) {
            Some(Some(value)) => Given { value, entry, sound: true },
            Some(None) => Given { value: default, entry, sound: false },
            None => Given { value: default, entry, sound: true },
        }
    }
}

impl<'a> Entry<'a> {
    /// A text in quotes.
    pub(crate) fn text(&self, example: &str) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.refuse(format!("is not text; write {} = \"{example}\"", self.name));
        }
        text
    }

    /// `true` or `false`.
    pub(crate) fn switch(&self) -> Option<bool> {
        let switch = self.value.as_bool();
        if switch.is_none() {
            self.refuse(format!("is neither true nor false; write {} = true, without quotes", self.name));
        }
        switch
    }

    /// One of a list of words.
    pub(crate) fn word<T: Words>(&self) -> Option<T> {
        let written = self.value.as_str();
        let found = written.and_then(T::from_word);
        if found.is_none() {
            self.refuse(format!("is not known; {}", T::advice(written.unwrap_or(""))));
        }
        found
    }

    /// A whole number.
    pub(crate) fn number(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let number = self.integer().and_then(|number| u32::try_from(number).ok()).filter(|n| range.contains(n));
        if number.is_none() {
            self.refuse(format!("is not a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    fn integer(&self) -> Option<i64> {
        let integer = self.value.as_integer()?;
        i64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
    }

    /// A duration, `"30s"`, `"15min"`, `"7days"`.
    pub(crate) fn duration(&self, least: Duration) -> Option<Duration> {
        let Some(text) = self.value.as_str() else {
            self.refuse(format!("is not a duration; write it in quotes with its unit: {} = \"30s\"", self.name));
            return None;
        };
        let Ok(duration) = humantime::parse_duration(text) else {
            self.refuse(
                "is not a duration; write a number and a unit, such as \"500ms\", \"30s\", \"15min\", \"7days\"",
            );
            return None;
        };
        if duration < least {
            self.refuse(format!("is too short; write at least \"{}\"", shown(least)));
        } else if duration > LONGEST {
            self.refuse(format!("is too long; write at most \"{}\"", shown(LONGEST)));
        } else {
            return Some(duration);
        }
        None
    }

    /// A size in bytes, `1048576` or `"1MiB"`.
    pub(crate) fn bytes(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let read = match self.value.as_str() {
            Some(text) => size(text),
            None => self.integer().and_then(|number| u64::try_from(number).ok()),
        };
        let Some(bytes) = read else {
            self.refuse("is not a size; write a number of bytes, or one with a unit, such as \"512KiB\" or \"1MiB\"");
            return None;
        };
        if !range.contains(&bytes) {
            let (least, most) = (shown_bytes(*range.start()), shown_bytes(*range.end()));
            self.refuse(format!("is out of range; write \"{least}\" to \"{most}\": every body is held in memory"));
            return None;
        }
        Some(bytes)
    }

    /// The name of a header.
    pub(crate) fn header_name(&self) -> Option<HeaderName> {
        let name = HeaderName::from_bytes(self.text("X-Request-Key")?.as_bytes()).ok();
        if name.is_none() {
            self.refuse("is not the name of a header; write letters, digits and `-` only, without the colon");
        }
        name
    }

    /// A JSON pointer (RFC 6901).
    pub(crate) fn pointer(&self) -> Option<Pointer> {
        let text = self.text("/id")?;
        let pointer = Pointer::parse(text).ok();
        if pointer.is_none() {
            self.refuse(
                "is not a JSON pointer; write \"/\" before every name, \"/data/id\"; in a name, \"~1\" stands for \
                 \"/\" and \"~0\" for \"~\"",
            );
        }
        pointer
    }
}

const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

fn size(text: &str) -> Option<u64> {
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)))
        .unwrap_or((text, 1));
    let number = number.trim();
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// A size as it is written in the file.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    let whole = UNITS.iter().take(3).find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    whole.map_or_else(|| format!("{bytes}B"), |(unit, factor)| format!("{}{unit}", bytes / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in
            [("0", Some(0)), ("1MiB", Some(1 << 20)), ("2 KiB", Some(2048)), ("5kB", Some(5000)), ("7B", Some(7))]
        {
            assert_eq!(size(text), bytes, "{text}");
        }
        for text in ["", "MiB", "-1", "+1", "1.5MiB", "1 MIB", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!((shown_bytes(1 << 20), shown_bytes(1000)), ("1MiB".to_owned(), "1000B".to_owned()));
    }
}
