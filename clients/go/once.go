package keylatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ErrNothingDone is what the function of [Client.Once] returns, as it is or wrapped, where it has done nothing: the key is
// free again.
var ErrNothingDone = errors.New("keylatch: nothing was done")

// OnceOption says how to do a thing once.
type OnceOption func(*begin)

// Fingerprint tells two things apart that have the same key by mistake ("idempotency-key-reused").
func Fingerprint(fingerprint string) OnceOption {
	return func(b *begin) { b.body["fingerprint"] = fingerprint }
}

// Request describes the HTTP request that is to be done, in place of a Fingerprint: a guard of [Scope] agrees with it.
func Request(request Described) OnceOption {
	return func(b *begin) { b.body["request"] = request }
}

// Described is an HTTP request as a guard sees it.
type Described struct {
	Query       string      `json:"query,omitempty"`
	ContentType string      `json:"content_type,omitempty"`
	Headers     http.Header `json:"headers,omitempty"`
	Body        []byte      `json:"body_base64,omitempty"`
}

// Scope is in which route the key is one: that of a guard.
func Scope(method, path string) OnceOption {
	return func(b *begin) {
		b.scope.Set("method", method)
		b.scope.Set("path", path)
	}
}

// Principal is whose key it is; that of the API key by default.
func Principal(name string) OnceOption { return func(b *begin) { b.scope.Set("principal", name) } }

// Source is where a guard has the key from, such as "json:/order_no"; the Idempotency-Key by default.
func Source(source string) OnceOption { return func(b *begin) { b.scope.Set("source", source) } }

// RunLease is how long a run may go unrenewed before its outcome is unknown; 30 s by default.
func RunLease(lease time.Duration) OnceOption { return func(b *begin) { b.lease = lease } }

// Retention is how long the answer is kept; a day by default.
func Retention(retention time.Duration) OnceOption {
	return func(b *begin) { b.body["retention_ms"] = retention.Milliseconds() }
}

// OnCrash is what a run leaves that is gone in the middle: "unknown", for a person to settle, or "rerun", which frees the
// key, also where the function of [Client.Once] fails.
func OnCrash(word string) OnceOption { return func(b *begin) { b.body["on_crash"] = word } }

// AwaitRun is how long to wait, in whole seconds, for the same thing under way elsewhere; not at all by default.
func AwaitRun(wait time.Duration) OnceOption { return func(b *begin) { b.wait = wait } }

// RunToken is the secret that proves the run; a new one by default. It is made as the one of [Token].
func RunToken(token string) OnceOption { return func(b *begin) { b.token = token } }

type begin struct {
	lease, wait time.Duration
	token       string
	scope       url.Values
	body        map[string]any
}

// Answer is what a thing came to.
type Answer struct {
	// Status is 200 where it is 0.
	Status  int
	Headers http.Header
	// Body has any bytes.
	Body []byte
	// NotKept says of a repeat's answer that it was too large to be kept whole: it has its status alone.
	NotKept bool
}

// JSON is an answer with a value as JSON.
func JSON(status int, value any) (Answer, error) {
	body, err := json.Marshal(value)
	return Answer{Status: status, Headers: http.Header{"Content-Type": {"application/json"}}, Body: body}, err
}

type answerMember struct {
	Status  int         `json:"status"`
	Headers http.Header `json:"headers,omitempty"`
	Body    *string     `json:"body,omitempty"`
	Base64  []byte      `json:"body_base64,omitempty"`
}

// member writes an answer as the API has it.
func (a Answer) member() answerMember {
	if a.Status == 0 {
		a.Status = http.StatusOK
	}
	if text := string(a.Body); utf8.ValidString(text) {
		return answerMember{Status: a.Status, Headers: a.Headers, Body: &text}
	}
	return answerMember{Status: a.Status, Headers: a.Headers, Base64: a.Body}
}

func (a answerMember) answer() *Answer {
	answer := Answer{Status: a.Status, Headers: http.Header{}, Body: a.Base64}
	if a.Body != nil {
		answer.Body = []byte(*a.Body)
	}
	for name, values := range a.Headers {
		answer.Headers[http.CanonicalHeaderKey(name)] = values
	}
	return &answer
}

// Run is what came of beginning. Where Answer is nil the thing is to be done now, and then completed, failed or abandoned.
// It is renewed until then.
type Run struct {
	// Answer is what the thing came to when it was done before.
	Answer       *Answer
	FencingToken uint64

	*keeper
	path, token string
	scope       url.Values
	// reruns says that a run that fails frees its key.
	reruns bool
}

