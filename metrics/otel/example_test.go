package otel_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory" // for memory://
	"github.com/fencelock/fencelock/metrics/otel"
)

func Example() {
	// In earnest: the exporters of your program, and otel.New(nil) if the providers are the global ones.
	spans := tracetest.NewInMemoryExporter()
	tracers := trace.NewTracerProvider(trace.WithSyncer(spans))
	meters := metric.NewMeterProvider()

	observer, err := otel.New(&otel.Options{TracerProvider: tracers, MeterProvider: meters})
	if err != nil {
		log.Fatal(err)
	}
	defer observer.Close()

	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://", fencelock.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	ctx, request := tracers.Tracer("shop").Start(ctx, "POST /orders")
	lease, err := locks.Mutex("orders/7").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	request.End()
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, "in the trace of the request:", s.SpanContext.TraceID() == request.SpanContext().TraceID())
	}
	// Output:
	// lock in the trace of the request: true
	// hold in the trace of the request: true
	// unlock in the trace of the request: true
	// POST /orders in the trace of the request: true
}
