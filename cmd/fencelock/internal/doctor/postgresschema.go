package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/postgres"
)

// objects are the names of the tables and sequences in the driver's schema.
var (
	tables    = objects("TABLE")
	sequences = objects("SEQUENCE")
)

func objects(kind string) []string {
	create := regexp.MustCompile(
		`(?m)^CREATE (?:UNLOGGED )?` + kind + ` IF NOT EXISTS (fencelock_\w+)`)
	var names []string
	for _, m := range create.FindAllStringSubmatch(postgres.Schema, -1) {
		names = append(names, m[1])
	}
	return names
}

var schemaVersion = regexp.MustCompile(`fencelock_version\(\).* AS 'SELECT (\d+)'`).
	FindStringSubmatch(postgres.Schema)[1]

// postgresSchema checks that the driver's tables are there or may be made, and that the role may
// use them.
func (x *exam) postgresSchema(ctx context.Context, db *database) error {
	schema, err := db.ask(ctx, "where", x.keys.Get("schema"))
	if err != nil && err != pgx.ErrNoRows {
		return err
	}
	if schema == "" {
		x.add("postgres-schema", db.where, "no schema: neither search_path nor schema= names one "+
			"that exists")
		return nil
	}
	may, err := db.one(ctx, "SELECT has_schema_privilege($1, 'CREATE')::text || ' ' || "+
		"has_schema_privilege($1, 'USAGE')::text", schema)
	if err != nil {
		return err
	}
	create, usage := strings.HasPrefix(may, "true"), strings.HasSuffix(may, " true")
	if !usage { // the objects cannot be asked for without it
		x.add("postgres-rights", db.where, "no USAGE on schema "+schema)
		return nil
	}
	before := pgx.Identifier{schema}.Sanitize() + "."
	theirs, err := db.ask(ctx, "version", before)
	if err != nil {
		return err
	}
	if theirs = strings.TrimPrefix(theirs, "SELECT "); theirs != "" && theirs != schemaVersion {
		x.add("postgres-schema-old", db.where,
			"version "+theirs+", this program has "+schemaVersion)
		return nil
	}
	all := strings.Join(slices.Concat(tables, sequences), " ")
	missing, err := db.ask(ctx, "missing", before, all)
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

// postgresObjects checks the rights on tables that are all there.
func (x *exam) postgresObjects(ctx context.Context, db *database, before string) error {
	refused, err := db.ask(ctx, "refused", before,
		strings.Join(tables, " "), strings.Join(sequences, " "))
	if err != nil {
		return err
	}
	if refused != "" {
		x.add("postgres-rights", db.where, shorten(refused))
	}
	return nil
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
