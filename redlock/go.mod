module github.com/fencelock/fencelock/redlock

go 1.26.0

require github.com/redis/go-redis/v9 v9.23.0

require golang.org/x/sys v0.49.0 // indirect

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/fencelock/fencelock v0.0.0
	go.uber.org/atomic v1.12.0 // indirect
)
