-- What was decided, by scope and decision, with the five keys of each scope that were repeated most under `observe`.
-- The parameters are how far back to look; null for all there is. Ids are ordered by time, to a clock's error, for which a
-- day is allowed: the primary key finds the new ones.
WITH line AS (
    SELECT d.scope, d.`key`, d.decision, d.received_at,
           d.decision LIKE 'observed: %' AND d.decision NOT LIKE 'observed: execute%' AS observed
      FROM onced_deliveries d
     WHERE ? IS NULL
        OR (d.received_at >= (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND
            AND d.id >= UNHEX(CONCAT(LPAD(HEX(GREATEST(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00',
                            (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND) DIV 1000 - 86400000, 0)), 12, '0'),
                            REPEAT('0', 20))))
), decisions AS (
    SELECT scope, decision, COUNT(*) AS n, MIN(received_at) AS first_at, MAX(received_at) AS last_at
      FROM line GROUP BY scope, decision
), ranked AS (
    SELECT scope, `key`, COUNT(*) AS n, ROW_NUMBER() OVER (PARTITION BY scope ORDER BY COUNT(*) DESC, `key`) AS place
      FROM line WHERE observed GROUP BY scope, `key`
)
SELECT scope, decision, NULL AS `key`, n,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', first_at) AS first_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', last_at) AS last_at
  FROM decisions
UNION ALL
SELECT scope, NULL, `key`, n, NULL, NULL FROM ranked WHERE place <= 5
ORDER BY scope, n DESC, decision, `key`;
