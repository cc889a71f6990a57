//! Form bodies: another spelling of a well-formed one is the same, and nothing that is added is lost.

use super::{hash_of, outcome, shape};

const FORM: &str = "application/x-www-form-urlencoded";

pub(crate) fn target(input: &[u8]) -> u64 {
    let first = hash_of(FORM, "", input);
    for more in [&b"&"[..], b"a", b"%", b"%20", b"\0"] {
        assert_ne!(first, hash_of(FORM, "", &[input, more].concat()), "{} was lost", more.escape_ascii());
    }
    let well_formed = is_well_formed(input);
    let respelled: Vec<u8> = input
        .iter()
        .flat_map(|byte| if *byte == b'+' { &b"%20"[..] } else { std::slice::from_ref(byte) })
        .copied()
        .collect();
    assert_eq!(first == hash_of(FORM, "", &respelled), well_formed || respelled == input);
    outcome((well_formed, shape(input)))
}

fn is_well_formed(text: &[u8]) -> bool {
    let mut after_percent = text.split(|byte| *byte == b'%').skip(1);
    after_percent.all(|rest| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit))
}
