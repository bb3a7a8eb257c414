// Package keylatch is the Go client of keylatch: locks with fencing tokens over HTTP, and things done once.
//
//	client, err := keylatch.New()
//	lease, err := client.Lock(ctx, "deploy", keylatch.Wait(30*time.Second))
//	if err != nil {
//		return err
//	}
//	defer lease.Release(ctx)
//	return deploy(lease.Context(), lease.FencingToken())
//
// A lease counts its validity from the sending of each request, is renewed at each third of its TTL, and counts as lost
// a quarter of the TTL (at most 10 s) before its end: then its context is cancelled. Every request carries a token of
// the client's own, so each is repeated where an answer is lost.
package keylatch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// Client is a client of a keylatch. It may be used by several goroutines.
type Client struct {
	http        *http.Client
	url         string
	apiKey      string
	traceparent func(context.Context) string
	silence     time.Duration
	// Files of TLS, which count for a client that is made here.
	authorities, certificate, key string
}

// Option says how a client reaches the service, and as whom.
type Option func(*Client)

// URL is where the service is, such as http://127.0.0.1:7070, or unix:/run/keylatch.sock.
func URL(url string) Option { return func(c *Client) { c.url = url } }

// APIKey is sent as a bearer.
func APIKey(key string) Option { return func(c *Client) { c.apiKey = key } }

// HTTPClient is used in place of one with the settings of TLS of the options and the environment. It should have no timeout of its own,
// because streams are open for long.
func HTTPClient(client *http.Client) Option { return func(c *Client) { c.http = client } }

// CA is a file in PEM with the authorities that the service's certificate is good by, in place of KEYLATCH_CA.
func CA(file string) Option { return func(c *Client) { c.authorities = file } }

// Certificate is what this client shows: files in PEM with the certificate and its private key, in place of
// KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY.
func Certificate(certificate, key string) Option {
	return func(c *Client) { c.certificate, c.key = certificate, key }
}

// Silence is for how long nothing may come of a watch, not even a comment, until the client opens it again; 90 s by default. The
// service sends a comment every 15 s unless it is configured otherwise.
func Silence(silence time.Duration) Option { return func(c *Client) { c.silence = silence } }

// Traceparent gives the traceparent of a request (W3C Trace Context), or the empty text.
func Traceparent(of func(context.Context) string) Option {
	return func(c *Client) { c.traceparent = of }
}

// New makes a client. What the options leave open is read from the environment: KEYLATCH_URL, KEYLATCH_API_KEY,
// KEYLATCH_CA (a file of authorities), KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY.
func New(options ...Option) (*Client, error) {
	client := &Client{
		url: os.Getenv("KEYLATCH_URL"), apiKey: os.Getenv("KEYLATCH_API_KEY"), silence: 90 * time.Second,
		authorities: os.Getenv("KEYLATCH_CA"), certificate: os.Getenv("KEYLATCH_CLIENT_CERT"),
		key: os.Getenv("KEYLATCH_CLIENT_KEY"),
	}
	for _, option := range options {
		option(client)
	}
	if client.url == "" {
		client.url = "http://127.0.0.1:7070"
	}
	if client.http == nil {
		transport, err := client.transport()
		if err != nil {
			return nil, err
		}
		client.http = &http.Client{Transport: transport}
	}
	if strings.HasPrefix(client.url, "unix:") {
		client.url = "http://localhost"
	}
	client.url = strings.TrimRight(client.url, "/")
	return client, nil
}

// transport reads the files of TLS.
func (c *Client) transport() (*http.Transport, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 20
	transport.DialContext = (&net.Dialer{Timeout: answerTimeout}).DialContext
	if strings.HasPrefix(c.url, "unix:") {
		path := strings.TrimPrefix(c.url, "unix:")
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: answerTimeout}).DialContext(ctx, "unix", path)
		}
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.authorities != "" {
		text, err := os.ReadFile(c.authorities)
		if err != nil {
			return nil, err
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("keylatch: " + c.authorities + " has no certificate")
		}
	}
	if c.certificate != "" {
		pair, err := tls.LoadX509KeyPair(c.certificate, c.key)
		if err != nil {
			return nil, err
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	transport.TLSClientConfig = settings
	return transport, nil
}

// Holding is who holds a lock.
type Holding struct {
	Holders []Holder
	// Waiting is how many wait in the queue.
	Waiting int
}

type holding struct {
	Holder
	Holders []Holder `json:"holders"`
	Waiting int      `json:"waiting"`
}

// Show says who holds a lock; nil where it is free.
func (c *Client) Show(ctx context.Context, name string) (*Holding, error) {
	var shown holding
	err := c.get(ctx, "/v1/locks/"+plain(name), &shown)
	var problem *Problem
	if errors.As(err, &problem) && problem.Code == "lock-not-held" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(shown.Holders) == 0 {
		shown.Holders = []Holder{shown.Holder}
	}
	return &Holding{Holders: shown.Holders, Waiting: shown.Waiting}, nil
}

// Break ends the leases of all present holders, who read the reason. It says whether there was any.
func (c *Client) Break(ctx context.Context, name, reason string) (bool, error) {
	held, err := c.Show(ctx, name)
	if held == nil || err != nil {
		return false, err
	}
	for _, holder := range held.Holders {
		body := map[string]any{"reason": reason, "fencing_token": holder.FencingToken}
		if holder.Slot != nil {
			body["slot"] = *holder.Slot
		}
		breaking := request{method: "POST", path: "/v1/locks/" + plain(name) + "/break", body: body}
		if _, err := c.ask(ctx, breaking, 0); err != nil {
			return true, err
		}
	}
	return true, nil
}

// millis writes a duration as the API does.
func millis(duration time.Duration) int64 { return duration.Milliseconds() }
