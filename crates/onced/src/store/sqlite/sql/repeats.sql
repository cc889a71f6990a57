-- What was decided, by scope and decision, with the five keys of each scope that were repeated most under `observe`.
-- ?1 is how far back to look; null for all there is. Ids are ordered by time, to a clock's error, for which a day is
-- allowed: the primary key finds the new ones.
WITH lines AS MATERIALIZED (
    SELECT d.scope, d.key, d.decision, d.received_at, d.decision LIKE 'observed: %' AND d.decision NOT LIKE 'observed: execute%' AS observed
      FROM onced_deliveries d
     WHERE ?1 IS NULL
        OR (d.received_at >= (SELECT now - ?1 FROM onced_clock)
            AND d.id >= (SELECT format('%08x-%04x', max((now - ?1) / 1000 - 86400000, 0) >> 16, max((now - ?1) / 1000 - 86400000, 0) & 65535) FROM onced_clock))
), decisions AS (
    SELECT scope, decision, count(*) AS count, min(received_at) AS first, max(received_at) AS last
      FROM lines GROUP BY scope, decision
), ranked AS (
    SELECT scope, key, count(*) AS count, row_number() OVER (PARTITION BY scope ORDER BY count(*) DESC, key) AS rank
      FROM lines WHERE observed GROUP BY scope, key
)
SELECT scope, decision, NULL AS key, count, first, last FROM decisions
UNION ALL
SELECT scope, NULL, key, count, NULL, NULL FROM ranked WHERE rank <= 5
ORDER BY scope, count DESC, decision, key;
