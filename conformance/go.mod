module github.com/fencelock/fencelock/conformance

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.0
	golang.org/x/sys v0.49.0
)

require github.com/fencelock/fencelock v0.0.0
