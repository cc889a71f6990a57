//! The key header: whatever its lines hold, a key that comes of it is one, and comes again when it is quoted.

use onced_core::key::{Key, key_from_header_lines};

use super::{outcome, shape};

pub(crate) fn target(input: &[u8]) -> u64 {
    let found = key_from_header_lines(input.split(|byte| *byte == b'\n'));
    if let Ok(Some(key)) = &found {
        let text = key.as_str();
        assert_eq!(Key::new(text).as_ref(), Ok(key), "a key is a key");
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        assert_eq!(key_from_header_lines(std::iter::once(quoted.as_bytes())).as_ref(), Ok(&Some(key.clone())));
        if !text.starts_with('"') {
            assert_eq!(key_from_header_lines(std::iter::once(text.as_bytes())).as_ref(), Ok(&Some(key.clone())));
        }
        let _ = key.shortened();
    }
    outcome((found.map(|key| key.is_some()).map_err(|error| error.to_string()), shape(input)))
}
