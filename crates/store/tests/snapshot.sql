-- The oldest transaction that may be open, and the first that has not begun. The tests of the binary wait for watches by them.
SELECT pg_snapshot_xmin(now)::text::bigint, pg_snapshot_xmax(now)::text::bigint
FROM pg_current_snapshot() AS now
