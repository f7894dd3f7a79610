module github.com/fencelock/fencelock/integrations/tusd

go 1.26.0

require (
	github.com/fencelock/fencelock v0.0.0
	github.com/tus/tusd/v2 v2.9.1
)

require golang.org/x/exp v0.0.0-20260410095643-746e56fc9e2f
