package keylatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

// service grants whatever it is asked for, and remembers what that was.
type service struct {
	*httptest.Server
	mutex    sync.Mutex
	requests []string
	// answers says what becomes of a request in place of a grant.
	answers func(w http.ResponseWriter, r *http.Request, body string) bool
}

func serve(t *testing.T, answers func(w http.ResponseWriter, r *http.Request, body string) bool) (*service, *keylatch.Client) {
	t.Helper()
	s := &service{answers: answers}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	client, err := keylatch.New(keylatch.URL(s.URL))
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mutex.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.RequestURI()+" "+string(body))
	s.mutex.Unlock()
	if s.answers != nil && s.answers(w, r, string(body)) {
		return
	}
	if r.Method == http.MethodDelete {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	_ = json.NewEncoder(w).Encode(map[string]any{
		"name": name, "token": r.Header.Get("Lock-Token"), "fencing_token": 1, "waited_ms": 0, "valid_for_ms": 30000,
		"state": "in-flight",
	})
}

// all has the requests so far.
func (s *service) all() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]string(nil), s.requests...)
}

// got waits until a request that begins so has come.
func (s *service) got(start string) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.mutex.Lock()
		for _, request := range s.requests {
			if strings.HasPrefix(request, start) {
				s.mutex.Unlock()
				return true
			}
		}
		s.mutex.Unlock()
	}
	return false
}

func TestRunThatPanicsFails(t *testing.T) {
	s, client := serve(t, nil)
	func() {
		defer func() {
			if what := recover(); what != "a bug\nhere" {
				t.Errorf("the panic is %v", what)
			}
		}()
		_, _ = client.Once(context.Background(), "k", func(context.Context) (keylatch.Answer, error) { panic("a bug\nhere") })
	}()
	if !s.got(`POST /v1/idempotency/k/fail {"reason":"panic: a bug here"}`) {
		t.Error("the run is not ended", s.requests)
	}
}

func TestRunWhoseGoroutineEndsFails(t *testing.T) {
	s, client := serve(t, nil)
	go func() {
		_, _ = client.Once(context.Background(), "k", func(context.Context) (keylatch.Answer, error) {
			runtime.Goexit()
			return keylatch.Answer{}, nil
		})
	}()
	if !s.got(`POST /v1/idempotency/k/fail {"reason":"the function did not return"}`) {
		t.Error("the run is not ended", s.requests)
	}
}

func TestAnswerThatWasNotKeptSaysSo(t *testing.T) {
	_, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		_, _ = io.WriteString(w, `{"state":"done","status":201,"answer_kept":false}`)
		return true
	})
	run, err := client.Begin(context.Background(), "k")
	if err != nil || run.Answer.Status != 201 || !run.Answer.NotKept {
		t.Error(err, run)
	}
}

func TestRunThatFailsSaysWhy(t *testing.T) {
	s, client := serve(t, nil)
	declined := errors.New("declined " + strings.Repeat("ä", 200))
	_, err := client.Once(context.Background(), "k", func(context.Context) (keylatch.Answer, error) {
		return keylatch.Answer{}, declined
	})
	if err != declined || !s.got(`POST /v1/idempotency/k/fail {"reason":"declined äää`) {
		t.Error("the run is not ended", err, s.requests)
	}
}

