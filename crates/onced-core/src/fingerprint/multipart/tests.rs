//! What makes two multipart forms the same, and what is left to the raw bytes.

use super::super::{BodyRecipe, Fingerprint, RequestHash, RequestParts};
use super::{MAX_HEADERS, MAX_PARAMETERS, MAX_PARTS, boundary_of, is_boundary};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::HashSet;

fn hash(boundary: &str, body: impl AsRef<[u8]>) -> RequestHash {
    hash_by(BodyRecipe::All, boundary, body)
}

fn hash_by(recipe: BodyRecipe, boundary: &str, body: impl AsRef<[u8]>) -> RequestHash {
    let parts = RequestParts {
        media_type: "multipart/form-data".into(),
        boundary: boundary.into(),
        body: Bytes::copy_from_slice(body.as_ref()),
        ..RequestParts::default()
    };
    *Fingerprint::new(parts, recipe).hash()
}

/// A form of parts, each a head without its last line end and a content.
fn form(boundary: &str, parts: &[(&str, &[u8])]) -> Vec<u8> {
    let delimiter = format!("--{boundary}");
    let parts = parts.iter().map(|(head, content)| {
        [delimiter.as_bytes(), b"\r\n", head.as_bytes(), b"\r\n\r\n", content, b"\r\n"].concat()
    });
    [parts.collect::<Vec<_>>().concat(), format!("{delimiter}--\r\n").into_bytes()].concat()
}

const TITLE: &str = "Content-Disposition: form-data; name=\"title\"";
const FILE: &str =
    "Content-Disposition: form-data; name=\"f\"; filename=\"a.bin\"\r\nContent-Type: application/octet-stream";
const BYTES: &[u8] = b"\x00\r\n--\xff";

/// Whether the parts of a form count rather than its bytes: then the same form with another boundary is equal.
fn is_read(body: &str) -> bool {
    let other = body.replace("AAA", "BBB");
    hash("AAA", body) == hash("BBB", other)
}

#[test]
fn the_boundary_does_not_count_and_neither_does_how_a_part_is_spelled() {
    let first = form("AAA", &[(TITLE, b"x"), (FILE, BYTES)]);
    let respelled =
        "content-disposition:form-data;filename=a.bin ; NAME=f\r\nCONTENT-TYPE:\t application/octet-stream ";
    let retries = [
        ("BBB", form("BBB", &[(TITLE, b"x"), (FILE, BYTES)])),
        ("----=_x.y/z", form("----=_x.y/z", &[(TITLE, b"x"), (FILE, BYTES)])),
        ("B", form("B", &[("Content-Disposition: FORM-DATA; name=title", b"x"), (FILE, BYTES)])),
        ("AAA", [b"\r\n".as_slice(), &first].concat()),
        ("AAA", first[..first.len() - 2].to_vec()),
        ("C", form("C", &[(TITLE, b"x"), (respelled, BYTES)])),
    ];
    for (boundary, body) in retries {
        assert_eq!(hash("AAA", &first), hash(boundary, &body), "{}", String::from_utf8_lossy(&body));
        assert_ne!(hash_by(BodyRecipe::Raw, "AAA", &first), hash_by(BodyRecipe::Raw, boundary, &body));
    }
}

#[test]
fn every_part_counts_with_all_that_it_says() {
    let part = |head: &'static str| (head, b"x".as_slice());
    let forms: [&[(&str, &[u8])]; 18] = [
        &[],
        &[(TITLE, b"x")],
        &[(TITLE, b"")],
        &[(TITLE, b"x\r\n")],
        &[(TITLE, b"x"), (TITLE, b"x")],
        &[(TITLE, b"x"), (FILE, b"y")],
        &[(FILE, b"y"), (TITLE, b"x")],
        &[(FILE, b"x")],
        &[part("Content-Disposition: form-data; name=\"Title\"")],
        &[part("Content-Disposition: form-data; name=\"\"")],
        &[part("Content-Disposition: form-data; name=\"title\"; filename=\"\"")],
        &[part("Content-Disposition: form-data; name=\"title\"; filename=\"x\"")],
        &[part("Content-Disposition: form-data; name=\"title\"\r\nContent-Type: text/plain")],
        &[part("Content-Disposition: form-data; name=\"title\"\r\nContent-Type: text/plain; charset=latin1")],
        &[part("Content-Disposition: form-data; name=\"title\"\r\nContent-Transfer-Encoding: base64")],
        &[part("Content-Disposition: form-data; name=\"title\"\r\nContent-Transfer-Encoding: 8bit")],
        &[part("Content-Disposition: form-data; name=\"title\"\r\nX-A: 1\r\nX-B: 2")],
        &[part("Content-Disposition: form-data; name=\"title\"\r\nX-B: 2\r\nX-A: 1")],
    ];
    let hashes: HashSet<_> = forms.iter().map(|parts| hash("AAA", form("AAA", parts))).collect();
    assert_eq!(hashes.len(), forms.len());
    for parts in forms {
        assert!(is_read(&String::from_utf8_lossy(&form("AAA", parts))), "{parts:?}");
    }
}

