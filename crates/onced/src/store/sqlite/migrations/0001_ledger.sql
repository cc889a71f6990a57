-- The ledger: keys, deliveries, and what people decided by hand. Times are integer microseconds since 1970, UTC.

-- The one clock of the ledger; SQLite knows the time to the millisecond.
CREATE VIEW onced_clock AS SELECT CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) * 1000 AS now;

CREATE TABLE onced_idempotency_keys (
    scope            TEXT NOT NULL COLLATE BINARY CHECK (length(scope) BETWEEN 1 AND 127 AND scope NOT GLOB '*[^-A-Za-z0-9._:/@#]*'),
    key              TEXT NOT NULL COLLATE BINARY CHECK (length(key) BETWEEN 1 AND 255 AND key = trim(key, ' ') AND key NOT GLOB '*[^ -~]*'),
    request_hash     BLOB NOT NULL CHECK (length(request_hash) = 32),
    hash_version     TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('queued', 'in_progress', 'pending_external', 'completed', 'failed')),
    attempt          INTEGER NOT NULL CHECK (attempt >= 0),
    lease_token      TEXT,
    lease_until      INTEGER CHECK (lease_until IS NOT NULL OR status NOT IN ('in_progress', 'pending_external')),
    response_code    INTEGER CHECK (response_code BETWEEN 100 AND 999),
    response_headers TEXT,
    response_body    BLOB,
    body_omitted     INTEGER NOT NULL DEFAULT 0,
    downstream_key   TEXT,
    called_at        INTEGER,
    called_until     INTEGER,
    probe_count      INTEGER NOT NULL DEFAULT 0,
    next_probe_at    INTEGER,
    held_at          INTEGER,
    error            TEXT,
    retry_window     INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    completed_at     INTEGER,
    expires_at       INTEGER,
    PRIMARY KEY (scope, key)
) STRICT;
CREATE INDEX onced_keys_finished ON onced_idempotency_keys (expires_at) WHERE status IN ('completed', 'failed');
CREATE INDEX onced_keys_unfinished ON onced_idempotency_keys (lease_until) WHERE status NOT IN ('completed', 'failed');
CREATE INDEX onced_keys_unfinished_steps ON onced_idempotency_keys (key)
    WHERE instr(scope, '#') > 0 AND status NOT IN ('completed', 'failed');

CREATE TABLE onced_deliveries (
    id              TEXT NOT NULL PRIMARY KEY,
    scope           TEXT NOT NULL,
    key             TEXT NOT NULL,
    received_at     INTEGER NOT NULL,
    decision        TEXT NOT NULL,
    answered_status INTEGER,
    request_hash    BLOB NOT NULL,
    attempt         INTEGER NOT NULL
) STRICT;
CREATE INDEX onced_deliveries_of_key ON onced_deliveries (scope, key, received_at);

CREATE TABLE onced_audit (
    id     TEXT NOT NULL PRIMARY KEY,
    at     INTEGER NOT NULL,
    who    TEXT NOT NULL,
    action TEXT NOT NULL,
    scope  TEXT NOT NULL,
    key    TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX onced_audit_of_key ON onced_audit (scope, key, at);

-- For people: the same rows with times that can be read.
CREATE VIEW onced_keys_readable AS
SELECT scope, key, status, attempt, response_code, error,
       strftime('%Y-%m-%dT%H:%M:%fZ', lease_until / 1000000.0, 'unixepoch') AS lease_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', completed_at / 1000000.0, 'unixepoch') AS completed_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000000.0, 'unixepoch') AS expires_at
  FROM onced_idempotency_keys;
CREATE VIEW onced_deliveries_readable AS
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', received_at / 1000000.0, 'unixepoch') AS received_at,
       scope, key, decision, answered_status, attempt
  FROM onced_deliveries;
