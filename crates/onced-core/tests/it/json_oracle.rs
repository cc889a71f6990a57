//! Random pairs of JSON texts: equal fingerprints exactly where an independent oracle, Python's `json` and `decimal`, finds
//! equal values.

use std::io::{BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use bytes::Bytes;
use onced_core::fingerprint::{BodyRecipe, Fingerprint, RequestHash, RequestParts};

struct Pairs {
    oracle: Child,
    output: BufReader<ChildStdout>,
}

impl Pairs {
    /// Without Python the test fails: it is no reason to skip it.
    fn start(count: u32, seed: u64) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/json_oracle.py");
        let mut command = Command::new("python3");
        command.args([script, &count.to_string(), &seed.to_string()]).stdout(Stdio::piped());
        let mut oracle = command.spawn().expect("python3 is needed as the oracle");
        let output = BufReader::new(oracle.stdout.take().expect("stdout is piped"));
        Self { oracle, output }
    }

    /// The next pair, and whether it is equal.
    fn next(&mut self) -> (bool, Bytes, Bytes) {
        let mut equal = [0];
        self.output.read_exact(&mut equal).expect("the oracle gives all pairs");
        (equal == [1], self.text(), self.text())
    }

    fn text(&mut self) -> Bytes {
        let mut length = [0; 4];
        self.output.read_exact(&mut length).expect("a length");
        let mut text = vec![0; u32::from_be_bytes(length) as usize];
        self.output.read_exact(&mut text).expect("a text");
        text.into()
    }

    fn end(mut self) {
        assert_eq!(self.output.read(&mut [0]).expect("the end"), 0, "no pair is left");
        assert!(self.oracle.wait().expect("it ends").success());
    }
}

fn hash(body: &Bytes) -> RequestHash {
    let parts = RequestParts { media_type: "application/json".into(), body: body.clone(), ..RequestParts::default() };
    *Fingerprint::new(parts, BodyRecipe::All).hash()
}

#[test]
fn equal_values_and_only_those_have_equal_fingerprints() {
    let soaking = std::env::var_os("ONCED_SOAK").is_some_and(|value| value == "1");
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let (count, seed) = if soaking { (1_000_000, clock) } else { (20_000, 1) };

    let mut pairs = Pairs::start(count, seed);
    let (mut equal_pairs, mut other_texts) = (0, 0);
    for _ in 0..count {
        let (equal, first, second) = pairs.next();
        assert_eq!(hash(&first) == hash(&second), equal, "seed {seed}: {first:?} {second:?}");
        equal_pairs += u32::from(equal);
        other_texts += u32::from(equal && first != second);
    }
    pairs.end();
    // An oracle that finds everything equal, or nothing, proves nothing.
    assert!(equal_pairs > count / 4 && other_texts > count / 5 && count - equal_pairs > count / 4);
    println!(
        "SOAK: JSON against Python's json and decimal (seed {seed}): {count} pairs, {equal_pairs} equal ({other_texts} of them other texts), {} different",
        count - equal_pairs
    );
}
