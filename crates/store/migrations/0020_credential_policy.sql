-- The peers that a credential may be sent to, as JSON. Null: the credential was set by a farrier
-- that knew no bindings; the next start binds it to the peers that records name.
ALTER TABLE credentials ADD COLUMN policy TEXT;
