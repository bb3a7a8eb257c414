package keylatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

// handClock is moved by the test, and by what sleeps. Nothing runs beside the caller.
type handClock struct {
	mutex sync.Mutex
	at    time.Duration
}

func (c *handClock) Now() time.Duration {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.at
}

func (c *handClock) pass(time time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.at += time
}

func (c *handClock) Go(func()) {}
func (c *handClock) SleepUntil(ctx context.Context, then time.Duration) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.at < then {
		c.at = then
	}
	return ctx.Err()
}

// refuse answers with a problem.
func refuse(w http.ResponseWriter, status int, code string) bool {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"code":"`+code+`","detail":"It is `+code+`.","retry":"new-key"}`)
	return true
}

func TestRunCountsFromTheSending(t *testing.T) {
	for late, renews := range map[time.Duration]bool{10 * time.Second: false, 40 * time.Second: true} {
		clock := &handClock{}
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
			if r.URL.Path == "/v1/idempotency/k" {
				clock.pass(late)
			}
			return false
		})
		client, err := keylatch.New(keylatch.URL(s.URL), keylatch.UseClock(clock))
		if err != nil {
			t.Fatal(err)
		}
		run, err := client.Begin(context.Background(), "k", keylatch.AwaitRun(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		want := 20 * time.Second
		if renews {
			want = 30 * time.Second
		}
		if left := run.ValidFor(); left != want || len(s.requests) != 1 != renews {
			t.Error(late, left, s.requests)
		}
	}
}

func TestRunThatIsBegunAgainCountsFromTheFirstSending(t *testing.T) {
	clock := &handClock{}
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if clock.Now() == 0 {
			clock.pass(10 * time.Second)
			panic(http.ErrAbortHandler)
		}
		return false
	})
	client, err := keylatch.New(keylatch.URL(s.URL), keylatch.UseClock(clock))
	if err != nil {
		t.Fatal(err)
	}
	run, err := client.Begin(context.Background(), "k", keylatch.AwaitRun(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if left := run.ValidFor(); left > 20*time.Second {
		t.Error(left)
	}
}

func TestRunWhoseAnswerIsRefusedFails(t *testing.T) {
	for _, status := range []int{400, 413} {
		s, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
			return r.Method == http.MethodPut && refuse(w, status, "too-much")
		})
		_, err := client.Once(context.Background(), "k", func(context.Context) (keylatch.Answer, error) {
			return keylatch.Answer{Status: 7}, nil
		})
		var problem *keylatch.Problem
		if !errors.As(err, &problem) || problem.Status != status ||
			s.requests[len(s.requests)-1] != `POST /v1/idempotency/k/fail {"reason":"keylatch: It is too-much."}` {
			t.Error(err, s.requests)
		}
	}
}

func TestWaitGoesOnAfterAGrantThatWasOverBeforeItWasRead(t *testing.T) {
	for _, code := range []string{"lock-not-held", "token-mismatch"} {
		clock, renewals := &handClock{}, 0
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
			if renewals == 0 {
				clock.pass(40 * time.Second)
			}
			if r.Method != http.MethodPut {
				return false
			}
			renewals++
			return renewals == 1 && refuse(w, 412, code)
		})
		client, err := keylatch.New(keylatch.URL(s.URL), keylatch.UseClock(clock))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Lock(context.Background(), "a", keylatch.Wait(keylatch.WaitForever)); err != nil {
			t.Error(code, err, strings.Join(s.requests, "\n"))
		}
	}
}

func TestHoldIsRetriedAsALock(t *testing.T) {
	for name, first := range map[string]func(w http.ResponseWriter, body string) bool{
		"a lost response": func(http.ResponseWriter, string) bool { panic(http.ErrAbortHandler) },
		"a 503": func(w http.ResponseWriter, _ string) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"outcome":"not-executed","retry":"same-key"}`)
			return true
		},
		"a lost stream": func(w http.ResponseWriter, _ string) bool {
			_, _ = io.WriteString(w, "event: waiting\ndata: {\"ahead\":0}\n\n")
			return true
		},
	} {
		tries, tokens := 0, map[string]bool{}
		_, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
			tries++
			tokens[r.Header.Get("Lock-Token")] = true
			if tries == 1 {
				return first(w, body)
			}
			return streamOf(w, r)
		})
		lease, err := client.Hold(context.Background(), "a")
		if err != nil || tries != 2 {
			t.Fatal(name, tries, err)
		}
		// The service may keep the lost stream for a while, and releases what its token holds when that ends.
		if isNew := len(tokens) == 2; isNew != (name != "a 503") {
			t.Error(name, tokens)
		}
		_ = lease.Close()
	}
}

func TestLostHoldWithATokenOfTheCallersIsNotRetried(t *testing.T) {
	s, client := serve(t, func(http.ResponseWriter, *http.Request, string) bool { panic(http.ErrAbortHandler) })
	_, err := client.Hold(context.Background(), "a", keylatch.Token(strings.Repeat("t", 20)))
	var unreachable *keylatch.UnreachableError
	if !errors.As(err, &unreachable) || !unreachable.Sent || len(s.all()) != 1 {
		t.Error(err, s.all())
	}
}

func TestHoldWhoseWaitIsTooLongWaitsInSteps(t *testing.T) {
	s, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if strings.Contains(body, `"wait_ms":50000`) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"code":"invalid-body","field":"wait_ms","retry":"new-key"}`)
			return true
		}
		return streamOf(w, r)
	})
	lease, err := client.Hold(context.Background(), "a", keylatch.Wait(time.Minute))
	if err != nil || !s.got(`POST /v1/locks/a/hold {"owner"`) {
		t.Fatal(err, s.requests)
	}
	_ = lease.Close()
}

// streamOf is a hold, until its client closes it.
func streamOf(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodDelete {
		return false
	}
	_, _ = fmt.Fprintf(w, "event: acquired\ndata: {\"name\":\"a\",\"token\":%q,\"waited_ms\":0,\"valid_for_ms\":30000}\n\n",
		r.Header.Get("Lock-Token"))
	w.(http.Flusher).Flush()
	<-r.Context().Done()
	return true
}

func TestHoldLeavesAURLThatHangs(t *testing.T) {
	hung, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.Method == http.MethodPost {
			<-r.Context().Done()
		}
		return r.Method == http.MethodPost
	})
	lives, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		return r.Method == http.MethodPost && streamOf(w, r)
	})
	client, err := keylatch.New(keylatch.URL(hung.URL, lives.URL), keylatch.Timeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Hold(context.Background(), "a"); err == nil {
		t.Fatal("what hangs has granted a lock")
	}
	lease, err := client.Hold(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_ = lease.Close()
}
