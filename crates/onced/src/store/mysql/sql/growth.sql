-- How the ledger grows. Reads whole tables; what they take is as the server last estimated it.
SELECT k.n AS n_keys, k.of_a_day AS keys_of_a_day, k.kept, d.n AS n_deliveries, d.of_a_day AS deliveries_of_a_day,
       b.keys_bytes, b.deliveries_bytes
  FROM (SELECT COUNT(*) AS n, COUNT(CASE WHEN created_at > (SELECT now FROM onced_clock) - INTERVAL 1 DAY THEN 1 END) AS of_a_day,
               CAST(COALESCE(AVG(CASE WHEN created_at > (SELECT now FROM onced_clock) - INTERVAL 1 DAY
                                      THEN TIMESTAMPDIFF(MICROSECOND, created_at, expires_at) END), 0) AS SIGNED) AS kept
          FROM onced_idempotency_keys) k,
       (SELECT COUNT(*) AS n, COUNT(CASE WHEN received_at > (SELECT now FROM onced_clock) - INTERVAL 1 DAY THEN 1 END) AS of_a_day
          FROM onced_deliveries) d,
       (SELECT CAST(COALESCE(SUM(CASE WHEN table_name = 'onced_idempotency_keys' THEN data_length + index_length END), 0) AS SIGNED) AS keys_bytes,
               CAST(COALESCE(SUM(CASE WHEN table_name = 'onced_deliveries' THEN data_length + index_length END), 0) AS SIGNED) AS deliveries_bytes
          FROM information_schema.tables WHERE table_schema = DATABASE()) b;
