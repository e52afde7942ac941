-- name: applied_migrations
-- Applied migrations; fails with undefined_table if the database has no horsies tables.
SELECT version, name, checksum, applied_at
  FROM horsies_migrations
 ORDER BY version;

-- name: server_version
SELECT current_setting('server_version_num')::integer;

-- name: schema_exists
SELECT to_regnamespace($1) IS NOT NULL AS exists;

-- name: lock_migrations
-- Held until the transaction ends; others can still read which migrations are applied. Unlike an advisory lock, only
-- roles that may write our tables can take it.
LOCK TABLE horsies_migrations IN SHARE ROW EXCLUSIVE MODE;

-- name: create_migrations_table
CREATE TABLE IF NOT EXISTS horsies_migrations (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: record_migration
INSERT INTO horsies_migrations (version, name, checksum)
VALUES ($1, $2, $3);