#[test]
fn anything_unusual_is_left_to_the_raw_bytes() {
    let with = |head: &str| String::from_utf8(form("AAA", &[(head, b"x")])).unwrap();
    let good = with(TITLE);
    assert!(is_read(&good));
    let unusual = [
        String::new(),
        "--AAA".into(),
        "--AAA\r\n".into(),
        "--AAA\r\n--AAA--".into(),
        "--AAA\r\n\r\n--AAA--".into(),
        "--AAA\r\n\r\nx\r\n--AAA--".into(),
        good.replace("--AAA--\r\n", ""),
        good.replace("--AAA--\r\n", "--AAA-"),
        good.replace("--AAA--\r\n", "--AAA--\r\n\r\n"),
        good.replace("--AAA--\r\n", "--AAA--\n"),
        format!("preamble\r\n{good}"),
        format!("\n{good}"),
        format!("{good}epilogue"),
        format!("{good}--AAA--"),
        good.replace("--AAA\r\n", "--AAA \r\n"),
        good.replace("--AAA\r\n", "--AAA\n"),
        good.replace("x\r\n", "x\n"),
        good.replace("x\r\n", "x\n--AAA\r\n"),
        good.replace("x\r\n", "x--AAA\r\n"),
        good.replace("x\r\n", "x\r\n--AAAB\r\n"),
        good.replace("\r\n\r\nx", "\n\nx"),
        good.replace("Content-Disposition", "\nContent-Disposition"),
        with("Content-Type: text/plain"),
        with("Content-Disposition: attachment; name=\"a\""),
        with("Content-Disposition: form-data"),
        with("Content-Disposition: form-data; filename=\"a\""),
        with("Content-Disposition: form-data; name=\"a\"; name=\"b\""),
        with("Content-Disposition: form-data; name=\"a\"; filename=\"b\"; filename*=c; filename*=c"),
        with(&format!("Content-Disposition: form-data; name=\"a\"{}", "; x=y".repeat(MAX_PARAMETERS))),
        with(&format!("{TITLE}{}", "\r\na: b".repeat(MAX_HEADERS + 1))),
        with("Content-Disposition: form-data; name=\"a"),
        with("Content-Disposition: form-data; name=\"a\"b"),
        with("Content-Disposition: form-data; name=\"a\\\"b\""),
        with("Content-Disposition: form-data; name=a b"),
        with("Content-Disposition: form-data; name="),
        with("Content-Disposition: form-data; name =a"),
        with("Content-Disposition: form-data; name=a;"),
        with(&format!("{TITLE}\r\n{TITLE}")),
        with(&format!("{TITLE}\r\nContent-Type: a/b\r\nContent-Type: a/b")),
        with(&format!("{TITLE}\r\n folded")),
        with(&format!("{TITLE}\r\nno colon")),
        with(&format!("{TITLE}\r\nX-A : 1")),
        with(&format!("{TITLE}\r\nX-A: \0")),
        with(&format!("{TITLE}\r\nX-A: 1\nX-B: 2")),
        with(&format!("{TITLE}\nX-A: 1")),
        with(&format!("{TITLE}\rX-A: 1")),
    ];
    for body in unusual {
        if body.contains("AAA") {
            assert!(!is_read(&body), "{body:?}");
        }
        // Tagged: no form that is read, and no other kind of body, equals it.
        assert_ne!(hash("AAA", &body), hash("AAA", &good), "{body:?}");
        assert_ne!(hash("AAA", &body), hash("", &body), "{body:?}");
    }
}

#[test]
fn without_a_boundary_or_with_another_one_the_bytes_count() {
    let body = form("AAA", &[(TITLE, b"x")]);
    let hashes = ["AAA", "", "BBB", "AA", "CCC"].map(|boundary| hash(boundary, &body));
    assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
    let long = "x".repeat(71);
    assert_ne!(hash(&long, form(&long, &[(TITLE, b"x")])), hash("AAA", &body));
}

