package keylatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

func TestBadSettingsAreRefusedAtOnce(t *testing.T) {
	folder := t.TempDir()
	empty := filepath.Join(folder, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(folder, "absent.pem")
	for _, bad := range []struct {
		option keylatch.Option
		named  string
	}{
		{keylatch.APIKey("kl_secret\n"), "API key"},
		{keylatch.URL("localhost:7070"), "localhost:7070"},
		{keylatch.URL("http://a", "http://"), "http://"},
		{keylatch.URL("http://[::1"), "http://[::1"},
		{keylatch.URL("ftp://ann:secret@host"), "host"},
		{keylatch.URL("http://ann:sec%secret@host"), "host"},
		{keylatch.URL("ann:secret@host"), "host"},
		{keylatch.CA("-----BEGIN CERTIFICATE-----secret"), "names of files"},
		{keylatch.Certificate("c.pem", "-----BEGIN PRIVATE KEY-----\nsecret"), "names of files"},
		{keylatch.CA(absent), absent},
		{keylatch.CA(empty), empty},
		{keylatch.Certificate(empty, empty), empty},
		{keylatch.Certificate(absent, empty), absent},
	} {
		_, err := keylatch.New(bad.option)
		if err == nil || !strings.Contains(err.Error(), bad.named) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad.named, err)
		}
	}
	if _, err := keylatch.New(keylatch.HTTPClient(http.DefaultClient), keylatch.URL("unix:/x")); err == nil {
		t.Error("a client of one's own takes a socket")
	}
}

// instance is one of several, with a store of this id.
func instance(t *testing.T, id string) (url string, end func()) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.URL.Path == "/v1/info" {
			_, _ = fmt.Fprintf(w, `{"store":{"id":%q}}`, id)
			return true
		}
		return false
	})
	return s.URL, func() {
		s.CloseClientConnections()
		s.Close()
	}
}

func TestRequestGoesToTheURLThatLives(t *testing.T) {
	ctx := context.Background()
	for _, id := range []string{"one", ""} {
		first, end := instance(t, id)
		second, _ := instance(t, id)
		t.Setenv("KEYLATCH_URL", first+", "+second+"/")
		client, err := keylatch.New()
		if err != nil {
			t.Fatal(err)
		}
		lease, err := client.Lock(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		end()
		if released, err := lease.Release(ctx); !released || err != nil {
			t.Error(released, err)
		}
	}
}

func TestSilentWatchGoesToTheNextURL(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	hung, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.URL.Path == "/v1/info" {
			return false
		}
		select {
		case <-done:
		case <-r.Context().Done():
		}
		return true
	})
	lives, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.URL.Path == "/v1/info" {
			return false
		}
		_, _ = io.WriteString(w, "event: snapshot\ndata: {}\n\n")
		return true
	})
	client, err := keylatch.New(keylatch.URL(hung.URL, lives.URL), keylatch.Silence(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = client.Watch(ctx, "a", func(event keylatch.Event) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestURLWithAnotherStoreIsRefusedByName(t *testing.T) {
	ctx := context.Background()
	first, end := instance(t, "one")
	second, _ := instance(t, "two")
	var mutex sync.Mutex
	said := ""
	log := func(_ string, fields ...any) {
		mutex.Lock()
		defer mutex.Unlock()
		said += fmt.Sprintln(fields...)
	}
	client, err := keylatch.New(keylatch.URL(first, second), keylatch.Timeout(time.Second), keylatch.Log(log))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Lock(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	end()
	_, err = client.Lock(ctx, "b")
	var unreachable *keylatch.UnreachableError
	if !errors.As(err, &unreachable) {
		t.Fatalf("a lock of another store: %v", err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	if !strings.Contains(said, second+" has another store than "+first) {
		t.Error(said)
	}
}

// TestProxyOfTheEnvironmentGetsTheRequest asks in a process of its own, because Go reads the environment once.
func TestProxyOfTheEnvironmentGetsTheRequest(t *testing.T) {
	const service = "http://keylatch.invalid:7070"
	if os.Getenv("KEYLATCH_URL") == service {
		client, err := keylatch.New()
		if err != nil {
			t.Fatal(err)
		}
		if held, err := client.Show(context.Background(), "a"); held == nil || held.Waiting != 3 {
			t.Fatal(held, err)
		}
		return
	}
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String()
		_, _ = io.WriteString(w, `{"name":"a","waiting":3}`)
	}))
	defer proxy.Close()
	child := exec.Command(os.Args[0], "-test.run=^TestProxyOfTheEnvironmentGetsTheRequest$")
	child.Env = append(os.Environ(), "KEYLATCH_URL="+service, "HTTP_PROXY="+proxy.URL, "NO_PROXY=", "no_proxy=")
	if said, err := child.CombinedOutput(); err != nil {
		t.Fatal(err, string(said))
	}
	if url := <-asked; url != service+"/v1/locks/a" {
		t.Error(url)
	}
}

func TestSocketHasNoProxyAndTheHostOfThisMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Skip(err)
	}
	host, agent := "", ""
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			host, agent = r.Host, r.UserAgent()
			_, _ = io.WriteString(w, `{"name":"a","holders":[{"owner":"ann"}]}`)
		})}}
	server.Start()
	defer server.Close()
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	client, err := keylatch.New(keylatch.URL("unix:" + path))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := client.Show(context.Background(), "a")
	if err != nil || shown.Holders[0].Owner != "ann" || host != "localhost" || agent != "keylatch-go/"+keylatch.Version {
		t.Error(shown, err, host, agent)
	}
}

