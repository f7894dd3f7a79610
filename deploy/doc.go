// Package deploy has what operators copy: alert rules and their unit tests (prometheus), a
// dashboard (grafana), a Kubernetes example, and a Compose file that brings up every backend with
// both and with the program in demo, so that there is something to see. docs/operating.md explains
// them; the tests here hold them to what the code exports.
package deploy
