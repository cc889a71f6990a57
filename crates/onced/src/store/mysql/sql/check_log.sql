-- As check.sql, for the log of deliveries.
SET STATEMENT lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, max_statement_time = 1.5 FOR
INSERT INTO onced_deliveries (id, scope, `key`, received_at, decision, request_hash, attempt)
SELECT ?, 'onced', 'ready', t.now, 'ready', '', 0 FROM onced_clock t;
