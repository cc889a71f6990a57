-- Finished records that have expired and are still there.
SELECT COUNT(*) AS n, COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(k.expires_at), (SELECT now FROM onced_clock)), 0) AS longest
  FROM onced_idempotency_keys k
 WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock);
