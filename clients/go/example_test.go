package keylatch_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
	"github.com/keylatch/keylatch/clients/go/keylatchtest"
)

func ExampleClient_Lock() {
	client, ctx := keylatchtest.New().Client(), context.Background()
	lease, err := client.Lock(ctx, "deploy", keylatch.Wait(30*time.Second), keylatch.Owner("ann"))
	if err != nil {
		panic(err)
	}
	defer lease.Close()
	_, err = client.Lock(ctx, "deploy")
	fmt.Println(err, errors.Is(err, keylatch.ErrHeld))
	// Output: keylatch: deploy is held by ann true
}

func ExampleClient_With() {
	client, ctx := keylatchtest.New().Client(), context.Background()
	err := client.With(ctx, "deploy", func(ctx context.Context, lease *keylatch.Lease) error {
		fmt.Println("deploying under", lease.FencingToken())
		return nil
	})
	fmt.Println(err)
	// Output:
	// deploying under 1
	// <nil>
}

func ExampleClient_Elect() {
	fake := keylatchtest.New()
	times := 0
	err := fake.Client().Elect(context.Background(), "leader", func(ctx context.Context, lease *keylatch.Lease) error {
		times++
		fmt.Println("leads")
		if times == 2 {
			return nil
		}
		fake.Lose("leader")
		<-ctx.Done()
		fmt.Println("steps down")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leads
	// steps down
	// leads
	// <nil>
}

func ExampleClient_Once() {
	client, ctx := keylatchtest.New().Client(), context.Background()
	for try := 0; try < 2; try++ {
		answer, err := client.Once(ctx, "mail-17", func(ctx context.Context) (keylatch.Answer, error) {
			fmt.Println("sending")
			return keylatch.Answer{Body: []byte("sent")}, nil
		}, keylatch.Fingerprint("to ann: hello"))
		fmt.Println(string(answer.Body), err)
	}
	// Output:
	// sending
	// sent <nil>
	// sent <nil>
}

// A handler of net/http that answers a repeat as the first request.
func ExampleClient_Once_handler() {
	client := keylatchtest.New().Client()
	handler := func(w http.ResponseWriter, r *http.Request) {
		// The order is kept also where the browser has gone.
		answer, err := client.Once(r.Context(), r.Header.Get("Idempotency-Key"),
			func(ctx context.Context) (keylatch.Answer, error) {
				return keylatch.JSON(http.StatusCreated, map[string]int{"order": 17})
			}, keylatch.AwaitRun(10*time.Second))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		for name, values := range answer.Headers {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
	}
	_ = handler
}

// A watch as a channel.
func ExampleClient_Watch() {
	watch := func(ctx context.Context, client *keylatch.Client, name string) <-chan keylatch.Event {
		events := make(chan keylatch.Event)
		go func() {
			defer close(events)
			_ = client.Watch(ctx, name, func(event keylatch.Event) {
				select {
				case events <- event:
				case <-ctx.Done():
				}
			})
		}()
		return events
	}
	_ = watch
}