func TestOwnerIsHostAndProcess(t *testing.T) {
	host, _ := os.Hostname()
	for want, options := range map[string][]keylatch.Option{
		fmt.Sprintf(`{"owner":"%s/%d",`, host, os.Getpid()): nil,
		`{"owner":"ann",`: {keylatch.DefaultOwner("ann")},
		`{"ttl_ms":`:      {keylatch.DefaultOwner("")},
	} {
		s, _ := serve(t, nil)
		client, err := keylatch.New(append(options, keylatch.URL(s.URL))...)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := client.Lock(context.Background(), "a")
		if err != nil || !s.got("POST /v1/locks/a "+want) {
			t.Error(want, err, s.requests)
			continue
		}
		_ = lease.Close()
	}
}

func TestLogIsToldOfRetries(t *testing.T) {
	isLost, logged := false, make(chan string, 10)
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if !isLost {
			isLost = true
			panic(http.ErrAbortHandler)
		}
		return false
	})
	log := func(message string, fields ...any) { logged <- fmt.Sprintln(append([]any{message}, fields...)...) }
	client, err := keylatch.New(keylatch.URL(s.URL), keylatch.Log(log))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if line := <-logged; !strings.Contains(line, s.URL) {
		t.Error(line)
	}
}

func TestFailureIsRetriedAsOftenAndAfterThePausesThatTheProgramSays(t *testing.T) {
	var tries []time.Time
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, _ string) bool {
		tries = append(tries, time.Now())
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	pauses := []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, 0}
	client, err := keylatch.New(keylatch.URL(s.URL), keylatch.Retries(2), keylatch.Pause(func() (pause time.Duration) {
		pause, pauses = pauses[0], pauses[1:]
		return pause
	}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Show(context.Background(), "a"); err == nil || len(tries) != 3 {
		t.Fatalf("%d tries: %v", len(tries), err)
	}
	for at, pause := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond} {
		if paused := tries[at+1].Sub(tries[at]); paused < pause {
			t.Errorf("%v, not %v", paused, pause)
		}
	}
}