func TestRunIsCompletedWhereItsCallerIsGone(t *testing.T) {
	s, client := serve(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	_, err := client.Once(ctx, "k", func(context.Context) (keylatch.Answer, error) {
		cancel()
		return keylatch.Answer{Status: 200}, nil
	})
	if err != nil || !s.got("PUT /v1/idempotency/k") {
		t.Error("the run is not completed", err, s.requests)
	}
}

func TestReleaseWhereItsCallerIsGone(t *testing.T) {
	s, client := serve(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	lease, err := client.Lock(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if released, err := lease.Release(ctx); !released || err != nil || !s.got("DELETE /v1/locks/a") {
		t.Error("the lease is not released", released, err)
	}
}

func TestLimitAndTTLAreSentAsGiven(t *testing.T) {
	s, client := serve(t, nil)
	for _, limit := range []int{0, -1} {
		lease, err := client.Lock(context.Background(), "a", keylatch.Limit(limit), keylatch.Owner("ann"))
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release(context.Background())
		if !s.got(fmt.Sprintf(`POST /v1/locks/a {"limit":%d,`, limit)) {
			t.Error("the limit is not sent", s.requests)
		}
	}
}

func TestGrantOfAnotherLockIsNone(t *testing.T) {
	s, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		_, _ = io.WriteString(w, `{"name":"b","token":"`+r.Header.Get("Lock-Token")+`","fencing_token":1,"waited_ms":0,"valid_for_ms":30000}`)
		return true
	})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if lease, err := client.Lock(ctx, "a"); err == nil {
		t.Error("a grant of b is one of a", lease.FencingTokens(), s.requests)
	}
}

func TestLockWithoutAWaitOutlastsALostResponseAndA503(t *testing.T) {
	tries := 0
	_, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		tries++
		switch tries {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	lease, err := client.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(context.Background())
}

func TestCancelledWaitIsTheErrorOfTheContext(t *testing.T) {
	waiting := make(chan struct{}, 10)
	_, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.Method == http.MethodDelete {
			return false
		}
		waiting <- struct{}{}
		<-r.Context().Done()
		return true
	})
	for _, do := range []func(ctx context.Context) error{
		func(ctx context.Context) error {
			_, err := client.Lock(ctx, "a", keylatch.Wait(time.Minute))
			return err
		},
		func(ctx context.Context) error {
			_, err := client.Hold(ctx, "a", keylatch.Wait(time.Minute))
			return err
		},
		func(ctx context.Context) error {
			_, err := client.Begin(ctx, "k", keylatch.AwaitRun(time.Minute))
			return err
		},
		func(ctx context.Context) error { _, err := client.Show(ctx, "a"); return err },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-waiting
			cancel()
		}()
		err := do(ctx)
		var unreachable *keylatch.UnreachableError
		if !errors.Is(err, context.Canceled) || errors.As(err, &unreachable) {
			t.Errorf("%T %v", err, err)
		}
	}
}

func TestWaitThatIsCancelledInAPauseLeavesTheQueue(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, _ string) bool {
		if r.Method == http.MethodPost {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"outcome":"not-executed","retry":"same-key"}`)
		}
		return r.Method == http.MethodPost
	})
	ctx, cancel := context.WithCancel(context.Background())
	client, err := keylatch.New(keylatch.URL(s.URL), keylatch.Log(func(string, ...any) { cancel() }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = client.Lock(ctx, "a", keylatch.Wait(time.Hour)); !errors.Is(err, context.Canceled) || !s.got("DELETE /v1/locks/a") {
		t.Error(err, s.all())
	}
}

func TestWhatNeverLeftIsNotSent(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	newline := keylatch.Traceparent(func(context.Context) string { return "a\nb" })
	for name, options := range map[string][]keylatch.Option{
		"an authority that is not known": {keylatch.URL(secure.URL)},
		"a header with a newline":        {keylatch.URL("http://127.0.0.1:1"), newline},
		"a host that is none":            {keylatch.URL("http://no-host.invalid")},
	} {
		client, err := keylatch.New(append(options, keylatch.Timeout(time.Second))...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Show(context.Background(), "a")
		var unreachable *keylatch.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.Sent {
			t.Errorf("%s: %T %v", name, err, err)
		}
	}
}

func TestLossSaysOfWhatAndByWhom(t *testing.T) {
	_, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.Method != http.MethodPut {
			return false
		}
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"code":"lock-broken","detail":"It was broken.","broken":{"reason":"it hangs","by":"ann"}}`)
		return true
	})
	lease, err := client.Lock(context.Background(), "a", keylatch.TTL(600*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	<-lease.Context().Done()
	if text := lease.Err().Error(); text != "keylatch: the lease of a was broken by ann: it hangs" {
		t.Error(text)
	}
}

func TestLossIsFoundByErrorsIs(t *testing.T) {
	if err := fmt.Errorf("deploying: %w", &keylatch.LostError{}); !errors.Is(err, keylatch.ErrLost) || errors.Is(err, keylatch.ErrHeld) {
		t.Error(err)
	}
}

func TestNamesOfASetAreCopied(t *testing.T) {
	s, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		_, _ = io.WriteString(w, `{"locks":[{"name":"a"}],"token":"`+r.Header.Get("Lock-Token")+`","waited_ms":0,"valid_for_ms":30000}`)
		return true
	})
	names := []string{"a"}
	lease, err := client.LockAll(context.Background(), names)
	if err != nil {
		t.Fatal(err)
	}
	names[0] = "b"
	_ = lease.Close()
	if !s.got("DELETE /v1/locks?name=a ") {
		t.Error(s.requests)
	}
}

