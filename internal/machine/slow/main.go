// Slow tells a script what the tests go by.
package main

import (
	"fmt"

	"github.com/fencelock/fencelock/internal/machine"
)

func main() { fmt.Println(machine.Slow()) }
