-- What bounds a transaction of this connection that idles, in seconds, and what of that is by an earlier claim. And whether the
-- session has a time of its own (SET timestamp), which the ledger's clock would show, or takes an empty body for none.
SELECT CAST(@@SESSION.idle_write_transaction_timeout AS SIGNED) AS of_writers,
       CAST(@@SESSION.idle_transaction_timeout AS SIGNED) AS of_all,
       ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) > 60 AS has_own_time,
       FIND_IN_SET('EMPTY_STRING_IS_NULL', @@SESSION.sql_mode) > 0 AS empty_is_null,
       CAST(@onced_idle_set AS SIGNED) AS by_claim, CAST(@onced_idle_before AS SIGNED) AS before_claim;
