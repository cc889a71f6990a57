//! A small disk of the test's own, which can be filled up, and files that take no more writes. Both need root, as the
//! tests have it here and in the continuous integration; where they are refused the test fails, and is not skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk of a few megabytes in memory, in a folder of its own.
pub(super) struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// # Panics
    /// Where nothing may be mounted.
    pub(super) fn mount(size: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("onced-disk-").tempdir().expect("no temporary folder");
        let options = format!("size={size},mode=0700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "onced-test"]).arg(folder.path()));
        Self { folder }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves not one byte of room.
    pub(super) fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file can be made");
        for piece in [&[0; 4096][..], &[0]] {
            let refused = std::iter::repeat_with(|| filler.write_all(piece)).find_map(Result::err);
            assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::StorageFull));
        }
    }

    /// Makes room again.
    pub(super) fn make_room(&self) {
        fs::remove_file(self.filler()).expect("the filler can be removed");
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Detached at once, and gone with its last open file.
        drop(Command::new("umount").arg("--lazy").arg(self.folder.path()).status());
    }
}

/// Files that take no more writes, not even of those who have opened them before.
pub(super) struct Frozen(Vec<PathBuf>);

impl Frozen {
    /// Freezes a database's file and its WAL. Not the index of the WAL: it is mapped into memory, and the system ends
    /// a process that writes to memory which it may not change.
    ///
    /// # Panics
    /// Where the file system cannot do it: the temporary folder must lie on one that keeps to the immutable flag for
    /// open files as well, as ext4 does.
    pub(super) fn database_in(folder: &Path) -> Self {
        let proof = folder.join("proof");
        let mut open = File::create(&proof).expect("a file can be made");
        let frozen = Self(["proof", "test.db", "test.db-wal"].map(|name| folder.join(name)).to_vec());
        run(Command::new("chattr").arg("+i").args(&frozen.0));
        let refused = open.write(b"x").map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::PermissionDenied), "{} is on a file system without +i", folder.display());
        frozen
    }

    /// Lets them be written again.
    pub(super) fn thaw(self) {
        drop(self);
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run(Command::new("chattr").arg("-i").args(&self.0));
    }
}

/// The same folder at a second place, where nothing can be written.
pub(super) struct ReadOnlyView {
    folder: tempfile::TempDir,
}

impl ReadOnlyView {
    /// # Panics
    /// Where nothing may be mounted.
    pub(super) fn of(folder: &Path) -> Self {
        let view = tempfile::Builder::new().prefix("onced-view-").tempdir().expect("no temporary folder");
        run(Command::new("mount").args(["--bind"]).arg(folder).arg(view.path()));
        let view = Self { folder: view };
        run(Command::new("mount").args(["-o", "remount,ro,bind"]).arg(view.path()));
        let refused = OpenOptions::new().create(true).append(true).open(view.path().join("x")).map_err(|e| e.kind());
        assert_eq!(refused.err(), Some(ErrorKind::ReadOnlyFilesystem));
        view
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for ReadOnlyView {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(self.folder.path()).status());
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed; these tests need root: {said}");
}

/// Gives a folder to the owner of another.
pub(super) fn give(folder: &Path, to_owner_of: &Path) {
    run(Command::new("chown").arg(format!("--reference={}", to_owner_of.display())).arg(folder));
}
