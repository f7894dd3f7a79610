package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/postgres"
)

// objects are the names of the tables and sequences in the driver's schema.
var (
	tables    = objects("TABLE")
	sequences = append(objects("SEQUENCE"), lanes()...)
)

func objects(kind string) []string {
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^CREATE (?:UNLOGGED )?`+kind+` IF NOT EXISTS (fencelock_\w+)`).FindAllStringSubmatch(postgres.Schema, -1) {
		names = append(names, m[1])
	}
	return names
}

// lanes are the sequences that the schema makes in a loop.
func lanes() []string {
	var names []string
	for i := range 16 {
		names = append(names, fmt.Sprint("fencelock_token_", i))
	}
	return names
}

var schemaVersion = regexp.MustCompile(`fencelock_version\(\).* AS 'SELECT (\d+)'`).FindStringSubmatch(postgres.Schema)[1]

// postgresSchema checks that the driver's tables are there or may be made, and that the role may use them.
func (x *exam) postgresSchema(ctx context.Context, db *database) error {
	schema, err := db.one(ctx, "SELECT nspname::text FROM pg_namespace WHERE nspname = coalesce(nullif($1, ''), current_schema()::text)", x.keys.Get("schema"))
	if err != nil && err != pgx.ErrNoRows {
		return err
	}
	if schema == "" {
		x.add("postgres-schema", db.where, "no schema: neither search_path nor schema= names one that exists")
		return nil
	}
	may, err := db.one(ctx, "SELECT has_schema_privilege($1, 'CREATE')::text || ' ' || has_schema_privilege($1, 'USAGE')::text", schema)
	if err != nil {
		return err
	}
	create, usage := strings.HasPrefix(may, "true"), strings.HasSuffix(may, " true")
	if !usage { // without it nobody can even ask what is there
		x.add("postgres-rights", db.where, "no USAGE on schema "+schema)
		return nil
	}
	before := pgx.Identifier{schema}.Sanitize() + "."
	all := append(append([]string{}, tables...), sequences...)
	missing, err := db.one(ctx, `SELECT string_agg(r, ', ') FROM unnest(string_to_array($2, ' ')) r WHERE to_regclass($1 || r) IS NULL`, before, strings.Join(all, " "))
	switch {
	case err != nil:
		return err
	case missing != "" && create:
		x.add("postgres-schema-missing", db.where, "in schema "+schema)
		return nil
	case missing != "":
		x.add("postgres-schema", db.where, "missing in schema "+schema+": "+shorten(missing))
		return nil
	}
	return x.postgresObjects(ctx, db, before)
}

// postgresObjects checks the rights on tables that are all there, and their version.
func (x *exam) postgresObjects(ctx context.Context, db *database, before string) error {
	refused, err := db.one(ctx, `SELECT string_agg(what, ', ') FROM (
			SELECT p || ' on ' || r AS what FROM unnest(string_to_array($2, ' ')) r, unnest(string_to_array('SELECT INSERT UPDATE DELETE', ' ')) p
				WHERE NOT has_table_privilege($1 || r, p)
			UNION ALL SELECT p || ' on ' || r FROM unnest(string_to_array($3, ' ')) r, unnest(string_to_array('SELECT UPDATE', ' ')) p
				WHERE NOT has_sequence_privilege($1 || r, p)
			UNION ALL SELECT DISTINCT 'EXECUTE on ' || f.proname FROM pg_proc f WHERE f.proname LIKE 'fencelock\_%'
				AND f.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1 || 'fencelock_lead'))
				AND NOT has_function_privilege(f.oid, 'EXECUTE')
		) x`, before, strings.Join(tables, " "), strings.Join(sequences, " "))
	if err != nil {
		return err
	}
	if refused != "" {
		x.add("postgres-rights", db.where, shorten(refused))
		return nil
	}
	old, err := db.one(ctx, "SELECT CASE WHEN "+before+"fencelock_version() < $1::int THEN "+before+"fencelock_version()::text END", schemaVersion)
	if err != nil || old == "" {
		return err
	}
	owner, err := db.one(ctx, "SELECT pg_has_role(relowner, 'USAGE')::text FROM pg_class WHERE oid = to_regclass($1 || 'fencelock_lead')", before)
	if err == nil && owner != "true" {
		x.add("postgres-schema-old", db.where, "version "+old+", this program has "+schemaVersion)
	}
	return err
}

// shorten keeps a list readable.
func shorten(list string) string {
	const most = 5
	parts := strings.Split(list, ", ")
	if len(parts) > most {
		return strings.Join(parts[:most], ", ") + fmt.Sprintf(" and %d more", len(parts)-most)
	}
	return list
}
