-- The machine's clock: what the ledger's own clock is made from.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) AS now;
