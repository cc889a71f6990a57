//! RFC 8785's own samples, and where we leave it on purpose: its numbers are doubles, ours are exact decimals, because two
//! ids above 2^53 must not become one. Member order and string escapes are the RFC's.

use super::parse;
use std::collections::HashSet;

fn canonical(text: &str) -> String {
    let json = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    String::from_utf8(json.canonical()).unwrap()
}

/// Appendix B: the bits of a double, and how the RFC writes it.
#[rustfmt::skip]
const NUMBERS: &[(u64, &str)] = &[
    (0x0000_0000_0000_0000, "0"), (0x8000_0000_0000_0000, "0"), (0x0000_0000_0000_0001, "5e-324"),
    (0x8000_0000_0000_0001, "-5e-324"), (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
    (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"), (0x4340_0000_0000_0000, "9007199254740992"),
    (0xc340_0000_0000_0000, "-9007199254740992"), (0x4430_0000_0000_0000, "295147905179352830000"),
    (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"), (0x44b5_2d02_c7e1_4af6, "1e+23"),
    (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"), (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
    (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"), (0x444b_1ae4_d6e2_ef50, "1e+21"),
    (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"), (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
    (0x41b3_de43_5555_5553, "333333333.3333332"), (0x41b3_de43_5555_5554, "333333333.33333325"),
    (0x41b3_de43_5555_5555, "333333333.3333333"), (0x41b3_de43_5555_5556, "333333333.3333334"),
    (0x41b3_de43_5555_5557, "333333333.33333343"), (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
    (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
];

#[test]
fn its_numbers_are_read_and_stay_apart() {
    for (bits, text) in NUMBERS {
        // Bit for bit, but for the sign of zero, which does not count.
        let read: f64 = canonical(text).parse().unwrap();
        assert!(read.to_bits() == *bits || read == 0.0 && bits << 1 == 0, "{text} became {read:e}");
    }
    let distinct: HashSet<_> = NUMBERS.iter().map(|(_, text)| canonical(text)).collect();
    assert_eq!(distinct.len(), NUMBERS.len() - 1, "only 0 and -0 are equal");
    for text in ["NaN", "Infinity", "-Infinity"] {
        assert!(parse(text.as_bytes()).is_err(), "{text}");
    }
}

/// The RFC writes each of these pairs alike, since both are the same double. We do not.
#[test]
fn numbers_that_are_one_double_are_two_here() {
    for (first, second) in [
        ("9007199254740992", "9007199254740993"),
        ("295147905179352830000", "295147905179352825856"),
        ("333333333.33333329", "333333333.3333333"),
        ("1e23", "9.999999999999999e22"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("5e-324", "4.9e-324"),
        ("0", "1e-400"),
    ] {
        let double = |text: &str| text.parse::<f64>().unwrap().to_bits();
        assert_eq!(double(first), double(second), "{first} {second}");
        assert_ne!(canonical(first), canonical(second));
    }
    // No double at all, and so an error there.
    assert_eq!(canonical("1e400"), "1e400");
}

/// Section 3.2.2.
#[test]
fn its_sample_of_literals_and_escapes() {
    let text = r#"{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"#;
    let expected = concat!(
        r#"{"literals":[null,true,false],"#,
        r#""numbers":[33333333333333329e-8,1e30,45e-1,2e-3,1e-27],"#,
        r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    assert_eq!(canonical(text), expected);
}

/// Section 3.2.3: by UTF-16 code units, so that a character beyond U+FFFF stands before U+FB33.
#[test]
fn its_sample_of_sorting() {
    let text = r#"{
        "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
        "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"
    }"#;
    let canonical = canonical(text);
    let names = ["Carriage Return", "One", "Control", "Latin Small", "Euro Sign", "Emoji", "Hebrew"];
    let found: Vec<_> = names.iter().map(|name| canonical.find(name).unwrap()).collect();
    assert!(found.is_sorted(), "{canonical}");
}

/// Section 3.2.2.2: seven characters have a short escape, the other controls a long one in lower case, nothing else has any.
#[test]
fn every_control_has_one_escape() {
    for code in 0..0x80_u32 {
        let expected = match code {
            0x08 => r"\b".to_owned(),
            0x09 => r"\t".to_owned(),
            0x0a => r"\n".to_owned(),
            0x0c => r"\f".to_owned(),
            0x0d => r"\r".to_owned(),
            0x22 => r#"\""#.to_owned(),
            0x5c => r"\\".to_owned(),
            0..0x20 => format!("\\u{code:04x}"),
            _ => char::from_u32(code).unwrap().to_string(),
        };
        assert_eq!(canonical(&format!("\"\\u{code:04X}\"")), format!("\"{expected}\""));
    }
}
