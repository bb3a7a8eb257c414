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

// Wait is how long to wait in the queue; not at all by default.
func Wait(wait time.Duration) LockOption { return func(c *claim) { c.wait = wait } }

// TTL is how long the lease outlives this process; 30 s by default.
func TTL(ttl time.Duration) LockOption { return func(c *claim) { c.ttl = ttl } }

// Owner is a label for people that says who holds the lock; host/pid by default.
func Owner(owner string) LockOption { return func(c *claim) { c.owner = owner } }

// Shared lets any number of readers hold the lock together.
func Shared() LockOption { return func(c *claim) { c.isShared = true } }

// Limit lets so many hold the lock together, each with a slot of its own.
func Limit(limit int) LockOption {
	return func(c *claim) { c.isShared, c.limit = true, &limit }
}

// MaxHold is for how long a hold lasts at most; a day by default.
func MaxHold(longest time.Duration) LockOption { return func(c *claim) { c.maxHold = longest } }

// Entry enters a lock under a name. With Token it enters one again that the token holds.
func Entry(entry string) LockOption { return func(c *claim) { c.entry = entry } }

// Token is the secret that proves the lease; a new one by default. It has 20 to 128 letters, digits, "-" and "_".
func Token(token string) LockOption { return func(c *claim) { c.token = token } }

// claim is what is asked for, and the token that proves it.
type claim struct {
	client             *Client
	names              []string
	isSet              bool
	ttl, wait, maxHold time.Duration
	owner              string
	isShared           bool
	limit              *int
	entry              string
	token              string
	isOwn              bool // the token is the caller's
	created            effect
}

// grant is what the service granted, exclusive until then on the client's clock.
type grant struct {
	locks []leasedLock
	until time.Duration
}

func (c *Client) claim(names []string, isSet bool, options []LockOption) (*claim, error) {
	claim := &claim{client: c, names: append([]string(nil), names...), isSet: isSet, ttl: defaultTTL, owner: c.owner}
	for _, option := range options {
		option(claim)
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
	if c.owner != "" {
		body["owner"] = c.owner
	}
	if c.isShared {
		body["mode"] = "shared"
	}
	if c.limit != nil {
		body["limit"] = *c.limit
	}
	if c.entry != "" {
		body["entry"] = c.entry
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
	err = c.client.retry(ctx, c.path(), c.wait, func(wait, timeout time.Duration) (err error) {
		got, err = c.try(ctx, wait, timeout)
		return err
	})
	isNew := !c.isOwn || c.entry != "" && !c.isSet
	if err != nil && c.created.mayBeDone && isNew {
		c.client.clock.Go(func() { _, _ = c.release(ctx) })
	}
	return got, callers(ctx, c.orHeld(err))
}

// try sends one request. A grant is renewed before it is used where the response was so late that little of it is left.
func (c *claim) try(ctx context.Context, wait, timeout time.Duration) (grant, error) {
	sent := c.client.clock.Now()
	create := request{method: "POST", path: c.path(), body: c.creation(wait), token: c.token, timeout: timeout}
	create.effect = &c.created
	answer, err := c.client.send(ctx, create)
	if err != nil {
		return grant{}, err
	}
	got, err := c.grant(answer, sent)
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

// renew starts the TTL again, and counts from the sending of the request.
func (c *claim) renew(ctx context.Context, timeout time.Duration) (grant, error) {
	sent := c.client.clock.Now()
	renewal := request{method: "PUT", path: c.path(), body: c.renewal(), token: c.token, timeout: timeout}
	answer, err := c.client.send(ctx, renewal)
	if err != nil {
		return grant{}, err
	}
	return c.grant(answer, sent)
}

// release says whether the token still held the locks. It retries for 5 s until there is a response, also where the
// caller's context is done.
func (c *claim) release(ctx context.Context) (bool, error) {
	ctx, cancel := c.client.ending(ctx)
	defer cancel()
	query, released := url.Values{}, effect{}
	if c.isSet {
		query["name"] = c.names
	} else if c.entry != "" {
		query.Set("entry", c.entry)
	}
	r := request{method: "DELETE", path: c.path(), query: query, token: c.token, effect: &released}
	_, err := c.client.ask(ctx, r, 0)
	var problem *Problem
	if errors.As(err, &problem) && lossOf(problem.Code, problem.document) != nil {
		// The try whose response was lost has released what is gone now.
		return released.mayBeDone, nil
	}
	return err == nil, err
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
