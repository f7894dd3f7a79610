// Package rights holds docs/security.md to its word, on real servers: with exactly the rights that
// it grants a driver does all that a program, an operator and a migration ask of it; with any one
// of them taken away something fails with ErrInvalid, in time, and nobody is granted a lock that
// another has. It has tests only.
package rights
