-- The machine's clock: what the ledger's own clock is made from.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now;
