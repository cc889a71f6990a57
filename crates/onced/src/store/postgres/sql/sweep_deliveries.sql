-- Delete at most $1 lines of deliveries that came in longer than $2 ago, but none of a key that is unfinished. One
-- sweeper at a time. Ids are ordered by time, to a clock's error, so the primary key finds the old ones.
WITH t AS MATERIALIZED (SELECT onced.clock() - $2 * interval '1 microsecond' AS until),
lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(1869505380, 'onced.idempotency_keys'::regclass::oid::integer) AS got),
picked AS MATERIALIZED (
    SELECT d.id
      FROM onced.deliveries d
     WHERE (SELECT got FROM lock)
       AND d.id < (SELECT (lpad(to_hex(onced.micros(until) / 1000 + 1), 12, '0') || repeat('0', 20))::uuid FROM t)
       AND d.received_at <= (SELECT until FROM t)
       AND NOT EXISTS (SELECT FROM onced.idempotency_keys k
                        WHERE k.scope = d.scope AND k.key = d.key AND k.status NOT IN ('completed', 'failed'))
     ORDER BY d.id
     LIMIT $1
       FOR UPDATE OF d SKIP LOCKED
), gone AS (
    DELETE FROM onced.deliveries d USING picked
     WHERE d.id = picked.id AND d.received_at <= (SELECT until FROM t)
    RETURNING d.id
)
SELECT lock.got, (SELECT count(*) FROM gone) AS deleted FROM lock;
