//! What the bench sets the gateway beside: nginx, Redis, and another idempotency proxy. Installed by the bench alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::setup::as_root;
use crate::shell::{cargo, first_line, run, works, workspace};

/// The proxy, its version pinned, built as its own lock file says.
const PROXY: &str = "idempotent-proxy-server";
const PROXY_VERSION: &str = "1.2.2";
/// Installs packages without starting the services that they bring: the bench starts servers of its own.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-confold "$@"
"#;

/// Programs that are there.
pub(crate) struct Peers {
    pub(crate) nginx: PathBuf,
    pub(crate) redis: PathBuf,
    pub(crate) proxy: PathBuf,
}

impl Peers {
    /// Installs what is missing.
    pub(crate) fn all() -> anyhow::Result<Self> {
        let missing: Vec<&str> = [("nginx", "nginx"), ("redis-server", "redis-server")]
            .into_iter()
            .filter_map(|(program, package)| found(program).is_none().then_some(package))
            .collect();
        if !missing.is_empty() {
            let list = missing.join(" ");
            ensure!(works("apt-get", &["--version"]), "please install, by the means of this system: {list}");
            eprintln!("xtask: installing {list}");
            run(as_root("sh")?.args(["-c", INSTALL, "sh"]).args(&missing))?;
        }
        let root = workspace().join("target/bench-peers");
        let proxy = root.join("bin").join(PROXY);
        if !proxy.is_file() {
            // The folder holds the sources' build too: it is removed by whoever removes `target`.
            let version = format!("{PROXY}@{PROXY_VERSION}");
            let mut install = cargo();
            install.args(["install", "--locked", "--root"]).arg(&root).arg(version);
            run(install.env("CARGO_TARGET_DIR", root.join("build")))?;
        }
        Self::found().context("what was installed is not found")
    }

    /// Installs nothing; fails where something is missing.
    pub(crate) fn found() -> anyhow::Result<Self> {
        let program = |name| found(name).with_context(|| format!("{name} is missing; run without --no-setup"));
        let proxy = workspace().join("target/bench-peers/bin").join(PROXY);
        ensure!(proxy.is_file(), "{PROXY} is missing; run without --no-setup");
        Ok(Self { nginx: program("nginx")?, redis: program("redis-server")?, proxy: std::path::absolute(proxy)? })
    }

    /// For the page.
    pub(crate) fn versions(&self) -> String {
        let redis = Command::new(&self.redis).arg("--version").output();
        let redis = redis.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let redis = redis.split_whitespace().find_map(|word| word.strip_prefix("v=").map(str::to_owned));
        // It says its version to stderr.
        let nginx = Command::new(&self.nginx).arg("-v").output();
        let nginx = nginx.map(|output| String::from_utf8_lossy(&output.stderr).trim().to_owned()).unwrap_or_default();
        format!("{nginx}; Redis {}; {PROXY} {PROXY_VERSION}", redis.unwrap_or_default())
    }
}

/// Where servers lie is not on everybody's path.
fn found(program: &str) -> Option<PathBuf> {
    let sbin = Path::new("/usr/sbin").join(program);
    if sbin.is_file() {
        return Some(sbin);
    }
    first_line("sh", &["-c", &format!("command -v {program}")]).map(PathBuf::from)
}
