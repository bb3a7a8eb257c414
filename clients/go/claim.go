package keylatch

import (
	"context"
	"errors"
	"net/url"
	"time"
)

const (
	leadMax    = 10 * time.Second
	defaultTTL = 30 * time.Second
)

// WaitForever is a wait without end.
const WaitForever time.Duration = 1 << 62

// LockOption says how to get a lock.
type LockOption func(*claim)

func member(name string, value any) LockOption { return func(c *claim) { c.body[name] = value } }

// Wait is how long to wait in the queue; not at all by default.
func Wait(wait time.Duration) LockOption { return func(c *claim) { c.wait = wait } }

// MaxAhead waits only where at most so many wait already. With 0 one holds the lock, and one waits.
func MaxAhead(most int) LockOption { return member("max_ahead", most) }

// TTL is how long the lease outlives this process; 30 s by default.
func TTL(ttl time.Duration) LockOption { return func(c *claim) { c.ttl = ttl } }

// Owner is a label for people that says who holds the lock; host/pid by default.
func Owner(owner string) LockOption { return member("owner", owner) }

// Shared lets any number of readers hold the lock together.
func Shared() LockOption { return member("mode", "shared") }

// Limit lets so many hold the lock together, each with a slot of its own.
func Limit(limit int) LockOption {
	return func(c *claim) { c.body["mode"], c.body["limit"] = "shared", limit }
}

// MaxHold is for how long a hold lasts at most; a day by default.
func MaxHold(longest time.Duration) LockOption { return member("max_hold_ms", longest.Milliseconds()) }

// Entry enters a lock under a name. With Token it enters one again that the token holds.
func Entry(entry string) LockOption { return member("entry", entry) }

// Token is the secret that proves the lease; a new one by default. It has 20 to 128 letters, digits, "-" and "_".
func Token(token string) LockOption { return func(c *claim) { c.token = token } }

// claim is what is asked for, and the token that proves it.
type claim struct {
	client    *Client
	names     []string
	isSet     bool
	ttl, wait time.Duration
	body      map[string]any // what is given beside these
	token     string
	isOwn     bool // the token is the caller's
}

// grant is what the service granted, exclusive until then on the client's clock.
type grant struct {
	locks []leasedLock
	until time.Duration
}

func (c *Client) claim(names []string, isSet bool, options []LockOption) (*claim, error) {
	claim := &claim{client: c, names: append([]string(nil), names...), isSet: isSet, ttl: defaultTTL}
	claim.body = map[string]any{"owner": c.owner}
	for _, option := range options {
		option(claim)
	}
	for name, value := range claim.body {
		if value == "" {
			delete(claim.body, name)
		}
	}
	claim.isOwn = claim.token != ""
	token, err := tokenOr(claim.token)
	claim.token = token
	return claim, err
}

func (c *claim) path() string {
	if c.isSet {
		return "/v1/locks"
	}
	return "/v1/locks/" + plain(c.names[0])
}

func (c *claim) creation(wait time.Duration) map[string]any {
	body := c.renewal()
	body["wait_ms"] = wait.Milliseconds()
	for name, value := range c.body {
		body[name] = value
	}
	return body
}

func (c *claim) renewal() map[string]any {
	body := map[string]any{"ttl_ms": c.ttl.Milliseconds()}
	if c.isSet {
		body["names"] = c.names
	}
	return body
}

// acquire asks with the same token until the wait is over. It releases what it may have got without a response, but not what
// a token of the caller's may have held before.
func (c *claim) acquire(ctx context.Context) (got grant, err error) {
	undo := func() { _, _ = c.release(ctx) }
	if _, hasEntry := c.body["entry"]; c.isOwn && (c.isSet || !hasEntry) {
		undo = nil
	}
	err = c.client.retry(ctx, c.path(), c.wait, undo, func(wait, timeout time.Duration, _ bool) (err error) {
		got, err = c.try(ctx, wait, timeout)
		return err
	})
	return got, callers(ctx, c.orHeld(err))
}

