//! Pages of the documentation that a command writes between two markers; what stands around them is people's.

use std::fs;
use std::thread;

use anyhow::Context;

use crate::shell::{first_line, workspace};

/// A page, its markers, and what it begins with where it is new.
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
    pub(crate) opening: &'static str,
}

impl Page {
    /// Writes the block into the page.
    pub(crate) fn write(&self, block: &str) -> anyhow::Result<()> {
        let page = workspace().join(self.path);
        let old = fs::read_to_string(&page).unwrap_or_default();
        fs::create_dir_all(page.parent().context("the page has a folder")?)?;
        Ok(fs::write(&page, self.with_block(&old, block))?)
    }

    /// Replaces what stands between the markers, or starts the page.
    pub(crate) fn with_block(&self, page: &str, block: &str) -> String {
        let Self { begin, end, opening, .. } = self;
        let block = format!("{begin}\n{block}{end}");
        let between = page.find(begin).zip(page.find(end)).filter(|(begin, end)| begin < end);
        match between {
            Some((from, to)) => format!("{}{block}{}", &page[..from], &page[to + end.len()..]),
            None if page.is_empty() => format!("{opening}\n\n{block}\n"),
            None => format!("{}\n\n{block}\n", page.trim_end()),
        }
    }
}

/// When, of what, on what: the rows of a table, with the versions that only the caller knows.
pub(crate) fn facts(versions: &str) -> String {
    let say = |program: &str, args: &[&str]| first_line(program, args).unwrap_or_else(|| "unknown".to_owned());
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let changed = first_line("git", &["status", "--porcelain"]).is_none_or(|line| !line.is_empty());
    let rows = [
        ("Date", say("date", &["-u", "+%Y-%m-%d"])),
        ("Commit", say("git", &["rev-parse", "HEAD"]) + if changed { ", with changes" } else { "" }),
        ("Machine", format!("{cores} cores, {}", say("uname", &["-srm"]))),
        ("Versions", format!("{}; {versions}", say("rustc", &["--version"]))),
    ];
    let rows: String = rows.iter().map(|(name, value)| format!("| {name} | {value} |\n")).collect();
    format!("| Run | |\n| --- | --- |\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let page = Page { path: "", begin: "<!-- x:begin -->", end: "<!-- x:end -->", opening: "# X" };
        let first = page.with_block("", "one\n");
        assert_eq!(first.matches(page.begin).count(), 1);
        let framed = format!("{first}\nAfter.\n");
        assert_eq!(page.with_block(&framed, "two\n"), framed.replace("one", "two"));
        assert!(page.with_block("# Own page\n", "three\n").starts_with("# Own page\n\n<!--"));
    }
}