#[test]
fn the_bound_of_parts() {
    let of = |boundary: &str, count| hash(boundary, form(boundary, &vec![(TITLE, b"x".as_slice()); count]));
    assert_eq!(of("A", MAX_PARTS), of("B", MAX_PARTS));
    assert_ne!(of("A", MAX_PARTS + 1), of("B", MAX_PARTS + 1));
}

#[test]
fn the_boundary_of_a_content_type() {
    let long = "x".repeat(70);
    for (content_type, boundary) in [
        ("multipart/form-data; boundary=AAA", "AAA"),
        ("multipart/form-data;boundary=\"AAA\"", "AAA"),
        ("Multipart/Form-Data ; charset=utf-8; BOUNDARY=a:b/c=d?e", "a:b/c=d?e"),
        ("multipart/form-data; boundary=\"a b;c\"", ""),
        ("multipart/form-data; boundary=\"a b\"", "a b"),
        ("multipart/form-data; boundary=a b", ""),
        ("multipart/form-data; boundary=\"a \"", ""),
        ("multipart/form-data; boundary=\"a\\\"b\"", ""),
        ("multipart/form-data; boundary=", ""),
        ("multipart/form-data; boundary=\"\"", ""),
        ("multipart/form-data; boundary=A; boundary=A", ""),
        ("multipart/form-data; boundary = A", ""),
        ("multipart/form-data; boundary", ""),
        ("multipart/form-data; xboundary=A", ""),
        ("multipart/form-data", ""),
        ("multipart/form-data; boundary=é", ""),
        ("", ""),
        (&format!("multipart/form-data; boundary={long}"), &long),
        (&format!("multipart/form-data; boundary={long}x"), ""),
    ] {
        // What is no boundary stands as it is, so that another one is another.
        let whole = content_type.find(';').map_or("", |at| &content_type[at..]);
        let instead = if boundary.is_empty() { whole } else { boundary };
        assert_eq!(boundary_of(content_type), instead, "{content_type}");
        assert!(!boundary.is_empty() || !is_boundary(instead.as_bytes()), "{content_type}");
    }
}

#[test]
fn both_spellings_of_a_file_name_count() {
    let of = |boundary: &str, more: &str| {
        let head = format!("Content-Disposition: form-data; name=\"f\"{more}");
        hash(boundary, form(boundary, &[(head.as_str(), b"x".as_slice())]))
    };
    let names = ["", "; filename=a", "; filename*=a", "; filename=a; filename*=a", "; filename=a; filename*=utf-8''b"];
    let distinct: HashSet<_> = names.iter().map(|more| of("A", more)).collect();
    assert_eq!(distinct.len(), names.len());
    for more in names {
        assert_eq!(of("A", more), of("B", more), "{more}");
    }
}

type Part = (String, Option<String>, Vec<u8>);

/// Forms of few letters, so that equal and nearly equal ones do occur.
fn parts() -> impl Strategy<Value = Vec<Part>> {
    let content = prop::collection::vec(prop::sample::select(b"x-\r\n\xff".to_vec()), 0..5);
    prop::collection::vec(("[ab]{0,1}", prop::option::of("[ab]{0,1}"), content), 0..3)
}

fn written(boundary: &str, parts: &[Part]) -> Vec<u8> {
    let heads: Vec<String> = parts
        .iter()
        .map(|(name, file, _)| {
            let file = file.as_ref().map(|file| format!("; filename=\"{file}\"")).unwrap_or_default();
            format!("Content-Disposition: form-data; name=\"{name}\"{file}")
        })
        .collect();
    let parts: Vec<(&str, &[u8])> =
        heads.iter().zip(parts).map(|(head, (_, _, content))| (head.as_str(), content.as_slice())).collect();
    form(boundary, &parts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn equal_parts_and_only_those_have_equal_hashes(a in parts(), b in parts()) {
        let first = hash("AAA", written("AAA", &a));
        prop_assert_eq!(first, hash("B=B", written("B=B", &a)), "the same form written twice");
        prop_assert_eq!(first == hash("CCC", written("CCC", &b)), a == b);
    }

    #[test]
    fn no_bytes_make_it_panic(boundary in "[-A ]{0,3}|\\PC{0,9}", body: Vec<u8>, text in "(--A|\r\n|-|\n|[a:;=\" x]|content-disposition: form-data; name=a){0,30}") {
        hash(&boundary, body);
        hash(&boundary, &text);
        hash("A", &text);
        let _ = boundary_of(&format!("multipart/form-data;{text}"));
    }
}
