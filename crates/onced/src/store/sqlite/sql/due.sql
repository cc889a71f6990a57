-- What sweep_keys and sweep_deliveries would delete, by scope; ?1 is how long lines of deliveries are kept.
WITH due AS MATERIALIZED (
    SELECT k.scope, k.key
      FROM onced_idempotency_keys k
     WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock) AND k.held_at IS NULL
       AND CASE WHEN instr(k.scope, '#') = 0
                THEN (k.scope, k.key) NOT IN (
                         SELECT substr(b.scope, 1, instr(b.scope, '#') - 1), b.key FROM onced_idempotency_keys b
                          WHERE b.status NOT IN ('completed', 'failed') AND instr(b.scope, '#') > 0)
                ELSE NOT EXISTS (SELECT 1 FROM onced_idempotency_keys p
                                  WHERE p.scope = substr(k.scope, 1, instr(k.scope, '#') - 1) AND p.key = k.key) END
), counted (scope, keys, deliveries) AS (
    SELECT CASE WHEN instr(scope, '#') = 0 THEN scope ELSE substr(scope, 1, instr(scope, '#') - 1) END, 1, 0 FROM due
    UNION ALL
    SELECT due.scope, 1, 0
      FROM onced_idempotency_keys s
      JOIN due ON due.scope = substr(s.scope, 1, instr(s.scope, '#') - 1) AND due.key = s.key
     WHERE instr(s.scope, '#') > 0 AND s.status IN ('completed', 'failed')
    UNION ALL
    SELECT d.scope, 0, 1
      FROM onced_deliveries d
     WHERE d.id < (SELECT format('%08x-%04x', ((now - ?1) / 1000 + 1) >> 16, ((now - ?1) / 1000 + 1) & 65535) FROM onced_clock)
       AND d.received_at <= (SELECT now - ?1 FROM onced_clock)
       AND NOT EXISTS (SELECT 1 FROM onced_idempotency_keys k
                        WHERE k.scope = d.scope AND k.key = d.key AND k.status NOT IN ('completed', 'failed'))
)
SELECT scope, sum(keys) AS keys, sum(deliveries) AS deliveries FROM counted GROUP BY scope ORDER BY scope;
