-- What was decided, by scope and decision, with the five keys of each scope that were repeated most under `observe`.
-- $1 is how far back to look; null for all there is. Ids are ordered by time, to a clock's error, for which a day is
-- allowed: the primary key finds the new ones.
WITH t AS MATERIALIZED (SELECT onced.clock() - $1 * interval '1 microsecond' AS since),
lines AS MATERIALIZED (
    SELECT d.scope, d.key, d.decision, d.received_at, d.decision LIKE 'observed: %' AND d.decision NOT LIKE 'observed: execute%' AS observed
      FROM onced.deliveries d
     WHERE $1::bigint IS NULL
        OR (d.received_at >= (SELECT since FROM t)
            AND d.id >= (SELECT (lpad(to_hex(greatest(onced.micros(since) / 1000 - 86400000, 0)), 12, '0') || repeat('0', 20))::uuid FROM t))
), decisions AS (
    SELECT scope, decision, count(*) AS count, min(received_at) AS first, max(received_at) AS last
      FROM lines GROUP BY scope, decision
), ranked AS (
    SELECT scope, key, count(*) AS count, row_number() OVER (PARTITION BY scope ORDER BY count(*) DESC, key) AS rank
      FROM lines WHERE observed GROUP BY scope, key
)
SELECT scope, decision, NULL AS key, count, onced.micros(first) AS first, onced.micros(last) AS last FROM decisions
UNION ALL
SELECT scope, NULL, key, count, NULL, NULL FROM ranked WHERE rank <= 5
ORDER BY scope, count DESC, decision, key;
