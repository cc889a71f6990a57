-- The ledger: keys, deliveries, and what people decided by hand. Times are DATETIME(6) in UTC.
-- Each statement may be run again: MariaDB commits every one of these by itself, and a migration that was cut off goes on
-- from its beginning.

-- The one clock of the ledger: in UTC whatever the session's time zone is. It is the time at which the statement began,
-- not the transaction. The rights are those of who asks: whoever made the view may leave.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW onced_clock AS SELECT UTC_TIMESTAMP(6) AS now;

-- Scope and key are bytes, so that no collation makes two keys one.
CREATE TABLE IF NOT EXISTS onced_idempotency_keys (
    scope            VARBINARY(127) NOT NULL,
    `key`            VARBINARY(255) NOT NULL,
    request_hash     VARBINARY(32) NOT NULL,
    hash_version     TEXT NOT NULL,
    status           VARCHAR(16) NOT NULL,
    attempt          INTEGER NOT NULL,
    lease_token      VARCHAR(255),
    lease_until      DATETIME(6),
    response_code    INTEGER,
    response_headers LONGTEXT,
    response_body    LONGBLOB,
    body_omitted     BOOLEAN NOT NULL DEFAULT false,
    downstream_key   TEXT,
    called_at        DATETIME(6),
    called_until     DATETIME(6),
    probe_count      INTEGER NOT NULL DEFAULT 0,
    next_probe_at    DATETIME(6),
    held_at          DATETIME(6),
    error            LONGTEXT,
    retry_window     BIGINT NOT NULL COMMENT 'in microseconds',
    created_at       DATETIME(6) NOT NULL,
    updated_at       DATETIME(6) NOT NULL,
    completed_at     DATETIME(6),
    expires_at       DATETIME(6),
    PRIMARY KEY (scope, `key`),
    INDEX onced_keys_by_expiry (expires_at),
    INDEX onced_keys_by_status (status, lease_until),
    INDEX onced_keys_by_key (`key`) COMMENT 'the steps of a record: of the scopes of all, those of one key',
    CONSTRAINT onced_scope CHECK (LENGTH(scope) BETWEEN 1 AND 127 AND scope NOT REGEXP '[^-A-Za-z0-9._:/@#]'),
    CONSTRAINT onced_key CHECK (LENGTH(`key`) BETWEEN 1 AND 255 AND `key` NOT REGEXP '[^ -~]'
                                AND `key` NOT LIKE ' %' AND `key` NOT LIKE '% '),
    CONSTRAINT onced_request_hash CHECK (LENGTH(request_hash) = 32),
    CONSTRAINT onced_status CHECK (status IN ('queued', 'in_progress', 'pending_external', 'completed', 'failed')),
    CONSTRAINT onced_attempt CHECK (attempt >= 0),
    CONSTRAINT onced_lease CHECK (lease_until IS NOT NULL OR status NOT IN ('in_progress', 'pending_external')),
    CONSTRAINT onced_response_code CHECK (response_code BETWEEN 100 AND 999)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT 'onced: one row per (scope, key); the row is the lock';

-- The id is that of the delivery as 16 bytes; it is ordered by time.
CREATE TABLE IF NOT EXISTS onced_deliveries (
    id              BINARY(16) NOT NULL PRIMARY KEY,
    scope           VARBINARY(127) NOT NULL,
    `key`           VARBINARY(255) NOT NULL,
    received_at     DATETIME(6) NOT NULL,
    decision        VARCHAR(255) NOT NULL,
    answered_status INTEGER,
    request_hash    VARBINARY(32) NOT NULL,
    attempt         INTEGER NOT NULL,
    INDEX onced_deliveries_of_key (scope, `key`, received_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT 'onced: what arrived when, and what was decided';

CREATE TABLE IF NOT EXISTS onced_audit (
    id     BINARY(16) NOT NULL PRIMARY KEY,
    at     DATETIME(6) NOT NULL,
    who    TEXT NOT NULL,
    action VARCHAR(255) NOT NULL,
    scope  VARBINARY(127) NOT NULL,
    `key`  VARBINARY(255) NOT NULL,
    reason LONGTEXT NOT NULL,
    INDEX onced_audit_of_key (scope, `key`, at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT 'onced: what a person decided by hand, and why';
