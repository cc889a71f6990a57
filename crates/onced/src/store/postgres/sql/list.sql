-- List records, newest change first; steps are shown with their record, not here.
SELECT scope, key, status, attempt, response_code, error, onced.micros(lease_until) AS lease_until,
       onced.micros(created_at) AS created_at, onced.micros(updated_at) AS updated_at,
       onced.micros(expires_at) AS expires_at, onced.micros(onced.clock()) AS now
  FROM onced.idempotency_keys
 WHERE ($1::text IS NULL OR scope = $1) AND ($2::text IS NULL OR status = $2) AND position('#' IN scope) = 0
 ORDER BY updated_at DESC, scope, key
 LIMIT $3;
