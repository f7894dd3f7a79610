package postgres_test

import (
	"os"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/postgres"
)

// The documentation shows the very file that the driver runs.
func TestDocsShowTheSchema(t *testing.T) {
	text, err := os.ReadFile("../docs/postgres.md")
	must(t, err)
	if !strings.Contains(string(text), "```sql\n"+postgres.Schema+"```\n") {
		t.Error("docs/postgres.md does not show schema.sql as it is")
	}
}
