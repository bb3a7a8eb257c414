package keylatch

import (
	"context"
	"errors"
	"net/http"
	"time"
	"unicode/utf8"
)

// OnceOption says how to do a thing once.
type OnceOption func(*run)

// Fingerprint tells two things apart that have the same key by mistake ("idempotency-key-reused").
func Fingerprint(fingerprint string) OnceOption { return func(r *run) { r.fingerprint = fingerprint } }

// RunLease is how long a run may go unrenewed before its outcome is unknown; 30 s by default.
func RunLease(lease time.Duration) OnceOption { return func(r *run) { r.lease = lease } }

// AwaitRun is how long to wait for the same thing under way elsewhere; not at all by default.
func AwaitRun(wait time.Duration) OnceOption { return func(r *run) { r.wait = wait } }

type run struct {
	fingerprint string
	lease, wait time.Duration
}

// Answer is what a thing came to.
type Answer struct {
	Status  int
	Headers http.Header
	// Body has any bytes. Those that are no UTF-8 pass the API in base64.
	Body string
}

// answerMember is an answer as the API has it.
type answerMember struct {
	Status  int         `json:"status"`
	Headers http.Header `json:"headers,omitempty"`
	Body    *string     `json:"body,omitempty"`
	Base64  []byte      `json:"body_base64,omitempty"`
}

// member writes an answer as the API has it.
func (a Answer) member() answerMember {
	if utf8.ValidString(a.Body) {
		return answerMember{Status: a.Status, Headers: a.Headers, Body: &a.Body}
	}
	return answerMember{Status: a.Status, Headers: a.Headers, Base64: []byte(a.Body)}
}

func (a answerMember) answer() Answer {
	answer := Answer{Status: a.Status, Headers: http.Header{}, Body: string(a.Base64)}
	if a.Body != nil {
		answer.Body = *a.Body
	}
	for name, values := range a.Headers {
		for _, value := range values {
			answer.Headers.Add(name, value)
		}
	}
	return answer
}

// Run is what came of beginning. Where Answer is nil the thing is to be done now, and then completed or abandoned.
type Run struct {
	// Answer is what the thing came to when it was done before.
	Answer       *Answer
	FencingToken uint64

	client      *Client
	path, token string
	end         context.CancelFunc
}

// Begin asks whether to do a thing now.
func (c *Client) Begin(ctx context.Context, key string, options ...OnceOption) (*Run, error) {
	settings := run{lease: defaultTTL}
	for _, option := range options {
		option(&settings)
	}
	token, err := newToken()
	if err != nil {
		return nil, err
	}
	body := map[string]any{"lease_ms": millis(settings.lease)}
	if settings.fingerprint != "" {
		body["fingerprint"] = settings.fingerprint
	}
	path := "/v1/idempotency/" + plain(key)
	answer, err := c.ask(ctx, request{method: "POST", path: path, body: body, token: token}, settings.wait)
	if err != nil {
		return nil, err
	}
	begun := &Run{FencingToken: answer.FencingToken, client: c, path: path, token: token, end: func() {}}
	if answer.State == "done" {
		begun.Answer = &Answer{}
		if answer.Answer != nil {
			*begun.Answer = answer.Answer.answer()
		}
		return begun, nil
	}
	renewing, cancel := context.WithCancel(valuesOf{ctx})
	begun.end = cancel
	go begun.renew(renewing, settings.lease)
	return begun, nil
}

// Complete keeps an answer for every repeat.
func (r *Run) Complete(ctx context.Context, answer Answer) error {
	r.end()
	_, err := r.client.ask(ctx, request{method: "PUT", path: r.path, body: answer.member(), token: r.token}, 0)
	return err
}

// Abandon says that nothing was done, so that a repeat runs.
func (r *Run) Abandon(ctx context.Context) error {
	r.end()
	_, err := r.client.ask(ctx, request{method: "DELETE", path: r.path, token: r.token}, 0)
	return err
}

// Leave stops renewing without an outcome: it is unknown when the lease is over, and a person settles it.
func (r *Run) Leave() { r.end() }

// renew keeps the run from being over while the program carries it out.
func (r *Run) renew(ctx context.Context, lease time.Duration) {
	due := now() + lease/3
	for sleepUntil(ctx, due) == nil {
		due = now() + lease/3
		_, err := r.client.send(ctx, request{method: "POST", path: r.path + "/renew", token: r.token})
		var problem *Problem
		if errors.As(err, &problem) && !problem.isPassing() {
			return
		}
		if err != nil {
			due = now() + pause
		}
	}
}

// Once calls action for one of all calls with key, and gives all of them its answer. Where action fails the outcome is
// unknown, and a person settles it; Begin a run to abandon it instead.
func (c *Client) Once(
	ctx context.Context, key string, action func(context.Context) (Answer, error), options ...OnceOption,
) (Answer, error) {
	run, err := c.Begin(ctx, key, options...)
	if err != nil {
		return Answer{}, err
	}
	if run.Answer != nil {
		return *run.Answer, nil
	}
	answer, err := action(ctx)
	if err != nil {
		run.Leave()
		return answer, err
	}
	return answer, run.Complete(ctx, answer)
}
