-- Write the line of a delivery that executes; it commits with the claim. A line that is there already stays as it is.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
INSERT INTO onced_deliveries (id, scope, `key`, received_at, decision, request_hash, attempt)
SELECT ?, ?, ?, t.now, 'execute', ?, ? FROM onced_clock t
ON DUPLICATE KEY UPDATE onced_deliveries.id = onced_deliveries.id;
