-- What bounds a transaction of this session that idles, in seconds, and what of that is by an earlier claim.
SELECT CAST(@@SESSION.idle_write_transaction_timeout AS SIGNED) AS of_writers,
       CAST(@@SESSION.idle_transaction_timeout AS SIGNED) AS of_all,
       CAST(@onced_idle_set AS SIGNED) AS by_claim, CAST(@onced_idle_before AS SIGNED) AS before_claim;
