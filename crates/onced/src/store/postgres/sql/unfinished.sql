-- Unfinished records, by status and by whether their lease is over. A step counts with the
-- whole that it belongs to.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now)
SELECT k.status, coalesce(k.lease_until <= t.now, true) AS lease_over, count(*) AS count, count(k.held_at) AS held,
       greatest(onced.micros(max(t.now)) - onced.micros(min(k.created_at)), 0) AS oldest
  FROM onced.idempotency_keys k, t
 WHERE k.status NOT IN ('completed', 'failed') AND position('#' IN k.scope) = 0
 GROUP BY 1, 2 ORDER BY 1, 2;
