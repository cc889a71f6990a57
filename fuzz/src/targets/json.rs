//! Canonical JSON: it is JSON, its own canonical form, and the same request as what it was made of.

use onced_core::derive::{json_at, text_from_pointer};
use onced_core::pointer::Pointer;

use super::{hash_of, outcome, shape};

const JSON: &str = "application/json";

pub(crate) fn target(input: &[u8]) -> u64 {
    let Ok(whole) = Pointer::parse("") else { return 0 };
    let _ = text_from_pointer(input, &whole);
    let Ok(Some(canonical)) = json_at(input, &whole) else {
        // It counts by its bytes.
        assert_ne!(hash_of(JSON, "", input), hash_of(JSON, "", &[input, b" "].concat()));
        return outcome(shape(input));
    };
    assert_eq!(json_at(&canonical, &whole).as_ref(), Ok(&Some(canonical.clone())), "the canonical form is stable");
    assert_eq!(hash_of(JSON, "", input), hash_of(JSON, "", &canonical), "and the same request");
    assert_eq!(hash_of(JSON, "", input), hash_of(JSON, "", &[b"\n", input, b"\t"].concat()));
    assert_ne!(hash_of(JSON, "", input), hash_of(JSON, "", &[b"[", input, b"]"].concat()));
    outcome((true, shape(&canonical)))
}
