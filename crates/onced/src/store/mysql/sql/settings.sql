-- How the server is set, as this connection sees it.
SELECT VERSION() AS version, CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED) AS flush_log,
       CAST(@@GLOBAL.innodb_doublewrite AS CHAR) AS doublewrite,
       @@GLOBAL.log_bin AS log_bin, CAST(@@GLOBAL.sync_binlog AS SIGNED) AS sync_binlog,
       @@GLOBAL.read_only AS read_only, @@GLOBAL.innodb_rollback_on_timeout AS rollback_on_timeout,
       CAST(@@GLOBAL.max_connections AS SIGNED) AS max_connections,
       CAST((SELECT COUNT(*) FROM information_schema.processlist) AS SIGNED) AS used_connections;
