-- The groups of a user that an identity provider vouches for, separated by newlines. A session keeps
-- them, because no stored token has them.
ALTER TABLE api_tokens ADD COLUMN user_groups TEXT NOT NULL DEFAULT '';
