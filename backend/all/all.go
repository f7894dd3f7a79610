// Package all imports every backend of this library for its URL schemes: for
// programs that choose the backend by configuration.
package all

import (
	_ "github.com/fencelock/fencelock/backend/file"
	_ "github.com/fencelock/fencelock/backend/memory"
	_ "github.com/fencelock/fencelock/etcd"
	_ "github.com/fencelock/fencelock/postgres"
	_ "github.com/fencelock/fencelock/redis"
	_ "github.com/fencelock/fencelock/redlock"
	_ "github.com/fencelock/fencelock/zookeeper"
)
