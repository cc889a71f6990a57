-- Which of the ledger's tables are there.
SELECT table_name AS name FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_name IN ('onced_migrations', 'onced_idempotency_keys');
