-- How the server is set, as this connection sees it.
SELECT VERSION() AS version, CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED) AS flush_log,
       CAST(@@GLOBAL.innodb_doublewrite AS CHAR) AS doublewrite,
       @@GLOBAL.log_bin AS log_bin, CAST(@@GLOBAL.sync_binlog AS SIGNED) AS sync_binlog,
       (SELECT COUNT(*) FROM information_schema.global_variables
         WHERE variable_name = 'WSREP_ON' AND variable_value = 'ON') AS galera,
       CAST(@@GLOBAL.max_allowed_packet AS SIGNED) AS max_allowed_packet,
       @@GLOBAL.read_only AS read_only, @@GLOBAL.innodb_rollback_on_timeout AS rollback_on_timeout,
       (SELECT GROUP_CONCAT(table_name) FROM information_schema.tables
         WHERE table_schema = DATABASE() AND engine <> 'InnoDB'
           AND table_name IN ('onced_idempotency_keys', 'onced_deliveries', 'onced_audit', 'onced_locks')) AS other_engine,
       CAST(@@GLOBAL.max_connections AS SIGNED) AS max_connections,
       CAST((SELECT COUNT(*) FROM information_schema.processlist) AS SIGNED) AS used_connections;
