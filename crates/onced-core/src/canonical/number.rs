//! Numbers as exact decimals.

use super::NotCanonical;

/// A number by its exact value: `digits` × 10^`exponent`. The digits neither begin nor end with a zero, so that there
/// is one form for each value; zero has no digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Number {
    /// Reads a number of the JSON grammar, which the tokenizer has checked.
    pub(super) fn parse(text: &str) -> Result<Self, NotCanonical> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (negative, unsigned) = mantissa.strip_prefix('-').map_or((false, mantissa), |rest| (true, rest));
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let written = [whole, fraction].concat();
        let without_tail = written.trim_end_matches('0');
        let digits = without_tail.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self { negative: false, digits: String::new(), exponent: 0 }); // -0 and 0e9 too
        }
        // In i128, so that the bound depends on the value only and not on where the point stands: an exponent too
        // large to be read here is far outside of i64 after any shift that a body can hold.
        let exponent: i128 = exponent.parse().map_err(|_| NotCanonical::Exponent)?;
        let shift = |digits: usize| i128::try_from(digits).unwrap_or(i128::MAX);
        let exponent = exponent
            .checked_sub(shift(fraction.len()))
            .and_then(|moved| moved.checked_add(shift(written.len() - without_tail.len())))
            .and_then(|moved| i64::try_from(moved).ok())
            .ok_or(NotCanonical::Exponent)?;
        Ok(Self { negative, digits: digits.to_owned(), exponent })
    }

    pub(super) fn write_canonical(&self, out: &mut String) {
        if self.negative {
            out.push('-');
        }
        out.push_str(if self.digits.is_empty() { "0" } else { &self.digits });
        out.push('e');
        out.push_str(&self.exponent.to_string());
    }

    /// Whether the value is a whole number, however it was written.
    pub(crate) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    /// A whole number's digits written out, with its sign, if that takes at most `max` characters.
    pub(crate) fn integer_text(&self, max: usize) -> Option<String> {
        let zeros = usize::try_from(self.exponent).ok()?;
        let length = usize::from(self.negative).checked_add(self.digits.len())?.checked_add(zeros)?;
        if length > max {
            return None;
        }
        let sign = if self.negative { "-" } else { "" };
        let digits = if self.digits.is_empty() { "0" } else { &self.digits };
        Some(format!("{sign}{digits}{}", "0".repeat(zeros)))
    }
}

#[cfg(test)]
mod tests {
    use crate::canonical::{MAX_BYTES, NotCanonical, parse};

    fn canonical(text: &str) -> String {
        String::from_utf8(parse(text.as_bytes()).unwrap().canonical()).unwrap()
    }

    #[test]
    fn numbers_are_exact_decimals_of_one_form() {
        let check = |texts: &[&str], expected: &str| {
            for text in texts {
                assert_eq!(canonical(text), expected, "{text}");
            }
        };
        check(&["0", "-0", "0.0", "-0.00e7", "0e99999999999999999999999999999999999999999999"], "0e0");
        check(&["1", "1.0", "1e0", "1E+0", "10e-1", "0.1e1", "0.001e3", "1e00", "1e-0"], "1e0");
        check(&["100", "1e2", "1.00e2", "10000e-2"], "1e2");
        check(&["-12.50", "-125e-1"], "-125e-1");
        check(&["0.10"], "1e-1");
        check(&["9007199254740993"], "9007199254740993e0");
        check(&["1e999999999"], "1e999999999");
        check(&["1e9223372036854775807", "10e9223372036854775806", "0.1e9223372036854775808"], "1e9223372036854775807");
        check(&["1e-9223372036854775808", "0.1e-9223372036854775807"], "1e-9223372036854775808");
        for text in [
            "1e9223372036854775808",
            "10e9223372036854775807",
            "0.1e-9223372036854775808",
            "1e99999999999999999999",
            "1e-99999999999999999999999999999999999999999999999999",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(NotCanonical::Exponent), "{text}");
        }
        let long = "7".repeat(MAX_BYTES);
        assert_eq!(canonical(&long), format!("{long}e0"));
    }
}
