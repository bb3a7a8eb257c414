// Package keylatch is the Go client of keylatch: locks with fencing tokens over HTTP, and things done once.
//
//	client, err := keylatch.New()
//	lease, err := client.Lock(ctx, "deploy", keylatch.Wait(30*time.Second))
//	if err != nil {
//		return err
//	}
//	defer lease.Close()
//	return deploy(lease.Context(), lease.FencingToken())
//
// A lease counts its validity from the sending of each request, is renewed at each third of its TTL, and counts as lost
// a quarter of the TTL (at most 10 s) before its end: then its context is cancelled. Every request carries a token of
// the client's own, so each is retried where a response is lost.
package keylatch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Version is that of this package.
const Version = "0.1.0"

// Client is a client of a keylatch. It may be used by several goroutines.
type Client struct {
	http        *http.Client
	urls        []string
	sockets     map[string]string // path by host
	apiKey      string
	owner       string
	traceparent func(context.Context) string
	log         func(string, ...any)
	timeout     time.Duration
	retries     int
	jitter      func() time.Duration
	silence     time.Duration
	clock       Clock
	// Files of TLS, which count for a client that is made here.
	authorities, certificate, key string
	hasFiles                      bool

	// chosen says, modulo the number of URLs, which gets the next request.
	chosen atomic.Int64
	mutex  sync.Mutex
	// asked has the URLs whose store is known.
	asked map[int]bool
	store struct{ id, url string }
}

// Option says how a client reaches the service, and as whom.
type Option func(*Client)

// URL is where the service is, such as http://127.0.0.1:7070, or unix:/run/keylatch.sock. Several are instances that share a
// store: a request that gets no connection goes to the next.
func URL(urls ...string) Option { return func(c *Client) { c.urls = urls } }

// APIKey is sent as a bearer.
func APIKey(key string) Option { return func(c *Client) { c.apiKey = key } }

// DefaultOwner is the owner of each lock that is asked for without an [Owner]; host/pid by default.
func DefaultOwner(owner string) Option { return func(c *Client) { c.owner = owner } }

// HTTPClient is used in place of one with the settings of TLS of the options and the environment. It should have no timeout of its own,
// because streams are open for long.
func HTTPClient(client *http.Client) Option { return func(c *Client) { c.http = client } }

// CA is a file in PEM with the authorities that the service's certificate is good by, in place of KEYLATCH_CA.
func CA(file string) Option { return func(c *Client) { c.authorities, c.hasFiles = file, true } }

// Certificate is what this client shows: files in PEM with the certificate and its private key, in place of
// KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY.
func Certificate(certificate, key string) Option {
	return func(c *Client) { c.certificate, c.key, c.hasFiles = certificate, key, true }
}

// Timeout is for how long one request may go without a response, beyond its wait, and for how long in all a request is
// retried that gets none; 5 s by default.
func Timeout(timeout time.Duration) Option { return func(c *Client) { c.timeout = timeout } }

// Retries is how often a failure is retried at most; as often as there is time by default.
func Retries(most int) Option { return func(c *Client) { c.retries = most } }

// Pause gives the pause before a retry, beyond what the service asks for; 100 to 400 ms at random by default.
func Pause(of func() time.Duration) Option { return func(c *Client) { c.jitter = of } }

// Silence is for how long nothing may come of a watch, not even a comment, until the client opens it again; 90 s by default. The
// service sends a comment every 15 s unless it is configured otherwise.
func Silence(silence time.Duration) Option { return func(c *Client) { c.silence = silence } }

// Traceparent gives the traceparent of a request (W3C Trace Context), or the empty text.
func Traceparent(of func(context.Context) string) Option {
	return func(c *Client) { c.traceparent = of }
}

// Log is told of each retry, of lost leases and of another URL, with names and values in turn: slog.Debug is such a function.
func Log(log func(message string, fields ...any)) Option { return func(c *Client) { c.log = log } }

// UseClock lets the client go by another clock, for tests.
func UseClock(clock Clock) Option { return func(c *Client) { c.clock = clock } }

// New makes a client. What the options leave open is read from the environment: KEYLATCH_URL (several with commas between),
// KEYLATCH_API_KEY, KEYLATCH_CA (a file of authorities), KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY.
func New(options ...Option) (*Client, error) {
	host, _ := os.Hostname()
	client := &Client{
		urls: strings.Split(os.Getenv("KEYLATCH_URL"), ","), apiKey: os.Getenv("KEYLATCH_API_KEY"),
		owner: fmt.Sprintf("%s/%d", host, os.Getpid()), log: func(string, ...any) {}, traceparent: func(context.Context) string { return "" },
		timeout: 5 * time.Second, retries: math.MaxInt, jitter: jitter, silence: 90 * time.Second, clock: machineClock{},
		authorities: os.Getenv("KEYLATCH_CA"), certificate: os.Getenv("KEYLATCH_CLIENT_CERT"),
		key: os.Getenv("KEYLATCH_CLIENT_KEY"), asked: map[int]bool{}, sockets: map[string]string{},
	}
	for _, option := range options {
		option(client)
	}
	if len(client.urls) == 0 || len(client.urls) == 1 && client.urls[0] == "" {
		client.urls = []string{"http://127.0.0.1:7070"}
	}
	if !fitsHeader(client.apiKey) {
		return nil, errors.New("keylatch: the API key has a character that no header may have")
	}
	if err := client.parseURLs(); err != nil {
		return nil, err
	}
	var used http.Client
	if client.http == nil {
		transport, err := client.transport()
		if err != nil {
			return nil, fmt.Errorf("keylatch: %w", err)
		}
		used.Transport = transport
	} else if used = *client.http; client.hasFiles || len(client.sockets) > 0 {
		return nil, errors.New("keylatch: a client of one's own has no unix: URL, CA or Certificate of ours")
	}
	if client.http = &used; used.CheckRedirect == nil {
		// A token must not follow to another host.
		used.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return client, nil
}

// parseURLs refuses what is no URL. A socket gets a host that stands for it.
func (c *Client) parseURLs() error {
	urls := make([]string, len(c.urls))
	for at, text := range c.urls {
		text = strings.TrimSpace(text)
		urls[at] = strings.TrimRight(text, "/")
		if path := strings.TrimPrefix(text, "unix:"); path != text {
			host := fmt.Sprintf("socket-%d", at)
			c.sockets[host], urls[at] = path, "http://"+host
			continue
		}
		parsed, err := url.Parse(text)
		if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			return fmt.Errorf("keylatch: %q is not an http:, https: or unix: URL", shown(text))
		}
	}
	c.urls = urls
	return nil
}