func TestFailedLockLeavesWhatItsTokenHeldBefore(t *testing.T) {
	for name, does := range map[string]struct {
		options  []keylatch.LockOption
		releases string
	}{
		"the token of the client":           {nil, "DELETE /v1/locks/a "},
		"a token of the caller's":           {[]keylatch.LockOption{keylatch.Token(strings.Repeat("t", 20))}, ""},
		"an entry under the caller's token": {[]keylatch.LockOption{keylatch.Token(strings.Repeat("t", 20)), keylatch.Entry("e")}, "DELETE /v1/locks/a?entry=e "},
	} {
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
			if r.Method == http.MethodPost {
				panic(http.ErrAbortHandler)
			}
			return false
		})
		clock := &sideClock{}
		client, err := keylatch.New(keylatch.URL(s.URL), keylatch.UseClock(clock), keylatch.Timeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Lock(context.Background(), "a", does.options...); err == nil {
			t.Fatal(name)
		}
		clock.side.Wait()
		sent := s.all()
		if last := sent[len(sent)-1]; does.releases == "" != strings.HasPrefix(last, "POST") || !strings.HasPrefix(last, does.releases) {
			t.Error(name, last)
		}
	}
}

// sideClock can wait for what runs beside the caller.
type sideClock struct {
	handClock
	side sync.WaitGroup
}

func (c *sideClock) Go(run func()) {
	c.side.Add(1)
	go func() {
		defer c.side.Done()
		run()
	}()
}

func TestScopeWithoutAPrincipalNamesNone(t *testing.T) {
	s, client := serve(t, nil)
	ctx, scope := context.Background(), keylatch.Scope("POST", "/orders")
	for query, options := range map[string][]keylatch.OnceOption{
		"?method=POST&path=%2Forders":               {scope},
		"?method=POST&path=%2Forders&principal=ann": {scope, keylatch.Principal("ann")},
	} {
		run, err := client.Begin(ctx, "k", options...)
		if err != nil || !s.got("POST /v1/idempotency/k"+query+" ") {
			t.Fatal(err, s.requests)
		}
		run.Leave()
	}
}

func TestUnreachableIsSentWhereAnEarlierTryWas(t *testing.T) {
	var s *service
	s, _ = serve(t, func(http.ResponseWriter, *http.Request, string) bool {
		// Its response is lost, and later tries get no connection.
		_ = s.Listener.Close()
		panic(http.ErrAbortHandler)
	})
	client, err := keylatch.New(keylatch.URL(s.URL), keylatch.Timeout(500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	var unreachable *keylatch.UnreachableError
	if _, err := client.Lock(context.Background(), "a"); !errors.As(err, &unreachable) || !unreachable.Sent {
		t.Error(err)
	}
}
