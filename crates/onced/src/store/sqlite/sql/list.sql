-- List records, newest change first; steps are shown with their record, not here.
SELECT scope, key, status, attempt, response_code, error, lease_until, created_at, updated_at, expires_at, t.now AS now
  FROM onced_idempotency_keys, onced_clock t
 WHERE (?1 IS NULL OR scope = ?1) AND (?2 IS NULL OR status = ?2) AND instr(scope, '#') = 0
 ORDER BY updated_at DESC, scope, key
 LIMIT ?3;
