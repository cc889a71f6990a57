//! The laws of the canonical form, against a model that shares no code with it.

use super::parse;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;

fn canonical(text: &str) -> String {
    let json = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    String::from_utf8(json.canonical()).unwrap()
}

/// A value independent of the code under test; numbers are a mantissa that 10 does not divide, and an exponent.
#[derive(Clone, Debug, PartialEq)]
enum Model {
    Word(&'static str),
    Number(i32, i8),
    Text(String),
    List(Vec<Model>),
    Map(BTreeMap<String, Model>),
}

fn model() -> impl Strategy<Value = Model> {
    // Few and similar leaves, so that equal and nearly equal trees do occur.
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "true", "false"]).prop_map(Model::Word),
        (-12i32..12, -2i8..3).prop_map(|(mantissa, exponent)| match mantissa {
            0 => Model::Number(0, 0),
            tens if tens % 10 == 0 => Model::Number(tens / 10, exponent + 1),
            other => Model::Number(other, exponent),
        }),
        "[1é\"\\\\\n\u{10000}\u{e000}]{0,2}".prop_map(Model::Text),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Model::List),
            prop::collection::btree_map("[1é\"\u{10000}\u{e000}]{0,1}", inner, 0..4).prop_map(Model::Map),
        ]
    })
}

/// Writes a value in one of very many ways, as the bits of `dice` choose.
fn write(model: &Model, dice: &mut u64, out: &mut String) {
    let mut roll = |sides: u64| {
        *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*dice >> 33) % sides
    };
    out.push_str(["", " ", "\n\t"][usize::try_from(roll(3)).unwrap()]);
    match model {
        Model::Word(word) => out.push_str(word),
        Model::Number(mantissa, exponent) => {
            let zeros = usize::try_from(roll(3)).unwrap();
            let (sign, digits) = (if *mantissa < 0 { "-" } else { "" }, mantissa.unsigned_abs());
            let scaled = format!("{digits}{}", "0".repeat(if digits == 0 { 0 } else { zeros }));
            let fraction = ["", ".0", ".000"][usize::try_from(roll(3)).unwrap()];
            let exponent = i64::from(*exponent) - i64::try_from(zeros).unwrap();
            let e = ["e", "E", "e0"][usize::try_from(roll(if exponent < 0 { 2 } else { 3 })).unwrap()];
            if exponent == 0 && roll(2) == 0 {
                write!(out, "{sign}{scaled}{fraction}").unwrap();
            } else {
                write!(out, "{sign}{scaled}{fraction}{e}{exponent}").unwrap();
            }
        }
        Model::Text(text) => write_text(text, &mut roll, out),
        Model::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write(item, dice, out);
            }
            out.push(']');
        }
        Model::Map(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for at in (1..members.len()).rev() {
                members.swap(at, usize::try_from(roll(at as u64 + 1)).unwrap());
            }
            out.push('{');
            for (at, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if at > 0 { " ," } else { "" });
                write(&Model::Text(name.clone()), dice, out);
                out.push(':');
                write(value, dice, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, roll: &mut impl FnMut(u64) -> u64, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        if roll(2) == 0 || matches!(c, '"' | '\\' | '\n') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04X}").unwrap();
            }
        } else {
            out.push(c);
        }
    }
    out.push('"');
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn equal_values_and_only_those_have_equal_bytes(a in model(), b in model(), mut dice: u64) {
        let mut written = |model: &Model| {
            let mut text = String::new();
            write(model, &mut dice, &mut text);
            canonical(&text)
        };
        let first = written(&a);
        prop_assert_eq!(&first, &written(&a), "the same value written twice");
        prop_assert_eq!(first == written(&b), a == b);
    }

    #[test]
    fn the_canonical_form_is_canonical(a in model(), mut dice: u64) {
        let mut text = String::new();
        write(&a, &mut dice, &mut text);
        let once = canonical(&text);
        prop_assert_eq!(canonical(&once), once);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>, text in "[\\[\\]{},:\"\\\\u0-9eE+\\-.dDtrufalsn \u{feff}]{0,40}") {
        let _ = parse(&bytes);
        let _ = parse(text.as_bytes());
    }
}
