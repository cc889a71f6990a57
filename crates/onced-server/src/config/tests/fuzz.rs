//! Whatever a file holds, it is read or refused with words. Only from here can the reader of the configuration be reached,
//! since it belongs to the binary; `cargo xtask fuzz` gives it more time than the usual second.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::read;

#[test]
fn no_file_makes_it_panic() {
    let seconds = std::env::var("ONCED_FUZZ_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    // The usual run tries the same inputs every time, as far as it comes.
    let (seconds, seed) = seconds.map_or((1, 1), |seconds| (seconds, clock));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let mut corpus = onced_fuzz::corpus(&folder).unwrap();
    corpus.push(include_bytes!("../../../../../onced.example.toml").to_vec());
    let report = onced_fuzz::run(corpus, Duration::from_secs(seconds), seed, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return 0 };
        let outcome = match read(text) {
            Ok(config) => format!("{} routes", config.routes.len()),
            Err(errors) => {
                let words = errors.to_string();
                assert!(!words.trim().is_empty(), "refused without a word");
                // The kinds of mistakes, without what was quoted of the file.
                words.chars().filter(|c| c.is_ascii_lowercase() || *c == ' ').take(80).collect()
            }
        };
        BuildHasherDefault::<DefaultHasher>::default().hash_one(outcome)
    });
    match report {
        Ok(report) => println!("fuzz: config: {report}"),
        Err(failure) => panic!("{failure}"),
    }
}
