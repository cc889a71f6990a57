-- Finished records that have expired and are still there.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now)
SELECT count(*) AS count, coalesce(onced.micros((SELECT now FROM t)) - onced.micros(min(k.expires_at)), 0) AS longest
  FROM onced.idempotency_keys k
 WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM t);
