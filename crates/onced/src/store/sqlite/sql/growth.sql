-- How the ledger grows. Reads whole tables. What each table takes is not known to every build of SQLite; the whole is.
WITH t AS MATERIALIZED (SELECT now - 86400000000 AS since FROM onced_clock),
keys AS (
    SELECT count(created_at) AS keys, count(*) FILTER (WHERE created_at > since) AS keys_of_a_day,
           CAST(coalesce(avg(expires_at - created_at) FILTER (WHERE created_at > since), 0) AS INTEGER) AS kept
      FROM t LEFT JOIN onced_idempotency_keys
), lines AS (
    SELECT count(received_at) AS deliveries, count(*) FILTER (WHERE received_at > since) AS deliveries_of_a_day
      FROM t LEFT JOIN onced_deliveries
)
SELECT keys.*, lines.*,
       (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size) AS total_bytes
  FROM keys, lines;