// Begin asks whether to do a thing now.
func (c *Client) Begin(ctx context.Context, key string, options ...OnceOption) (*Run, error) {
	asked := begin{lease: defaultTTL, scope: url.Values{}, body: map[string]any{}}
	for _, option := range options {
		option(&asked)
	}
	asked.body["lease_ms"] = asked.lease.Milliseconds()
	token, err := tokenOr(asked.token)
	if err != nil {
		return nil, err
	}
	run := &Run{path: "/v1/idempotency/" + plain(key), token: token, scope: asked.scope, reruns: asked.body["on_crash"] == "rerun"}
	run.keeper = c.keeper(ctx, []string{key}, asked.lease, 0, c.clock.Now()+asked.lease)
	undo := func() { _ = run.Abandon(ctx) }
	if asked.token != "" {
		undo = nil
	}
	answer, sent := document{}, c.clock.Now()
	beginning := run.request("POST", "", asked.body)
	err = c.retry(ctx, run.path, asked.wait, undo, func(wait, timeout time.Duration, mayBeDone bool) (err error) {
		// Else an earlier try may have begun the run, whose lease then does not start again.
		if !mayBeDone {
			sent = c.clock.Now()
		}
		beginning.prefers, beginning.timeout = wait, timeout
		if answer, err = c.send(ctx, beginning); err != nil || answer.State == "done" {
			return err
		} else if answer.Token != token {
			return &UnreachableError{Sent: true, Err: errOfAnother}
		}
		until := sent + asked.lease
		// The response was so late that little of the lease is left, if any.
		if c.clock.Now()-sent > asked.lease/2 {
			until, err = run.extend(ctx, c.timeout)
		}
		run.until.Store(int64(until))
		return ofLate(err)
	})
	if err != nil {
		return nil, callers(ctx, err)
	}
	run.FencingToken = answer.FencingToken
	if answer.State == "done" {
		run.Answer = &Answer{Status: answer.Status, NotKept: true}
		if answer.Answer != nil {
			run.Answer = answer.Answer.answer()
		}
		run.Leave()
		return run, nil
	}
	c.clock.Go(func() { run.renew(run.extend) })
	return run, nil
}

func (r *Run) request(method, step string, body any) request {
	return request{method: method, path: r.path + step, query: r.scope, body: body, token: r.token}
}

func (r *Run) extend(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	until := r.client.clock.Now() + r.ttl
	renewal := r.request("POST", "/renew", nil)
	renewal.timeout = timeout
	_, err := r.client.send(ctx, renewal)
	return until, err
}

// Complete keeps an answer for every repeat. Like the other ends of a run it does not depend on whether ctx is done: of
// ctx it has the values alone, and it retries for 5 s.
func (r *Run) Complete(ctx context.Context, answer Answer) error {
	return r.finish(ctx, r.request("PUT", "", answer.member()))
}

// Abandon says that nothing was done, so that a repeat runs.
func (r *Run) Abandon(ctx context.Context) error {
	err := r.finish(ctx, r.request("DELETE", "", nil))
	var problem *Problem
	if errors.As(err, &problem) && problem.Code == "no-record" {
		return nil
	}
	return err
}

// Fail says that it is not known what was done, and why: a person settles it.
func (r *Run) Fail(ctx context.Context, reason string) error {
	isBlank := func(letter rune) bool { return unicode.IsControl(letter) || unicode.IsSpace(letter) }
	reason = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(reason, "?"), isBlank), " ")
	if len(reason) > 256 {
		reason = strings.ToValidUTF8(reason[:256], "")
	}
	if reason == "" {
		reason = "no reason was given"
	}
	return r.finish(ctx, r.request("POST", "/fail", map[string]any{"reason": reason}))
}

// Leave stops renewing without an outcome: it is unknown when the lease is over, and a person settles it.
func (r *Run) Leave() {
	r.isEnded.Store(true)
	r.end()
}

func (r *Run) finish(ctx context.Context, last request) error {
	r.isEnded.Store(true)
	defer r.end()
	ctx, cancel := r.client.ending(ctx)
	defer cancel()
	_, err := r.client.ask(ctx, last)
	return err
}

// undone ends a run whose function has failed.
func (r *Run) undone(ctx context.Context, why error) {
	var err error
	if r.reruns || errors.Is(why, ErrNothingDone) {
		err = r.Abandon(ctx)
	} else {
		err = r.Fail(ctx, why.Error())
	}
	if err != nil {
		r.client.log("keylatch could not end a run", "key", r.names[0], "error", err)
	}
}

// Once calls action for one of all calls with key, and gives all of them its answer. Where action returns an error or
// panics the outcome is unknown, and a person settles it; with [ErrNothingDone], or after OnCrash("rerun"), the key is free.
// What became of a run is kept also where ctx is done. Action may end its run itself, by [RunOf].
func (c *Client) Once(
	ctx context.Context, key string, action func(context.Context) (Answer, error), options ...OnceOption,
) (answer Answer, err error) {
	run, err := c.Begin(ctx, key, options...)
	if err != nil {
		return Answer{}, err
	}
	if run.Answer != nil {
		return *run.Answer, nil
	}
	during := context.WithCancel
	if run.reruns {
		// Another may do it when the lease is over.
		during = run.during
	}
	working, cancel := during(context.WithValue(ctx, runKey{}, run))
	defer cancel()
	// It stays that where the goroutine ends.
	err = errors.New("the function did not return")
	defer func() {
		why := recover()
		if why != nil {
			err = fmt.Errorf("panic: %v", why)
		}
		if err != nil && !run.isEnded.Load() {
			run.undone(ctx, err)
		}
		if why != nil {
			panic(why)
		}
	}()
	answer, err = action(working)
	if answer.Status == 0 {
		answer.Status = http.StatusOK
	}
	if err == nil && !run.isEnded.Load() {
		err = run.Complete(ctx, answer)
		// An answer that is refused ends no run.
		var problem *Problem
		run.isEnded.Store(!errors.As(err, &problem) || problem.isPassing())
	}
	return answer, err
}

type runKey struct{}

// RunOf is the run whose function of [Client.Once] has this context, with its fencing token; nil elsewhere.
func RunOf(ctx context.Context) *Run {
	run, _ := ctx.Value(runKey{}).(*Run)
	return run
}
