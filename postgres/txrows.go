package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// leaseRows give the connection back when they are closed or read.
type leaseRows struct {
	pgx.Rows
	end func() error
	err error
}

// Next implements pgx.Rows.
func (r *leaseRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close implements pgx.Rows.
func (r *leaseRows) Close() { r.err = r.end() }

// Err implements pgx.Rows.
func (r *leaseRows) Err() error {
	if r.err != nil {
		return r.err
	}
	return r.Rows.Err()
}

// Scan implements pgx.Rows.
func (r *leaseRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil { // closes them
		r.Close()
	}
	return err
}

// oneRow is the Row of Rows.
type oneRow struct{ rows pgx.Rows }

// Scan implements pgx.Row.
func (r oneRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// leaseBatch gives the connection back when it is closed.
type leaseBatch struct {
	pgx.BatchResults
	end func() error
}

// Close implements pgx.BatchResults.
func (b *leaseBatch) Close() error { return b.end() }

// failedRows are those of a statement that was not sent, or failed at once.
type failedRows struct{ err error }

func (r *failedRows) Close()                                       {}
func (r *failedRows) Err() error                                   { return r.err }
func (r *failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r *failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r *failedRows) Next() bool                                   { return false }
func (r *failedRows) Scan(...any) error                            { return r.err }
func (r *failedRows) Values() ([]any, error)                       { return nil, r.err }
func (r *failedRows) RawValues() [][]byte                          { return nil }
func (r *failedRows) Conn() *pgx.Conn                              { return nil }
func (r *failedRows) TypeMap() *pgtype.Map                         { return nil }

// failedBatch is that of a batch that was not sent.
type failedBatch struct{ err error }

func (b *failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b *failedBatch) Query() (pgx.Rows, error)         { return &failedRows{b.err}, b.err }
func (b *failedBatch) QueryRow() pgx.Row                { return &failedRows{b.err} }
func (b *failedBatch) Close() error                     { return b.err }
func (b *failedBatch) Tx() pgx.Tx                       { return nil }
