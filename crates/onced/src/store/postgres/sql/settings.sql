-- How the server is set, as this connection sees it.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS version_number,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes, pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('max_connections')::integer AS max_connections,
       current_setting('superuser_reserved_connections')::integer AS reserved_connections,
       (SELECT count(*)::integer FROM pg_stat_activity WHERE backend_type = 'client backend') AS used_connections;
