-- What sweep_keys and sweep_deliveries would delete, by scope; the parameters are how long lines of deliveries are kept.
WITH due AS (
    SELECT k.scope, k.`key`
      FROM onced_idempotency_keys k
     WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock) AND k.held_at IS NULL
       AND CASE WHEN LOCATE('#', k.scope) = 0
                THEN (k.scope, k.`key`) NOT IN (
                         SELECT SUBSTRING_INDEX(b.scope, '#', 1), b.`key` FROM onced_idempotency_keys b
                          WHERE b.status IN ('queued', 'in_progress', 'pending_external') AND LOCATE('#', b.scope) > 0)
                ELSE NOT EXISTS (SELECT 1 FROM onced_idempotency_keys p
                                  WHERE p.scope = SUBSTRING_INDEX(k.scope, '#', 1) AND p.`key` = k.`key`) END
), counted AS (
    SELECT SUBSTRING_INDEX(scope, '#', 1) AS scope, 1 AS n_keys, 0 AS n_deliveries FROM due
    UNION ALL
    SELECT due.scope, 1, 0
      FROM onced_idempotency_keys s
      JOIN due ON due.scope = SUBSTRING_INDEX(s.scope, '#', 1) AND due.`key` = s.`key`
     WHERE LOCATE('#', s.scope) > 0 AND LOCATE('#', due.scope) = 0 AND s.status IN ('completed', 'failed')
    UNION ALL
    SELECT d.scope, 0, 1
      FROM onced_deliveries d
     WHERE d.id < UNHEX(CONCAT(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00',
                           (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND) DIV 1000 + 1), 12, '0'), REPEAT('0', 20)))
       AND d.received_at <= (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND
       AND NOT EXISTS (SELECT 1 FROM onced_idempotency_keys k
                        WHERE k.scope = d.scope AND k.`key` = d.`key`
                          AND k.status IN ('queued', 'in_progress', 'pending_external'))
)
SELECT scope, CAST(SUM(n_keys) AS SIGNED) AS due_keys, CAST(SUM(n_deliveries) AS SIGNED) AS due_deliveries
  FROM counted GROUP BY scope ORDER BY scope;
