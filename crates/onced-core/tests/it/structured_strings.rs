//! Strings of structured fields (RFC 9651, section 4.2.5) as keys: the categories of the working group's own test suite,
//! made anew from the grammar. A value that begins with a quotation mark must be one whole string.

use onced_core::key::{KeyError, key_from_header_lines};

/// What is to come of a header value: the key, or a value that is refused as malformed.
fn check(value: &[u8], expected: Option<&[u8]>, checked: &mut u32) {
    let found = key_from_header_lines(std::iter::once(value));
    let shown = value.escape_ascii();
    match expected {
        Some(key) => assert_eq!(found.expect("a key").expect("a key").as_str().as_bytes(), key, "{shown}"),
        None => assert_eq!(found, Err(KeyError::Malformed), "{shown}"),
    }
    *checked += 1;
}

/// Within quotes stand the printable bytes of ASCII; a quotation mark ends the string and a backslash begins an escape.
#[test]
fn every_byte_within_quotes() {
    let mut checked = 0;
    for byte in 0..=u8::MAX {
        let expected = [b'a', byte, b'z'];
        let allowed = (0x20..=0x7e).contains(&byte) && byte != b'"' && byte != b'\\';
        check(&[b'"', b'a', byte, b'z', b'"'], allowed.then_some(&expected[..]), &mut checked);
    }
    assert_eq!(checked, 256);
}

/// Only the two bytes that need one may be escaped.
#[test]
fn every_byte_behind_a_backslash() {
    let mut checked = 0;
    for byte in 0..=u8::MAX {
        let expected = [b'a', byte, b'z'];
        let allowed = byte == b'"' || byte == b'\\';
        check(&[b'"', b'a', b'\\', byte, b'z', b'"'], allowed.then_some(&expected[..]), &mut checked);
    }
    assert_eq!(checked, 256);
}

/// Behind the string stand parameters or nothing.
#[test]
fn every_byte_behind_the_string() {
    let mut checked = 0;
    for byte in 0..=u8::MAX {
        // Blanks at the ends of a field value are none of it. A lone semicolon has no parameter behind it.
        let allowed = byte == b' ' || byte == b'\t';
        check(&[b'"', b'k', b'"', byte], allowed.then_some(&b"k"[..]), &mut checked);
    }
    assert_eq!(checked, 256);
}

#[test]
fn whole_values() {
    let long = "x".repeat(255);
    let sound: &[(&str, &str)] = &[
        (r#""foo bar""#, "foo bar"),
        (r#"    "foo bar"    "#, "foo bar"),
        (r#""b\"a\\r""#, r#"b"a\r"#),
        (r#""\\""#, r"\"),
        (r#""\"""#, "\""),
        (r#""'""#, "'"),
        (r#""a, b; c=d""#, "a, b; c=d"),
        (r#""%20""#, "%20"),
        (r#""a";b"#, "a"),
        (r#""a";b=1;c=-1.5;d=tok/en;e=?1;f=:aGk=:;g=@1"#, "a"),
        (r#""a";b="c;d=\"e\"""#, "a"),
        (r#""a"; b"#, "a"),
        (r#""a";b;b=2"#, "a"),
        (r#""a";*b=1"#, "a"),
        (&format!("\"{long}\""), &long),
    ];
    let malformed: &[&str] = &[
        r#"""#,
        r#""foo"#,
        r#""foo \"#,
        r#""foo \""#,
        r#""foo \,""#,
        r#""foo" "bar""#,
        r#""foo", "bar""#,
        r#""foo","#,
        r#""foo"bar"#,
        r#""foo";"#,
        r#""foo" ;a=1"#,
        r#""foo";A=1"#,
        r#""foo";1=a"#,
        r#""foo";a="#,
        r#""foo";a="b"#,
        r#""foo";a=1e3"#,
        r#""foo";a=?2"#,
        r#""foo";;a"#,
        r#""foo";a =1"#,
        r#""foo";a= 1"#,
        r#""foo";a=(1)"#,
        "\"foo\u{a0}\"",
        "\"füü\"",
        "\"a\tb\"",
        "\"a\nb\"",
        "\"a\r\n b\"",
    ];
    let mut checked = 0;
    for (value, key) in sound {
        check(value.as_bytes(), Some(key.as_bytes()), &mut checked);
    }
    for value in malformed {
        check(value.as_bytes(), None, &mut checked);
    }
    // A string of structured fields, but no key.
    for (value, error) in [
        (r#""""#, KeyError::Empty),
        (r#"" ""#, KeyError::Empty),
        (r#""";a=1"#, KeyError::Empty),
        (r#"" a""#, KeyError::Malformed),
        (r#""a ""#, KeyError::Malformed),
    ] {
        assert_eq!(key_from_header_lines(std::iter::once(value.as_bytes())), Err(error), "{value}");
        checked += 1;
    }
    let too_long = format!("\"{long}x\"");
    assert_eq!(key_from_header_lines(std::iter::once(too_long.as_bytes())), Err(KeyError::TooLong));
    assert_eq!(checked, 46);
}

/// What does not begin with a quotation mark is a bare key, taken as it is: clients send ids unquoted, and those that look
/// like another item of structured fields are ids none the less.
#[test]
fn other_items_are_bare_keys() {
    for value in
        ["foo", "foo;a=1", "1", "-1.5", "?1", ":aGk=:", "@1", "%\"a\"", "(\"a\")", "'foo'", "foo \"bar\"", "a, b"]
    {
        let found = key_from_header_lines(std::iter::once(value.as_bytes()));
        assert_eq!(found.unwrap().unwrap().as_str(), value);
    }
}
