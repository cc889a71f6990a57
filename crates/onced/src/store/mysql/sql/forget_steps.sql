-- Delete the steps of a record whose key begins a new life.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
DELETE FROM onced_idempotency_keys WHERE `key` = ? AND scope > CONCAT(?, '#') AND scope < CONCAT(?, '$');
