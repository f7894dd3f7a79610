package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/fence"
)

// A resource inside the process refuses the writes of a holder that was overtaken.
func ExampleMemory() {
	ctx := context.Background()
	var guard fence.Memory
	balance := 0
	write := func(token fence.Token, total int) error { // token is the writer's lease.Token()
		return guard.Do(ctx, "account/7", token, func() error {
			balance = total
			return nil
		})
	}
	fmt.Println(write(41, 100))
	fmt.Println(write(42, 70))
	err := write(41, 999) // it was stopped between its look at the lease and its write
	fmt.Println("refused:", errors.Is(err, backend.ErrStale), "the balance is", balance)
	// Output:
	// <nil>
	// <nil>
	// refused: true the balance is 70
}

// A service checks the token that its clients put into their requests.
func ExampleHandler() {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "written") })
	service := httptest.NewServer(fence.Handler(&fence.Memory{}, nil, page)) // the URL's path is the resource
	defer service.Close()

	for _, token := range []fence.Token{42, 41} {
		request, err := http.NewRequest(http.MethodPut, service.URL+"/report", nil)
		if err != nil {
			log.Fatal(err)
		}
		fence.Set(request, token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			log.Fatal(err)
		}
		answer.Body.Close()
		fmt.Println(answer.Status, "stale:", errors.Is(fence.Response(answer), backend.ErrStale))
	}
	// Output:
	// 200 OK stale: false
	// 412 Precondition Failed stale: true
}