func TestURLWhoseStoreIsNotKnownIsNotUsed(t *testing.T) {
	for name, say := range map[string]func(w http.ResponseWriter){
		"cut":      func(w http.ResponseWriter) { w.Header().Set("Content-Length", "99"); _, _ = io.WriteString(w, `{"st`) },
		"not JSON": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<p>Welcome") },
		"empty":    func(w http.ResponseWriter) {},
		"429":      func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		"503":      func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		says := say
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
			if r.URL.Path != "/v1/info" {
				return false
			} else if says == nil {
				_, _ = io.WriteString(w, `{"store":{"id":"one"}}`)
			} else {
				says(w)
			}
			return true
		})
		client, err := keylatch.New(keylatch.URL(s.URL, s.URL), keylatch.Timeout(time.Millisecond*300))
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Lock(context.Background(), "a")
		var unreachable *keylatch.UnreachableError
		var problem *keylatch.Problem
		if !errors.As(err, &unreachable) || unreachable.Sent || errors.As(err, &problem) || strings.Contains(fmt.Sprint(s.requests), "POST") {
			t.Error(name, err, s.requests)
		}
		says = nil
		lease, err := client.Lock(context.Background(), "a")
		if err != nil {
			t.Fatal(name, err, s.requests)
		}
		_ = lease.Close()
	}
}

func TestURLThatHasNoInfoIsUsed(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.URL.Path == "/v1/info" {
			w.WriteHeader(http.StatusForbidden)
		}
		return r.URL.Path == "/v1/info"
	})
	client, err := keylatch.New(keylatch.URL(s.URL, s.URL))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_ = lease.Close()
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func TestReplacedDefaultTransportIsNoNeedOfTheClient(t *testing.T) {
	s, _ := serve(t, nil)
	replaced := http.DefaultTransport
	defer func() { http.DefaultTransport = replaced }()
	http.DefaultTransport = transport(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	client, err := keylatch.New(keylatch.URL(s.URL))
	if err != nil {
		t.Fatal(err)
	}
	if lease, err := client.Lock(context.Background(), "a"); err != nil {
		t.Error(err)
	} else {
		_ = lease.Close()
	}
	client, err = keylatch.New(keylatch.URL(s.URL), keylatch.HTTPClient(&http.Client{}))
	if err != nil {
		t.Fatal(err)
	}
	err = client.Call(context.Background(), http.MethodPost, "/v1/locks/a", nil, nil)
	var unreachable *keylatch.UnreachableError
	if !errors.As(err, &unreachable) || !unreachable.Sent {
		t.Errorf("it may have been sent: %T %v", err, err)
	}
}

func TestPasswordOfAURLIsNotSaid(t *testing.T) {
	with := func(url string) string { return strings.Replace(url, "http://", "http://ann:secret@", 1) }
	one, end := instance(t, "one")
	two, _ := instance(t, "two")
	var mutex sync.Mutex
	said := ""
	log := func(message string, fields ...any) {
		mutex.Lock()
		defer mutex.Unlock()
		said += fmt.Sprintln(append([]any{message}, fields...)...)
	}
	client, err := keylatch.New(keylatch.URL(with(one), with(two)), keylatch.Log(log), keylatch.Timeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/info", "/%zz", "/v1/info"} {
		err := client.Call(context.Background(), http.MethodGet, path, nil, nil)
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Error(err)
		}
		if path == "/%zz" {
			end()
		}
	}
	mutex.Lock()
	defer mutex.Unlock()
	if strings.Contains(said, "secret") || !strings.Contains(said, strings.TrimPrefix(one, "http://")) {
		t.Error(said)
	}
}

func TestClientOfTheCallersFollowsNoRedirect(t *testing.T) {
	other, _ := serve(t, nil)
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		if r.Method == http.MethodDelete {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		}
		return r.Method == http.MethodDelete
	})
	own := &http.Client{}
	client, err := keylatch.New(keylatch.URL(s.URL), keylatch.HTTPClient(own))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.Lock(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = lease.Release(context.Background())
	var problem *keylatch.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusTemporaryRedirect || len(other.all()) > 0 || own.CheckRedirect != nil {
		t.Error(err, other.all())
	}
}

func TestFilesBesideAClientOfTheCallersAreRefused(t *testing.T) {
	own := keylatch.HTTPClient(&http.Client{})
	for _, files := range []keylatch.Option{keylatch.CA("ca.pem"), keylatch.Certificate("c.pem", "k.pem")} {
		if _, err := keylatch.New(own, files); err == nil {
			t.Error("the files are taken, and not used")
		}
	}
	t.Setenv("KEYLATCH_CA", "ca.pem")
	if _, err := keylatch.New(own); err != nil {
		t.Error(err)
	}
}
