-- List records, newest change first; steps are shown with their record, not here.
SELECT scope, `key`, status, attempt, response_code, error,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', lease_until) AS lease_until,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', created_at) AS created_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.updated_at) AS updated_micros,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', expires_at) AS expires_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', (SELECT now FROM onced_clock)) AS now
  FROM onced_idempotency_keys k
 WHERE (? IS NULL OR scope = ?) AND (? IS NULL OR status = ?) AND LOCATE('#', scope) = 0
 ORDER BY k.updated_at DESC, scope, `key`
 LIMIT ?;
