-- The ledger: keys, deliveries, and what people decided by hand.

-- The one clock of the ledger. Not now(): that is the start of the transaction, and a lease of one second taken in a
-- transaction that is two seconds old would be born over.
CREATE FUNCTION onced.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- STABLE as `extract` is, though no time zone matters to it: PostgreSQL puts the body of a function in place of the call
-- only where the function claims no more than its body, and this one stands up to nine times in a statement.
CREATE FUNCTION onced.micros(at timestamptz) RETURNS bigint LANGUAGE sql STABLE
    AS 'SELECT (extract(epoch FROM at) * 1000000)::bigint';

-- The claim lock of a key. Two keys that share one only cost a needless 409. Part of the schema's version: every
-- instance must compute the same.
CREATE FUNCTION onced.lock_id(scope text, key text) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS 'SELECT hashtextextended(scope || chr(31) || key, 1869505380)';

-- What a value must be is said by its type, not by the table: a domain is checked where a value is put in, from a cache of
-- the session, while every constraint of a table is read and checked anew at each statement that writes a row. Patterns
-- without counted repetitions, and lengths beside them: a counted one takes PostgreSQL a hundred times as long.
CREATE DOMAIN onced.scope AS text COLLATE "C"
    CHECK (VALUE ~ '^[A-Za-z0-9._:/@-]+(#[A-Za-z0-9._/@-]+)?$'
           AND length(split_part(VALUE, '#', 1)) <= 96 AND length(split_part(VALUE, '#', 2)) <= 30);
CREATE DOMAIN onced.key AS text COLLATE "C" CHECK (VALUE ~ '^[!-~]([ -~]*[!-~])?$' AND length(VALUE) <= 255);
CREATE DOMAIN onced.request_hash AS bytea CHECK (octet_length(VALUE) = 32);
CREATE DOMAIN onced.status AS text
    CHECK (VALUE IN ('queued', 'in_progress', 'pending_external', 'completed', 'failed'));
CREATE DOMAIN onced.attempt AS integer CHECK (VALUE >= 0);
CREATE DOMAIN onced.response_code AS integer CHECK (VALUE BETWEEN 100 AND 999);

CREATE TABLE onced.idempotency_keys (
    scope            onced.scope NOT NULL,
    key              onced.key NOT NULL,
    request_hash     onced.request_hash NOT NULL,
    hash_version     text NOT NULL,
    status           onced.status NOT NULL,
    attempt          onced.attempt NOT NULL,
    lease_token      text,
    lease_until      timestamptz CHECK (lease_until IS NOT NULL OR status NOT IN ('in_progress', 'pending_external')),
    response_code    onced.response_code,
    response_headers text,
    response_body    bytea,
    body_omitted     boolean NOT NULL DEFAULT false,
    downstream_key   text,
    called_at        timestamptz,
    called_until     timestamptz,
    probe_count      integer NOT NULL DEFAULT 0,
    next_probe_at    timestamptz,
    held_at          timestamptz,
    error            text,
    retry_window     interval NOT NULL,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    completed_at     timestamptz,
    expires_at       timestamptz,
    PRIMARY KEY (scope, key)
) WITH (fillfactor = 80);

COMMENT ON TABLE onced.idempotency_keys IS 'onced: one row per (scope, key); the row is the lock';
CREATE INDEX idempotency_keys_finished ON onced.idempotency_keys (expires_at) WHERE status IN ('completed', 'failed');
CREATE INDEX idempotency_keys_unfinished ON onced.idempotency_keys (lease_until)
    WHERE status NOT IN ('completed', 'failed');
CREATE INDEX idempotency_keys_unfinished_steps ON onced.idempotency_keys (key)
    WHERE position('#' IN scope) > 0 AND status NOT IN ('completed', 'failed');

CREATE TABLE onced.deliveries (
    id              uuid PRIMARY KEY,
    scope           text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    received_at     timestamptz NOT NULL,
    decision        text NOT NULL,
    answered_status integer,
    request_hash    bytea NOT NULL,
    attempt         integer NOT NULL
);
COMMENT ON TABLE onced.deliveries IS 'onced: what arrived when, and what was decided';
CREATE INDEX deliveries_of_key ON onced.deliveries (scope, key, received_at);

CREATE TABLE onced.audit (
    id     uuid PRIMARY KEY,
    at     timestamptz NOT NULL,
    who    text NOT NULL,
    action text NOT NULL,
    scope  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    reason text NOT NULL
);
COMMENT ON TABLE onced.audit IS 'onced: what a person decided by hand, and why';
CREATE INDEX audit_of_key ON onced.audit (scope, key, at);
