-- The oldest open transaction and the next one. The tests of the binary wait for watches by them.
SELECT pg_snapshot_xmin(now)::text::bigint, pg_snapshot_xmax(now)::text::bigint
FROM pg_current_snapshot() AS now
