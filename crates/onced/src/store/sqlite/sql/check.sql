-- Prove that the ledger takes writes: on a full disk, or a file that may not be changed, only a commit which writes finds
-- out. What is inserted is gone again before the commit, so that nobody ever sees it; its pages are written all the
-- same. Expects one row each; under the write lock.
INSERT INTO onced_deliveries (id, scope, key, received_at, decision, request_hash, attempt)
VALUES ('ready', 'onced', 'ready', (SELECT now FROM onced_clock), 'ready', x'', 0);
DELETE FROM onced_deliveries WHERE id = 'ready';
