-- The machine's clock: what the ledger's own clock is made from.
SELECT CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) * 1000 AS now;
