-- Bound the time for which a transaction that has written may idle, in seconds, and remember what was there before: MariaDB
-- has no setting that ends with the transaction, so the next claim on this connection begins from that.
SET @onced_idle_before = ?, @onced_idle_set = ?, SESSION idle_write_transaction_timeout = ?;
