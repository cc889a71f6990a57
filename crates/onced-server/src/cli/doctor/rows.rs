//! What stands in the ledger, and how it grows, and what that means.

use std::time::Duration;

use onced::store::health::{Growth, Overdue, Unfinished};
use onced_core::record::Status;

use super::finding::Finding;
use super::server::bytes;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) fn unfinished(rows: &[Unfinished]) -> Finding {
    let seen = rows.iter().map(shown).collect::<Vec<_>>().join("; ");
    let of = |status, lease_over| rows.iter().find(|row| row.status == status && row.lease_over == lease_over);
    if rows.is_empty() {
        return Finding::ok("unfinished", "none", "nothing is running, and nothing waits");
    }
    if let Some(unknown) = of(Status::PendingExternal, true) {
        return Finding::warn(
            "unfinished",
            seen,
            format!(
                "of {} {} it is not known whether the outside call took effect; duplicates get 409 until it is",
                unknown.count,
                keys(unknown.count)
            ),
            "onced keys list --status pending_external, find out at the downstream, then onced keys resolve; \
             where the effect is idempotent the sender's next try decides",
        );
    }
    if let Some(left) = of(Status::InProgress, true).filter(|left| left.oldest > HOUR) {
        return Finding::warn(
            "unfinished",
            seen,
            format!(
                "{} {} were left by an owner that is gone, and nobody has sent them again",
                left.count,
                keys(left.count)
            ),
            "onced keys list --status in_progress; the next delivery takes over: ask the sender to send again",
        );
    }
    if let Some(waiting) = of(Status::Queued, true).filter(|waiting| waiting.oldest > HOUR) {
        return Finding::warn(
            "unfinished",
            seen,
            format!("{} {} wait to be executed, the oldest for over an hour", waiting.count, keys(waiting.count)),
            "onced keys list --status queued; see that a worker runs",
        );
    }
    Finding::ok("unfinished", seen, "they have an owner, or their sender's next try decides")
}

fn shown(row: &Unfinished) -> String {
    let lease = match (row.status, row.lease_over) {
        (Status::Queued, _) => "",
        (_, true) => " with the lease over",
        (_, false) => " with an owner",
    };
    let held = if row.held > 0 { format!(", {} of them held", row.held) } else { String::new() };
    format!("{} {}{lease}{held}, the oldest from {} ago", row.count, row.status, ago(row.oldest))
}

pub(super) fn expired(overdue: Overdue) -> Finding {
    if overdue.count == 0 {
        return Finding::ok("expired", "none", "everything that has expired is swept");
    }
    let seen = format!(
        "{} {} expired and not swept, the first {} ago",
        overdue.count,
        keys(overdue.count),
        ago(overdue.longest)
    );
    if overdue.longest <= DAY {
        return Finding::ok("expired", seen, "the next sweep takes them");
    }
    Finding::warn(
        "expired",
        seen,
        "they count as unknown already, and only take space; no sweeper has come by for a day, or their steps are unfinished",
        "run onced sweep, or let a gateway do it ([sweep] every)",
    )
}

/// `keep_deliveries` is how long lines of deliveries are kept.
pub(super) fn growth(growth: Growth, keep_deliveries: Duration) -> Finding {
    let Growth {
        keys,
        keys_of_a_day,
        kept,
        keys_bytes,
        deliveries,
        deliveries_of_a_day,
        deliveries_bytes,
        total_bytes,
    } = growth;
    let seen = format!(
        "{keys} {}, {keys_of_a_day} of the last day; {deliveries} deliveries, {deliveries_of_a_day} of the last day; {}",
        self::keys(keys),
        bytes(total_bytes)
    );
    let (keys_in_the_end, deliveries_in_the_end) =
        (in_the_end(keys_of_a_day, kept), in_the_end(deliveries_of_a_day, keep_deliveries));
    if keys_of_a_day == 0 && deliveries_of_a_day == 0 {
        return Finding::ok("growth", seen, "nothing came in the last day");
    }
    // Where the tables cannot be told apart, a row of each is taken to be as large.
    let together = total_bytes.checked_div(keys.saturating_add(deliveries)).unwrap_or(0);
    let each = |bytes: Option<u64>, rows: u64| bytes.and_then(|bytes| bytes.checked_div(rows)).unwrap_or(together);
    let in_the_end = keys_in_the_end
        .saturating_mul(each(keys_bytes, keys))
        .saturating_add(deliveries_in_the_end.saturating_mul(each(deliveries_bytes, deliveries)));
    Finding::ok(
        "growth",
        seen,
        format!(
            "at this rate, with keys kept {} and deliveries {}, it comes to about {keys_in_the_end} keys, \
             {deliveries_in_the_end} deliveries and {}",
            ago(kept),
            ago(keep_deliveries),
            bytes(in_the_end)
        ),
    )
}

