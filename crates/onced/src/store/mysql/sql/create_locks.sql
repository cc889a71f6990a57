-- One row per piece of work that one instance does at a time. The row is locked, never changed. Made before the first
-- migration, which needs it. Not GET_LOCK: that would stay with a pooled connection.
CREATE TABLE IF NOT EXISTS onced_locks (
    name VARCHAR(32) NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT 'onced: what one instance does at a time';
INSERT INTO onced_locks (name) VALUES ('migrate'), ('sweep') ON DUPLICATE KEY UPDATE name = VALUES(name);
