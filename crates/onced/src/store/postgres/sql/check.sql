-- Prove that the ledger takes writes, as a claim writes: what locks the tables, sets them read-only or leaves them no
-- room is met here as well. Expects one row, and to be rolled back. A key of its own each time, so that instances that
-- ask at the same time do not wait for each other.
WITH line AS (
    INSERT INTO onced.deliveries (id, scope, key, received_at, decision, request_hash, attempt)
    VALUES (gen_random_uuid(), 'onced', 'ready', onced.clock(), 'ready', '', 0)
)
INSERT INTO onced.idempotency_keys
    (scope, key, request_hash, hash_version, status, attempt, retry_window, created_at, updated_at)
VALUES ('onced', gen_random_uuid()::text, decode(repeat('00', 32), 'hex'), '', 'queued', 0, interval '0',
        onced.clock(), onced.clock());
