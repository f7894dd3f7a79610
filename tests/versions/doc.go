// Command versions records what the rules of a driver found on one version of its server. scripts/versions.sh runs
// them and gives it the events of go test -json:
//
//	RECORD=results.json versions redis-8.0 <events
//
// It exits with 1 if a rule is broken, or if none ran.
package main
