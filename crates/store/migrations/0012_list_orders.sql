-- Lists of machines and records by time. The id is the tie-breaker.
CREATE INDEX machines_created ON machines (created_at, id);
CREATE INDEX machines_updated ON machines (updated_at, id);
CREATE INDEX records_created ON records (kind, created_at, id);
CREATE INDEX records_updated ON records (kind, updated_at, id);
