-- Claim a key that has no record. Expects zero or one row; zero means that there is a record. Runs under the one
-- write lock, so nobody else can be claiming.
INSERT INTO onced_idempotency_keys
    (scope, key, request_hash, hash_version, status, attempt, lease_token, lease_until, downstream_key, called_at,
     retry_window, created_at, updated_at, expires_at)
SELECT ?1, ?2, ?3, ?4, ?5, 1, ?6, t.now + ?7, ?8, CASE WHEN ?5 = 'pending_external' THEN t.now END,
       ?9, t.now, t.now, t.now + ?10
  FROM onced_clock t WHERE true
ON CONFLICT (scope, key) DO NOTHING
RETURNING expires_at, attempt;
