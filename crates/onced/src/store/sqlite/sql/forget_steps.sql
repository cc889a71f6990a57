-- Delete the steps of a record whose key begins a new life.
DELETE FROM onced_idempotency_keys WHERE key = ?2 AND scope > ?1 || '#' AND scope < ?1 || '$';
