-- Hold the lock of who migrates, until the transaction ends. Waits for another for innodb_lock_wait_timeout at most.
SELECT name FROM onced_locks WHERE name = 'migrate' FOR UPDATE;
