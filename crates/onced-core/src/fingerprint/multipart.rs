//! Multipart forms (`multipart/form-data`) as what they say: parts, in order, without the boundary between them.
//!
//! A sender draws a new boundary each time it writes the form, so the same form has other bytes on a retry. Only what
//! every reader reads in the same way is taken apart: anything unusual is left to the raw bytes.

use crate::key::Parts;

/// More parts than any form has; what has more counts by its raw bytes.
const MAX_PARTS: usize = 10_000;
/// More headers in one part, or parameters in one header, than any sender writes: each costs more memory than its bytes.
const MAX_HEADERS: usize = 64;
const MAX_PARAMETERS: usize = 8;
/// By RFC 2046.
const MAX_BOUNDARY: usize = 70;

/// The boundary in a `Content-Type`. Where there is none, more than one, or none that every reader would read so, it is
/// whatever stands behind the media type, which is then no boundary: it begins with `;`.
#[must_use]
pub fn boundary_of(content_type: &str) -> String {
    let Some((_, rest)) = content_type.split_once(';') else { return String::new() };
    let unsound = || format!(";{rest}");
    let Some(parameters) = parameters(rest.as_bytes()) else { return unsound() };
    let mut found = parameters.into_iter().filter(|(name, _)| name == "boundary").map(|(_, value)| value);
    match (found.next(), found.next()) {
        (Some(boundary), None) if is_boundary(boundary) => String::from_utf8_lossy(boundary).into_owned(), // is ASCII
        _ => unsound(),
    }
}

fn is_boundary(text: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (1..=MAX_BOUNDARY).contains(&text.len()) && text.iter().all(allowed) && !text.ends_with(b" ")
}

/// Adds the parts of a form; `None` where the body is not plainly one.
pub(super) fn add(hash: Parts, boundary: &str, body: &[u8]) -> Option<Parts> {
    if !is_boundary(boundary.as_bytes()) {
        return None;
    }
    // Every place where this stands must be a delimiter, also those that only a lenient reader would take for one.
    let delimiter = [b"--", boundary.as_bytes()].concat();
    let mut pieces = split(body, &delimiter);
    let (preamble, mut piece) = (pieces.next()?, pieces.next()?);
    if !matches!(preamble, b"" | b"\r\n") {
        return None;
    }
    let mut hash = hash.add("multipart");
    for _ in 0..=MAX_PARTS {
        let Some(next) = pieces.next() else { return matches!(piece, b"--" | b"--\r\n").then_some(hash) };
        hash = add_part(hash, piece.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n")?)?;
        piece = next;
    }
    None
}

/// What stands before, between and after the delimiters.
fn split<'a>(text: &'a [u8], delimiter: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let Some(at) = find(text, delimiter) else { return Some(text) };
        rest = Some(&text[at + delimiter.len()..]);
        Some(&text[..at])
    })
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

fn add_part(hash: Parts, part: &[u8]) -> Option<Parts> {
    let end = find(part, b"\r\n\r\n")?;
    let (head, content) = (&part[..end], &part[end + 4..]);
    let (mut disposition, mut media_type, mut others) = (None, None, Vec::new());
    for line in split(head, b"\r\n") {
        let (name, value) = header(line)?;
        match name.as_str() {
            "content-disposition" if disposition.is_none() => disposition = Some(form_data(value)?),
            "content-type" if media_type.is_none() => media_type = Some(value),
            "content-disposition" | "content-type" => return None,
            _ if others.len() == MAX_HEADERS => return None,
            _ => others.push((name, value)),
        }
    }
    let Disposition { name, filename, extended } = disposition?;
    let hash = add_optional(hash.add("part").add(name), filename);
    let hash = extended.into_iter().fold(hash, |hash, value| hash.add("filename*").add(value));
    let hash = add_optional(hash, media_type);
    let hash = others.into_iter().fold(hash, |hash, (name, value)| hash.add("header").add(name).add(value));
    Some(hash.add("content").add(content))
}

fn add_optional(hash: Parts, value: Option<&[u8]>) -> Parts {
    match value {
        Some(value) => hash.add("present").add(value),
        None => hash.add("absent"),
    }
}

/// The name in lower case and the value without the blanks around it. A folded line, or one with a lone CR or LF, is no
/// header.
fn header(line: &[u8]) -> Option<(String, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
    let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    let sound = is_token(name) && value.iter().all(is_text);
    sound.then(|| (String::from_utf8_lossy(name).to_ascii_lowercase(), value)) // a token is ASCII
}

/// What a `Content-Disposition: form-data` says.
struct Disposition<'a> {
    name: &'a [u8],
    filename: Option<&'a [u8]>,
    /// `filename*`, which some readers look at and others do not: it counts beside the other.
    extended: Option<&'a [u8]>,
}

fn form_data(value: &[u8]) -> Option<Disposition<'_>> {
    let end = value.iter().position(|byte| *byte == b';')?;
    if !trimmed(&value[..end]).eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut filename, mut extended) = (None, None, None);
    for (parameter, value) in parameters(&value[end + 1..])? {
        match parameter.as_str() {
            "name" if name.is_none() => name = Some(value),
            "filename" if filename.is_none() => filename = Some(value),
            "filename*" if extended.is_none() => extended = Some(value),
            _ => return None,
        }
    }
    Some(Disposition { name: name?, filename, extended })
}

/// `a=b; c="d"`: names in lower case, values without their quotes. `None` where readers disagree: on a backslash within
/// quotes, on blanks around the equals sign, on anything between two parameters.
fn parameters(mut rest: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let mut found = Vec::new();
    loop {
        rest = trimmed(rest);
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, after) = (&rest[..equals], &rest[equals + 1..]);
        if !is_token(name) || found.len() == MAX_PARAMETERS {
            return None;
        }
        let (value, after) = if let Some(quoted) = after.strip_prefix(b"\"") {
            let end = quoted.iter().position(|byte| *byte == b'"')?;
            (&quoted[..end], trimmed(&quoted[end + 1..]))
        } else {
            let end = after.iter().position(|byte| *byte == b';').unwrap_or(after.len());
            (trimmed(&after[..end]), &after[end..])
        };
        let quoted = rest.get(equals + 1) == Some(&b'"');
        if value.contains(&b'\\') || (!quoted && (value.is_empty() || value.iter().any(|byte| b" \t\"".contains(byte))))
        {
            return None;
        }
        found.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value)); // a token is ASCII
        match after {
            [] => return Some(found),
            [b';', more @ ..] => rest = more,
            _ => return None,
        }
    }
}

fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[cfg(test)]
mod tests;
