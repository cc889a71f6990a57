-- What sweep_keys and sweep_deliveries would delete, by scope; $1 is how long lines of deliveries are kept.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now, onced.clock() - $1 * interval '1 microsecond' AS until),
busy AS MATERIALIZED (
    SELECT split_part(scope, '#', 1) AS scope, key FROM onced.idempotency_keys
     WHERE status NOT IN ('completed', 'failed') AND position('#' IN scope) > 0
), due AS MATERIALIZED (
    SELECT k.scope, k.key
      FROM onced.idempotency_keys k
     WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM t) AND k.held_at IS NULL
       AND CASE WHEN position('#' IN k.scope) = 0 THEN (k.scope, k.key) NOT IN (SELECT scope, key FROM busy)
                ELSE NOT EXISTS (SELECT FROM onced.idempotency_keys p
                                  WHERE p.scope = split_part(k.scope, '#', 1) AND p.key = k.key) END
), counted AS (
    SELECT split_part(scope, '#', 1) AS scope, 1 AS keys, 0 AS deliveries FROM due
    UNION ALL
    SELECT due.scope, 1, 0
      FROM due JOIN onced.idempotency_keys s ON split_part(s.scope, '#', 1) = due.scope AND s.key = due.key
     WHERE position('#' IN s.scope) > 0 AND s.status IN ('completed', 'failed')
    UNION ALL
    SELECT d.scope, 0, 1
      FROM onced.deliveries d
     WHERE d.id < (SELECT (lpad(to_hex(onced.micros(until) / 1000 + 1), 12, '0') || repeat('0', 20))::uuid FROM t)
       AND d.received_at <= (SELECT until FROM t)
       AND NOT EXISTS (SELECT FROM onced.idempotency_keys k
                        WHERE k.scope = d.scope AND k.key = d.key AND k.status NOT IN ('completed', 'failed'))
)
SELECT scope, sum(keys)::bigint AS keys, sum(deliveries)::bigint AS deliveries
  FROM counted GROUP BY scope ORDER BY scope;
