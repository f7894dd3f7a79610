module github.com/fencelock/fencelock/zookeeper

go 1.26.0

require github.com/go-zookeeper/zk v1.0.4

require github.com/fencelock/fencelock v0.0.0
