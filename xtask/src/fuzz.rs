//! Trying the readers of foreign bytes, each for a while.

use crate::shell::{cargo, run};

/// The reader of the configuration belongs to the gateway's binary, so its target is a test there.
const CONFIG: &str = "config";

/// Tries one target, or all.
pub(crate) fn fuzz(seconds: u64, target: Option<&str>) -> anyhow::Result<()> {
    let seconds = seconds.to_string();
    if target != Some(CONFIG) {
        run(cargo().args(["run", "--quiet", "-p", "onced-fuzz", "--", "--seconds", &seconds]).args(target))?;
    }
    if target.is_none_or(|target| target == CONFIG) {
        let test = ["test", "--quiet", "--workspace", "--bin", "onced", "config::tests::fuzz", "--", "--nocapture"];
        run(cargo().args(test).env("ONCED_FUZZ_SECONDS", &seconds))?;
    }
    Ok(())
}
