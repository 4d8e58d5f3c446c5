-- Changes the user of the second entry of the chain, as an attacker with the database would.
UPDATE audit_entries SET user_name = 'mallory' WHERE position = 2;
