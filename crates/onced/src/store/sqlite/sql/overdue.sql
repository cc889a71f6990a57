-- Finished records that have expired and are still there.
SELECT count(*) AS count, coalesce((SELECT now FROM onced_clock) - min(k.expires_at), 0) AS longest
  FROM onced_idempotency_keys k
 WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock);
