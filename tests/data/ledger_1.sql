-- A ledger of version 1, as it was made then, on any database.
CREATE TABLE builds (
  build_uid VARCHAR(64) NOT NULL,
  source_id TEXT NOT NULL,
  build_id VARCHAR(64) NOT NULL,
  definition VARCHAR(64) NOT NULL,
  environment VARCHAR(64) NOT NULL,
  run_id VARCHAR(64),
  state VARCHAR(16) NOT NULL,
  action VARCHAR(16) NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE NOT NULL,
  finished_at TIMESTAMP WITH TIME ZONE,
  error TEXT,
  table_name TEXT NOT NULL,
  snapshot_uid VARCHAR(64),
  version BIGINT,
  as_of JSON,
  content VARCHAR(128),
  rows BIGINT,
  bytes BIGINT,
  built_at TIMESTAMP WITH TIME ZONE,
  columns JSON,
  watermark TEXT,
  checks JSON,
  CONSTRAINT pk_builds PRIMARY KEY (build_uid),
  CONSTRAINT ck_builds_state CHECK (state IN ('started', 'succeeded', 'failed')),
  CONSTRAINT ck_builds_action CHECK (action IN ('built', 'reused')),
  CONSTRAINT ck_builds_snapshot CHECK ((state = 'succeeded') = (version IS NOT NULL))
);
CREATE INDEX ix_builds_run_id ON builds (run_id);
CREATE INDEX ix_builds_source_id ON builds (source_id, started_at);
CREATE INDEX ix_builds_table_name ON builds (table_name, state);
CREATE TABLE counters (
  name VARCHAR(64) NOT NULL,
  value BIGINT NOT NULL,
  CONSTRAINT pk_counters PRIMARY KEY (name)
);
CREATE TABLE events (
  idx BIGINT NOT NULL,
  at TIMESTAMP WITH TIME ZONE NOT NULL,
  kind VARCHAR(64) NOT NULL,
  data JSON NOT NULL,
  CONSTRAINT pk_events PRIMARY KEY (idx)
);
CREATE TABLE leases (
  name TEXT NOT NULL,
  token VARCHAR(64) NOT NULL,
  holder TEXT NOT NULL,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  acquired_at TIMESTAMP WITH TIME ZONE NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
  CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE ledger_version (
  version INTEGER NOT NULL,
  migrated_at TIMESTAMP WITH TIME ZONE NOT NULL,
  CONSTRAINT pk_ledger_version PRIMARY KEY (version)
);
CREATE TABLE manifest_entries (
  environment VARCHAR(64) NOT NULL,
  build_id VARCHAR(64) NOT NULL,
  build_uid VARCHAR(64) NOT NULL,
  published_at TIMESTAMP WITH TIME ZONE NOT NULL,
  CONSTRAINT pk_manifest_entries PRIMARY KEY (environment, build_id),
  CONSTRAINT fk_manifest_entries_build_uid FOREIGN KEY(build_uid) REFERENCES builds (build_uid)
);

INSERT INTO ledger_version VALUES (1, '2026-01-01 00:00:00.000000');
INSERT INTO counters VALUES ('events', 2);
INSERT INTO events VALUES
  (1, '2026-01-02 03:04:06.000000', 'build-started', '{"build_uid": "1"}'),
  (2, '2026-01-02 03:04:07.250000', 'build-succeeded', '{"build_uid": "1"}');
INSERT INTO builds VALUES (
  '1', 'a@s.sql', 'build-a', 'def', 'dev', 'run', 'succeeded', 'built',
  '2026-01-02 03:04:06.000000', '2026-01-02 03:04:07.000000', NULL, 'table-build-a',
  '1', 0, '[["raw", "files:1"]]', '3:aa:bb:cc', 3, 300, '2026-01-02 03:04:05.000000',
  '[["a", "int"]]', '2013-01-01',
  '[{"name": "c", "passed": true, "blocking": true, "failed_rows": 0, "definition": "a not null"}]'
);
INSERT INTO manifest_entries VALUES ('dev', 'build-a', '1', '2026-01-02 03:04:07.000000');
