package keylatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxAnswer = 16 << 20
	// requestWait is for how long one request waits at the service, which may take less.
	requestWait = 50 * time.Second
)

type request struct {
	method, path string
	query        url.Values
	body         any
	token        string
	// prefers is for how long the service may wait with its response.
	prefers time.Duration
	timeout time.Duration
	into    any
}

// mayBeDone says whether the service may have done what a request and its retries ask for.
func mayBeDone(err error, before bool) bool {
	var problem *Problem
	var unreachable *UnreachableError
	switch {
	case errors.As(err, &problem):
		isUnknown := problem.isPassing() && problem.Outcome != "not-executed"
		return !problem.isOthers() && (before || isUnknown)
	case errors.As(err, &unreachable):
		return before || unreachable.Sent
	}
	return true
}

// send gives the response, if it is a success, and else a *Problem or an *UnreachableError.
func (c *Client) send(ctx context.Context, r request) (answer document, err error) {
	if r.timeout == 0 {
		r.timeout = c.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	response, err := c.open(ctx, r)
	if err != nil {
		return document{}, err
	}
	if r.into == nil {
		r.into = &answer
	}
	err = read(response, r.into)
	return answer, err
}

// read reads a response to its end. Its error is a *Problem or an *UnreachableError.
func read(response *http.Response, into any) error {
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return &UnreachableError{Sent: true, Err: err}
	case response.StatusCode >= 300:
		return problemOf(response.StatusCode, body, retryAfter(response))
	case len(body) > 0 && json.Unmarshal(body, into) != nil:
		return &UnreachableError{Sent: true, Err: errOfAnother}
	}
	return nil
}

// open gives the response when it begins. The caller closes its body. A request that got no connection goes to the next
// URL at once, and one that got no response leaves it to its retry.
func (c *Client) open(ctx context.Context, r request) (response *http.Response, err error) {
	for range c.urls {
		chosen := c.chosen.Load()
		at := int(chosen) % len(c.urls)
		if err = c.agree(ctx, at); err == nil {
			response, err = c.openAt(ctx, at, r)
		}
		var unreachable *UnreachableError
		if !errors.As(err, &unreachable) || ctx.Err() == context.Canceled {
			return response, err
		}
		c.chosen.CompareAndSwap(chosen, chosen+1)
		c.log("keylatch gets no response", "url", shown(c.urls[at]), "error", err)
		if unreachable.Sent || ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// agree asks each of several URLs once which store it has: in two stores a lock would have two holders.
func (c *Client) agree(ctx context.Context, at int) error {
	c.mutex.Lock()
	isKnown := len(c.urls) == 1 || c.asked[at]
	c.mutex.Unlock()
	if isKnown {
		return nil
	}
	var info *struct{ Store struct{ ID string } }
	response, err := c.openAt(ctx, at, request{method: "GET", path: "/v1/info"})
	if err == nil {
		err = read(response, &info)
	}
	var problem *Problem
	var unreachable *UnreachableError
	switch isProblem := errors.As(err, &problem); {
	case errors.As(err, &unreachable):
		// The request itself is not.
		unreachable.Sent = false
		return unreachable
	case isProblem && problem.isPassing(), !isProblem && info == nil:
		return &UnreachableError{Err: fmt.Errorf("%s does not say which store it has: %v", shown(c.urls[at]), err)}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	// It may have none, or not say it to this client.
	if info != nil && info.Store.ID != "" {
		if c.store.id == "" {
			c.store.id, c.store.url = info.Store.ID, shown(c.urls[at])
		}
		if c.store.id != info.Store.ID {
			return &UnreachableError{Err: fmt.Errorf("%s has another store than %s", shown(c.urls[at]), c.store.url)}
		}
	}
	c.asked[at] = true
	return nil
}

func (c *Client) openAt(ctx context.Context, at int, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	var isConnected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { isConnected.Store(true) }}
	outgoing, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), r.method, c.urls[at]+r.path, body)
	if err != nil {
		return nil, &UnreachableError{Err: fmt.Errorf("%q and %q make no request", r.method, r.path)}
	}
	// Each request is safe to repeat, and this package does so itself.
	outgoing.GetBody = nil
	if len(r.query) > 0 {
		outgoing.URL.RawQuery = r.query.Encode()
	}
	if _, isSocket := c.sockets[outgoing.URL.Host]; isSocket {
		outgoing.Host = "localhost"
	}
	headers := map[string]string{"User-Agent": "keylatch-go/" + Version, "Lock-Token": r.token, "Traceparent": c.traceparent(ctx)}
	if body != nil {
		headers["Content-Type"] = "application/json"
	}
	if c.apiKey != "" {
		headers["Authorization"] = "Bearer " + c.apiKey
	}
	if r.prefers > 0 {
		headers["Prefer"] = fmt.Sprintf("wait=%d", (r.prefers+time.Second-1)/time.Second)
	}
	for name, value := range headers {
		if value != "" {
			outgoing.Header.Set(name, value)
		}
	}
	response, err := c.http.Do(outgoing)
	if err != nil {
		// Without its *url.Error, which has the URL.
		why := fmt.Errorf("%s: %w", shown(c.urls[at]), errors.Unwrap(err))
		return nil, &UnreachableError{Sent: isConnected.Load() || !c.isUnsent(err), Err: why}
	}
	return response, nil
}

