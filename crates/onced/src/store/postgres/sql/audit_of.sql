-- What people decided by hand about one key, oldest first.
SELECT onced.micros(at) AS at, who, action, reason FROM onced.audit WHERE scope = $1 AND key = $2 ORDER BY at, id;
