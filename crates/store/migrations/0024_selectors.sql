-- The label selector that limits a binding; empty: it holds for everything.
ALTER TABLE role_bindings ADD COLUMN selector TEXT NOT NULL DEFAULT '';