// try sends one request. A grant is renewed before it is used where the response was so late that little of it is left.
func (c *claim) try(ctx context.Context, wait, timeout time.Duration) (grant, error) {
	got, err := c.send(ctx, "POST", c.creation(wait), timeout)
	if err != nil || got.until-c.client.clock.Now() >= c.ttl/2 {
		return got, err
	}
	renewed, err := c.renew(ctx, c.client.timeout)
	got.until = renewed.until
	return got, ofLate(err)
}

// ofLate is the error of a renewal before use. What was over before its response was read is asked for again, as without one.
func ofLate(err error) error {
	var problem *Problem
	if errors.As(err, &problem) && (problem.Code == "no-record" || lossOf(problem.Code, problem.document) != nil) {
		return &UnreachableError{Sent: true, Err: errors.New("it was over before its response was read")}
	}
	return err
}

// renew starts the TTL again.
func (c *claim) renew(ctx context.Context, timeout time.Duration) (grant, error) {
	return c.send(ctx, "PUT", c.renewal(), timeout)
}

// send gives a grant that counts from the sending of the request.
func (c *claim) send(ctx context.Context, method string, body any, timeout time.Duration) (grant, error) {
	sent := c.client.clock.Now()
	answer, err := c.client.send(ctx, request{method: method, path: c.path(), body: body, token: c.token, timeout: timeout})
	if err != nil {
		return grant{}, err
	}
	return c.grant(answer, sent)
}

// release says whether the token still held the locks. It retries for 5 s until there is a response, also where the
// caller's context is done.
func (c *claim) release(ctx context.Context) (isHeld bool, err error) {
	ctx, cancel := c.client.ending(ctx)
	defer cancel()
	query := url.Values{}
	if entry, hasEntry := c.body["entry"].(string); c.isSet {
		query["name"] = c.names
	} else if hasEntry {
		query.Set("entry", entry)
	}
	r := request{method: "DELETE", path: c.path(), query: query, token: c.token}
	err = c.client.retry(ctx, r.path, 0, nil, func(_, timeout time.Duration, mayBeDone bool) error {
		r.timeout = timeout
		_, err := c.client.send(ctx, r)
		isHeld = err == nil
		var problem *Problem
		if errors.As(err, &problem) && lossOf(problem.Code, problem.document) != nil {
			// The try whose response was lost has released what is gone now.
			isHeld, err = mayBeDone, nil
		}
		return err
	})
	return isHeld, err
}

// grant is what a response or an event grants, to a request that was sent then.
func (c *claim) grant(answer document, sent time.Duration) (grant, error) {
	locks := answer.Locks
	if !c.isSet {
		locks = []leasedLock{{Name: answer.Name, FencingToken: answer.FencingToken, Slot: answer.Slot}}
	}
	isMine := answer.WaitedMs != nil && answer.ValidForMs != nil && answer.Token == c.token && len(locks) == len(c.names)
	for at := 0; isMine && at < len(locks); at++ {
		isMine = locks[at].Name == c.names[at]
	}
	if !isMine {
		return grant{}, &UnreachableError{Sent: true, Err: errOfAnother}
	}
	return grant{locks: locks, until: sent + answer.validity()}, nil
}

// orHeld is a *HeldError where the problem is that others hold the lock.
func (c *claim) orHeld(err error) error {
	var problem *Problem
	if !errors.As(err, &problem) || problem.Code != "lock-held" {
		return err
	}
	said := problem.document
	held := &HeldError{Name: said.Name, Holder: said.Holder}
	if held.Name == "" {
		held.Name = c.names[0]
	}
	for at, holder := range said.Holders {
		if held.Holder == nil || holder.ExpiresInMs < held.Holder.ExpiresInMs {
			held.Holder = &said.Holders[at]
		}
	}
	return held
}
