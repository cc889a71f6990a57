-- Unfinished records, by status and by whether their lease is over. A step counts with the
-- whole that it belongs to.
SELECT k.status AS status, coalesce(k.lease_until <= t.now, 1) AS lease_over, count(*) AS count,
       count(k.held_at) AS held, max(t.now - min(k.created_at), 0) AS oldest
  FROM onced_idempotency_keys k, onced_clock t
 WHERE k.status NOT IN ('completed', 'failed') AND instr(k.scope, '#') = 0
 GROUP BY 1, 2 ORDER BY 1, 2;