/// How many there are once as many go as come.
fn in_the_end(of_a_day: u64, kept: Duration) -> u64 {
    let all = u128::from(of_a_day).saturating_mul(kept.as_millis()) / DAY.as_millis();
    u64::try_from(all).unwrap_or(u64::MAX)
}

fn keys(count: u64) -> &'static str {
    if count == 1 { "key" } else { "keys" }
}

/// To two units: `3days 4h`.
fn ago(time: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Ok, Warn};
    use super::*;

    fn row(status: Status, lease_over: bool, oldest: Duration) -> Unfinished {
        Unfinished { status, lease_over, count: 3, held: 1, oldest }
    }

    #[test]
    fn unfinished_rows_are_doubtful_only_where_nobody_sees_to_them() {
        let (minute, long) = (Duration::from_secs(60), HOUR * 2);
        for (row, verdict) in [
            (row(Status::PendingExternal, true, minute), Warn),
            (row(Status::PendingExternal, false, long), Ok),
            (row(Status::InProgress, false, long), Ok),
            (row(Status::InProgress, true, minute), Ok),
            (row(Status::InProgress, true, long), Warn),
            (row(Status::Queued, true, minute), Ok),
            (row(Status::Queued, true, long), Warn),
        ] {
            assert_eq!(unfinished(&[row]).verdict, verdict, "{row:?}");
        }
        assert_eq!(unfinished(&[]).verdict, Ok);
        let seen = unfinished(&[row(Status::PendingExternal, true, DAY * 2 + minute)]).seen;
        assert_eq!(seen, "3 pending_external with the lease over, 1 of them held, the oldest from 2days 1m ago");
    }

    #[test]
    fn expired_rows_are_doubtful_after_a_day() {
        assert_eq!(expired(Overdue { count: 0, longest: Duration::ZERO }).verdict, Ok);
        assert_eq!(expired(Overdue { count: 9, longest: DAY }).verdict, Ok);
        assert_eq!(expired(Overdue { count: 9, longest: DAY + HOUR }).verdict, Warn);
    }

    #[test]
    fn growth_is_carried_on_to_the_end_of_retention() {
        let half = Growth {
            keys: 1000,
            keys_of_a_day: 500,
            kept: DAY * 7,
            keys_bytes: Some(1 << 20),
            deliveries: 2000,
            deliveries_of_a_day: 1000,
            deliveries_bytes: Some(1 << 20),
            total_bytes: 2 << 20,
        };
        let means = growth(half, DAY * 30).means;
        // 3500 keys of 1048 bytes, 30000 lines of 524.
        assert!(means.ends_with("it comes to about 3500 keys, 30000 deliveries and 18.5 MiB"), "{means}");
        let unknown = Growth { keys_bytes: None, deliveries_bytes: None, ..half };
        assert!(growth(unknown, DAY * 30).means.ends_with("22.3 MiB"), "{}", growth(unknown, DAY * 30).means);
        let quiet = Growth { keys_of_a_day: 0, deliveries_of_a_day: 0, ..half };
        assert_eq!(growth(quiet, DAY).means, "nothing came in the last day");
    }
}
