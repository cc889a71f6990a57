-- Whether a key has a record, by a plain read, which locks nothing: an insert that meets a record would lock it, and whoever
-- claims in a caller's transaction would keep that lock from the record's owner. And whether the server takes writes: some
-- users may write to a replica.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
SELECT EXISTS (SELECT 1 FROM onced_idempotency_keys WHERE scope = ? AND `key` = ?) AS present,
       @@GLOBAL.read_only AS read_only;
