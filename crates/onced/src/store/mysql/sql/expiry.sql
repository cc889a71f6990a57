-- What a claim or a move has just made of the expiry, in its transaction: MariaDB's UPDATE returns no rows.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
SELECT attempt, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', expires_at) AS expires_at
  FROM onced_idempotency_keys WHERE scope = ? AND `key` = ? AND lease_token = ?;
