-- Which of the objects $2 are not in the schema $1.
SELECT string_agg(r, ', ') FROM unnest(string_to_array($2, ' ')) r
WHERE to_regclass($1 || r) IS NULL
