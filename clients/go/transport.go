package keylatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	answerTimeout = 5 * time.Second
	pause         = 250 * time.Millisecond
	maxAnswer     = 16 << 20
)

type request struct {
	method, path string
	body         any
	token        string
	timeout      time.Duration
}

// send gives the answer, if it is a success, and else a *Problem or an *UnreachableError.
func (c *Client) send(ctx context.Context, r request) (document, error) {
	if r.timeout == 0 {
		r.timeout = answerTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	response, err := c.open(ctx, r)
	if err != nil {
		return document{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return document{}, &UnreachableError{Sent: true, Err: err}
	}
	if response.StatusCode >= 300 {
		return document{}, problemOf(response.StatusCode, body, retryAfter(response))
	}
	var answer document
	if len(body) > 0 && json.Unmarshal(body, &answer) != nil {
		return document{}, &UnreachableError{Sent: true, Err: errNotKeylatch}
	}
	return answer, nil
}

// open gives the answer when it begins. The caller closes its body.
func (c *Client) open(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	outgoing, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, body)
	if err != nil {
		return nil, err
	}
	// Each request is safe to repeat, and this package does so itself.
	outgoing.GetBody = nil
	if body != nil {
		outgoing.Header.Set("Content-Type", "application/json")
	}
	if c.apiKey != "" {
		outgoing.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	if r.token != "" {
		outgoing.Header.Set("Lock-Token", r.token)
	}
	if c.traceparent != nil {
		if trace := c.traceparent(ctx); trace != "" {
			outgoing.Header.Set("Traceparent", trace)
		}
	}
	response, err := c.http.Do(outgoing)
	if err != nil {
		return nil, &UnreachableError{Sent: !isUnsent(err), Err: err}
	}
	return response, nil
}

// valuesOf has the values of a context, such as those of a trace, and never ends with it: for what outlives the call
// (context.WithoutCancel of Go 1.21).
type valuesOf struct{ context.Context }

func (valuesOf) Deadline() (time.Time, bool) { return time.Time{}, false }
func (valuesOf) Done() <-chan struct{}       { return nil }
func (valuesOf) Err() error                  { return nil }

var errNotKeylatch = errors.New("the answer is not one of keylatch")

// isUnsent says whether no connection was made.
func isUnsent(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}

func retryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// ask repeats a request that is safe to repeat until it is answered or the time for that is over. With a wait it is
// also repeated while the same request is being carried out elsewhere.
func (c *Client) ask(ctx context.Context, r request, wait time.Duration) (document, error) {
	end := now() + answerTimeout
	if wait > answerTimeout {
		end = now() + wait
	}
	for {
		answer, err := c.send(ctx, r)
		if err == nil {
			return answer, nil
		}
		next := pause
		var problem *Problem
		if errors.As(err, &problem) {
			isUnderWay := problem.Code == "request-in-progress"
			if !problem.isPassing() || isUnderWay && wait <= 0 {
				return answer, err
			}
			next = longer(problem.RetryAfter, pause)
		}
		if ctx.Err() != nil || now()+next >= end {
			return answer, err
		}
		if sleepUntil(ctx, now()+next) != nil {
			return answer, err
		}
	}
}

// plain writes a name as a step of a path. A dot may not stand as it is, because ".." would be one too.
func plain(text string) string {
	return strings.NewReplacer(".", "%2E", "+", "%20").Replace(url.QueryEscape(text))
}

// newToken makes a secret that proves who holds a lock.
func newToken() (string, error) {
	random := make([]byte, 24)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(random), nil
}

func longer(one, other time.Duration) time.Duration {
	if one > other {
		return one
	}
	return other
}

func shorter(one, other time.Duration) time.Duration {
	if one < other {
		return one
	}
	return other
}
