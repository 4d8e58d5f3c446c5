-- The text value of a key in a JSON object, and null if the text is no JSON. Only for PostgreSQL 15
-- and older, which cannot ask whether a text is JSON; SQLite can.
{json_text}
