//! What MariaDB's settings and version mean.

use onced::store::health::MariaDbSettings;

use super::finding::Finding;
use super::server::bytes;

/// The oldest MariaDB that has what the ledger's statements need.
const OLDEST: (u32, u32) = (10, 6);
/// The largest answer that is stored where no route says otherwise, and room for the rest.
const LARGE_PACKET: u64 = 2 << 20;

pub(super) fn settings(settings: &MariaDbSettings, wanted_connections: u32) -> Vec<Finding> {
    vec![
        durability(settings),
        version(settings),
        writes(settings),
        packets(settings),
        connections(settings, wanted_connections),
    ]
}

fn durability(settings: &MariaDbSettings) -> Finding {
    let on = |is_on: bool| if is_on { "ON" } else { "OFF" };
    let seen = format!(
        "innodb_flush_log_at_trx_commit = {}, innodb_doublewrite = {}, log_bin = {}, sync_binlog = {}",
        settings.flush_log_at_commit,
        on(settings.doublewrite),
        on(settings.log_bin),
        settings.sync_binlog
    );
    if let Some(tables) = &settings.other_engine {
        return Finding::wrong(
            "durability",
            format!("not in InnoDB: {tables}"),
            "nothing can be rolled back there, and the gateway does not start",
            "ALTER TABLE … ENGINE = InnoDB",
        );
    }
    if settings.rollback_on_timeout {
        return Finding::wrong(
            "durability",
            "innodb_rollback_on_timeout = ON",
            "a lock that is not got in time undoes the whole transaction silently, and the gateway does not start",
            "set it to OFF, in the server's configuration file",
        );
    }
    if settings.galera {
        return Finding::wrong(
            "durability",
            "wsrep_on = ON: a node of a Galera cluster",
            "the nodes decide about a claim each for itself until it is committed: onced is not proven there",
            "use one server, or a primary with replicas",
        );
    }
    if settings.risks().next().is_none() {
        return Finding::ok("durability", seen, "what was confirmed survives a crash");
    }
    Finding::wrong(
        "durability",
        seen,
        "a crash of the machine can lose commits that were confirmed: a trigger could take effect again",
        "set innodb_flush_log_at_trx_commit = 1 and innodb_doublewrite = ON, and with log_bin sync_binlog = 1, in the \
         server's configuration file",
    )
}

fn version(settings: &MariaDbSettings) -> Finding {
    let seen = format!("MariaDB {}", settings.version);
    if settings.release() >= OLDEST {
        return Finding::ok("version", seen, "it has what the ledger's statements need");
    }
    Finding::wrong("version", seen, "the ledger's statements need MariaDB 10.6", "upgrade the server")
}

fn writes(settings: &MariaDbSettings) -> Finding {
    if settings.read_only {
        return Finding::wrong(
            "writes",
            "read_only = ON",
            "a replica, or a primary that takes no writes: nothing can be claimed, every request with a key gets 503",
            "name the primary in the store's URL, or set read_only = OFF there",
        );
    }
    Finding::ok("writes", "this server takes writes", "keys can be claimed")
}

fn packets(settings: &MariaDbSettings) -> Finding {
    let seen = format!("max_allowed_packet = {}", bytes(settings.max_allowed_packet));
    if settings.max_allowed_packet >= LARGE_PACKET {
        return Finding::ok("packets", seen, "an outcome that is at most that large, less some KiB, can be stored");
    }
    Finding::warn(
        "packets",
        seen,
        "a larger answer cannot be stored: its client gets 503, and what became of its key is not known",
        "raise max_allowed_packet, in the server's configuration file, above the largest max_response_bytes (1 MiB unless said otherwise)",
    )
}

fn connections(settings: &MariaDbSettings, wanted: u32) -> Finding {
    let MariaDbSettings { max_connections, used_connections, .. } = *settings;
    let free = max_connections.saturating_sub(used_connections);
    let seen = format!("{used_connections} of {max_connections} connections in use, as far as this user sees them");
    if free >= wanted {
        return Finding::ok("connections", seen, format!("one gateway opens at most {wanted}; {free} are free"));
    }
    Finding::warn(
        "connections",
        seen,
        format!("one more gateway opens up to {wanted}, and {free} are free: requests would get 503"),
        "lower max_connections in [store], raise the server's, or end what holds connections (SHOW PROCESSLIST)",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Ok, Warn, Wrong};
    use super::*;

    fn sound() -> MariaDbSettings {
        MariaDbSettings {
            version: "10.11.19-MariaDB".to_owned(),
            flush_log_at_commit: 1,
            doublewrite: true,
            log_bin: false,
            sync_binlog: 0,
            galera: false,
            read_only: false,
            rollback_on_timeout: false,
            other_engine: None,
            max_allowed_packet: 16 << 20,
            max_connections: 151,
            used_connections: 20,
        }
    }

    #[test]
    fn every_wrong_setting_is_found_and_no_other() {
        let verdicts = |settings: &MariaDbSettings| {
            let findings = super::settings(settings, 10);
            findings.into_iter().filter(|f| f.verdict != Ok).map(|f| (f.name, f.verdict)).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&sound()), []);
        assert_eq!(verdicts(&MariaDbSettings { log_bin: true, sync_binlog: 1, ..sound() }), []);
        assert_eq!(verdicts(&MariaDbSettings { used_connections: 141, ..sound() }), []);
        for (settings, found) in [
            (MariaDbSettings { flush_log_at_commit: 0, ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { flush_log_at_commit: 2, ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { doublewrite: false, ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { log_bin: true, ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { version: "10.5.29-MariaDB".to_owned(), ..sound() }, ("version", Wrong)),
            (MariaDbSettings { read_only: true, ..sound() }, ("writes", Wrong)),
            (MariaDbSettings { max_allowed_packet: 1 << 20, ..sound() }, ("packets", Warn)),
            (MariaDbSettings { galera: true, ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { other_engine: Some("onced_audit".to_owned()), ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { rollback_on_timeout: true, ..sound() }, ("durability", Wrong)),
            (MariaDbSettings { used_connections: 142, ..sound() }, ("connections", Warn)),
        ] {
            assert_eq!(verdicts(&settings), [found]);
        }
    }
}