// shown is a URL for people, without its password.
func shown(url string) string { return url[strings.LastIndex(url, "@")+1:] }

// transport reads the files of TLS.
func (c *Client) transport() (*http.Transport, error) {
	transport := &http.Transport{
		ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 20, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
	}
	// A URL that does not answer leaves time for the others.
	dialer := &net.Dialer{Timeout: c.timeout / time.Duration(len(c.urls))}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if path, isSocket := c.sockets[strings.TrimSuffix(address, ":80")]; isSocket {
			network, address = "unix", path
		}
		return dialer.DialContext(ctx, network, address)
	}
	transport.Proxy = func(r *http.Request) (*url.URL, error) {
		if _, isSocket := c.sockets[r.URL.Host]; isSocket {
			return nil, nil
		}
		return http.ProxyFromEnvironment(r)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if files := c.authorities + c.certificate + c.key; strings.Contains(files, "-----") || strings.Contains(files, "\n") {
		return nil, errors.New("the settings of TLS are the names of files, and not what they have")
	}
	if c.authorities != "" {
		text, err := os.ReadFile(c.authorities)
		if err != nil {
			return nil, err
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New(c.authorities + " has no certificate")
		}
	}
	if c.certificate != "" {
		pair, err := tls.LoadX509KeyPair(c.certificate, c.key)
		if err != nil {
			return nil, fmt.Errorf("%s with %s: %w", c.certificate, c.key, err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	transport.TLSClientConfig = settings
	return transport, nil
}

// Call sends any request of the API, such as GET /v1/locks?prefix=ci, with a body for JSON or nil, and reads the response
// into a value or nil. It sends a GET again that gets no response.
func (c *Client) Call(ctx context.Context, method, path string, body, into any) error {
	send := c.send
	if method == http.MethodGet {
		send = c.ask
	}
	_, err := send(ctx, request{method: method, path: path, body: body, into: into})
	return callers(ctx, err)
}

// Holding is who holds a lock.
type Holding struct {
	Holders []Holder
	// Waiting is how many wait in the queue.
	Waiting int
}

// Show says who holds a lock; nil where it is free.
func (c *Client) Show(ctx context.Context, name string) (*Holding, error) {
	var shown struct {
		Holder
		Name    string   `json:"name"`
		Holders []Holder `json:"holders"`
		Waiting int      `json:"waiting"`
	}
	err := c.Call(ctx, http.MethodGet, "/v1/locks/"+plain(name), nil, &shown)
	var problem *Problem
	if errors.As(err, &problem) && problem.Code == "lock-not-held" {
		return nil, nil
	}
	if err == nil && shown.Name != name {
		err = &UnreachableError{Sent: true, Err: errOfAnother}
	}
	if err != nil {
		return nil, err
	}
	if len(shown.Holders) == 0 {
		shown.Holders = []Holder{shown.Holder}
	}
	return &Holding{Holders: shown.Holders, Waiting: shown.Waiting}, nil
}

// BreakOption says how to break a lock.
type BreakOption func(map[string]any)

// By is a label for people that says who breaks the lock.
func By(by string) BreakOption { return func(body map[string]any) { body["by"] = by } }

// Grace lets the leases end so soon, be that before the validity of their holders ends.
func Grace(grace time.Duration) BreakOption {
	return func(body map[string]any) { body["grace_ms"] = grace.Milliseconds() }
}

// Break ends the leases of all present holders, who read the reason. It says whether there was any.
func (c *Client) Break(ctx context.Context, name, reason string, options ...BreakOption) (bool, error) {
	held, err := c.Show(ctx, name)
	if held == nil || err != nil {
		return false, err
	}
	for _, holder := range held.Holders {
		body := map[string]any{"reason": reason, "fencing_token": holder.FencingToken}
		if holder.Slot != nil {
			body["slot"] = *holder.Slot
		}
		for _, option := range options {
			option(body)
		}
		breaking := request{method: "POST", path: "/v1/locks/" + plain(name) + "/break", body: body}
		if _, err := c.ask(ctx, breaking); err != nil {
			return true, callers(ctx, err)
		}
	}
	return true, nil
}
