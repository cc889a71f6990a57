-- The scopes of the steps of a scope, from the primary key.
SELECT scope FROM onced_idempotency_keys WHERE scope > CONCAT(?, '#') AND scope < CONCAT(?, '$') GROUP BY scope;
