module github.com/fencelock/fencelock/integrations/cron

go 1.26.0

require (
	github.com/fencelock/fencelock v0.0.0
	github.com/robfig/cron/v3 v3.0.1
)