// isUnsent says whether an error without a connection means that nothing was sent. A transport of one's own need not tell
// of its connections.
func (c *Client) isUnsent(err error) bool {
	var operation *net.OpError
	_, isPlain := c.http.Transport.(*http.Transport)
	if c.http.Transport == nil {
		_, isPlain = http.DefaultTransport.(*http.Transport)
	}
	return isPlain || errors.As(err, &operation) && operation.Op == "dial"
}

// valuesOf has the values of a context, such as those of a trace, and never ends with it: for what outlives the call
// (context.WithoutCancel of Go 1.21).
type valuesOf struct{ context.Context }

func (valuesOf) Deadline() (time.Time, bool) { return time.Time{}, false }
func (valuesOf) Done() <-chan struct{}       { return nil }
func (valuesOf) Err() error                  { return nil }

// ending is the context of what ends a lease or a run: it has the values of the caller's, and a deadline of its own.
func (c *Client) ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(valuesOf{ctx}, c.timeout)
}

// callers gives the error of the caller's context where that has ended the request.
func callers(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("keylatch: %w", ctx.Err())
	}
	return err
}

var errOfAnother = errors.New("the response is not one of keylatch for this request")

func retryAfter(response *http.Response) time.Duration {
	seconds, _ := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16)
	return time.Duration(seconds) * time.Second
}

// ask retries a request that is safe to repeat.
func (c *Client) ask(ctx context.Context, r request) (answer document, err error) {
	err = c.retry(ctx, r.path, 0, nil, func(_, timeout time.Duration, _ bool) (err error) {
		r.timeout = timeout
		answer, err = c.send(ctx, r)
		return err
	})
	return answer, err
}

// retry tries until there is a response, for the time of the wait, but for 5 s at least. What others have is tried until the
// wait is over. Each try is told whether an earlier one may have been carried out. undo takes back what may have been, where
// the caller does not learn of it.
func (c *Client) retry(
	ctx context.Context, what string, wait time.Duration, undo func(), try func(wait, timeout time.Duration, mayBeDone bool) error,
) (err error) {
	isDone, isLater := false, false
	defer func() {
		var unreachable *UnreachableError
		if errors.As(err, &unreachable) {
			unreachable.Sent = isDone
		}
		// Who is cancelled after the first try may stand in a queue.
		if err != nil && (isDone || isLater && ctx.Err() != nil) && undo != nil {
			c.clock.Go(undo)
		}
	}()
	begun, longest, left := c.clock.Now(), requestWait, c.retries
	waits, retries := begun+wait, begun+longer(wait, c.timeout)
	for {
		sent := c.clock.Now()
		wait := longer(shorter(waits-sent, longest), 0)
		timeout := wait + c.timeout
		if wait == 0 {
			timeout = longer(shorter(timeout, retries-sent), time.Second)
		}
		err := try(wait, timeout, isDone)
		isDone = mayBeDone(err, isDone)
		if err == nil || ctx.Err() != nil {
			return err
		}
		next, end := c.pauseAfter(err), retries
		var problem *Problem
		if errors.As(err, &problem) {
			switch {
			case problem.document.Field == "wait_ms" && wait > 0:
				if longest /= 4; longest < time.Second {
					longest = 0
				}
				continue
			case problem.isOthers():
				// Without a time that it waited, a wait for a lock was ended.
				if problem.Code == "lock-held" && wait > 0 && problem.document.WaitedMs == nil {
					return err
				}
				if wait > 0 && sent+wait <= c.clock.Now() {
					next = 0
				}
				end = waits
			case !problem.isPassing() || c.clock.Now()+problem.RetryAfter > end:
				return err
			}
		}
		if problem == nil || !problem.isOthers() {
			left--
		}
		if c.clock.Now() >= end || left < 0 {
			return err
		}
		c.log("keylatch retries", "path", what, "error", err)
		isLater = true
		if c.clock.SleepUntil(ctx, shorter(end, c.clock.Now()+next)) != nil {
			return err
		}
	}
}

// pauseAfter is how long to pause before a retry, with what the service asks for.
func (c *Client) pauseAfter(err error) time.Duration {
	var problem *Problem
	if errors.As(err, &problem) {
		return c.jitter() + problem.RetryAfter
	}
	return c.jitter()
}

// jitter is 100 to 400 ms at random, so that not all clients come at once.
func jitter() time.Duration {
	var random [1]byte
	_, _ = rand.Read(random[:])
	return 100*time.Millisecond + time.Duration(random[0])*300*time.Millisecond/255
}

var unescaped = strings.NewReplacer(".", "%2E", "+", "%20")

// plain writes a name as a step of a path. A dot may not stand as it is, because ".." would be one too.
func plain(text string) string {
	return unescaped.Replace(url.QueryEscape(text))
}

// tokenOr is the token of the caller, or else a new secret that proves who holds a lock.
func tokenOr(own string) (string, error) {
	if !fitsHeader(own) {
		return "", errors.New("keylatch: the token has a character that no header may have")
	}
	if own != "" {
		return own, nil
	}
	random := make([]byte, 24)
	_, err := rand.Read(random)
	return base64.RawURLEncoding.EncodeToString(random), err
}

// fitsHeader says whether a text has visible ASCII characters alone.
func fitsHeader(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}
