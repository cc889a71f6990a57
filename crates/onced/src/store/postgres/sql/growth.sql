-- How the ledger grows. Reads whole tables.
WITH t AS MATERIALIZED (SELECT onced.clock() - interval '1 day' AS since),
keys AS (
    SELECT count(*) AS keys, count(*) FILTER (WHERE created_at > since) AS keys_of_a_day,
           coalesce(avg(extract(epoch FROM expires_at - created_at)) FILTER (WHERE created_at > since) * 1000000, 0)::bigint AS kept
      FROM onced.idempotency_keys, t
), lines AS (
    SELECT count(*) AS deliveries, count(*) FILTER (WHERE received_at > since) AS deliveries_of_a_day
      FROM onced.deliveries, t
)
SELECT keys.*, lines.*, pg_total_relation_size('onced.idempotency_keys') AS keys_bytes,
       pg_total_relation_size('onced.deliveries') AS deliveries_bytes
  FROM keys, lines;
