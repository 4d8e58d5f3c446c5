-- The keys in the database, and those that credentials are sealed with.
SELECT id FROM seal_keys WHERE purpose = 'seal' UNION SELECT key_id FROM credentials;
