-- Unfinished records, by status and by whether their lease is over. A step counts with the whole that it belongs to.
SELECT k.status, COALESCE(k.lease_until <= t.now, 1) AS lease_over, COUNT(*) AS n, COUNT(k.held_at) AS held,
       GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(k.created_at), MAX(t.now)), 0) AS oldest
  FROM onced_idempotency_keys k, onced_clock t
 WHERE k.status IN ('queued', 'in_progress', 'pending_external') AND LOCATE('#', k.scope) = 0
 GROUP BY 1, 2 ORDER BY 1, 2;
