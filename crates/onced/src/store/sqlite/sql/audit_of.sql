-- What people decided by hand about one key, oldest first.
SELECT at, who, action, reason FROM onced_audit WHERE scope = ?1 AND key = ?2 ORDER BY at, id;
