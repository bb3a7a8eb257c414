package keylatch

import (
	"context"
	"errors"
	"net/url"
	"sort"
	"strings"
	"time"
)

const (
	requestWait    = 50 * time.Second
	minRequestWait = time.Second
	leadMax        = 10 * time.Second
	defaultTTL     = 30 * time.Second
)

// LockOption says how to get a lock.
type LockOption func(*claim)

// Wait is how long to wait in the queue; not at all by default.
func Wait(wait time.Duration) LockOption { return func(c *claim) { c.wait = wait } }

// TTL is how long the lease outlives this process; 30 s by default.
func TTL(ttl time.Duration) LockOption { return func(c *claim) { c.ttl = ttl } }

// Owner is a label for people that says who holds the lock.
func Owner(owner string) LockOption { return func(c *claim) { c.owner = owner } }

// Shared lets any number of readers hold the lock together.
func Shared() LockOption { return func(c *claim) { c.isShared = true } }

// Limit lets so many hold the lock together, each with a slot of its own.
func Limit(limit int) LockOption {
	return func(c *claim) { c.isShared, c.limit = true, limit }
}

// Entry enters a lock under a name. With Token it enters one again that the token holds.
func Entry(entry string) LockOption { return func(c *claim) { c.entry = entry } }

// Token is the secret that proves the lease; a new one by default. It has 20 to 128 letters, digits, "-" and "_".
func Token(token string) LockOption { return func(c *claim) { c.token = token } }

// claim is what is asked for, and the token that proves it.
type claim struct {
	client    *Client
	names     []string
	isSet     bool
	ttl, wait time.Duration
	owner     string
	isShared  bool
	limit     int
	entry     string
	token     string
}

// grant is what the service granted, exclusive until then on the clock of now.
type grant struct {
	locks []leasedLock
	until time.Duration
}

func (c *Client) claim(names []string, isSet bool, options []LockOption) (*claim, error) {
	claim := &claim{client: c, names: names, isSet: isSet, ttl: defaultTTL}
	for _, option := range options {
		option(claim)
	}
	if claim.token != "" {
		return claim, nil
	}
	token, err := newToken()
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
	body["wait_ms"] = millis(wait)
	if c.owner != "" {
		body["owner"] = c.owner
	}
	if c.isShared {
		body["mode"] = "shared"
	}
	if c.limit > 0 {
		body["limit"] = c.limit
	}
	if c.entry != "" {
		body["entry"] = c.entry
	}
	return body
}

func (c *claim) renewal() map[string]any {
	body := map[string]any{"ttl_ms": millis(c.ttl)}
	if c.isSet {
		body["names"] = c.names
	}
	return body
}

// acquire asks until the wait is over, with the same token over lost answers and 503. It releases what it may
// have got without an answer.
func (c *claim) acquire(ctx context.Context) (grant, error) {
	got, err := c.ask(ctx)
	if err != nil && mayHold(err) {
		go func() { _, _ = c.release(valuesOf{ctx}) }()
	}
	return got, err
}

func (c *claim) ask(ctx context.Context) (grant, error) {
	end, longest := now()+c.wait, requestWait
	for {
		wait := shorter(longer(end-now(), 0), longest)
		sent := now()
		got, err := c.try(ctx, wait)
		if err == nil || ctx.Err() != nil {
			return got, err
		}
		next := pause
		var problem *Problem
		if errors.As(err, &problem) {
			isFinal := wait > 0 && problem.document.WaitedMs == nil
			switch {
			case problem.document.Field == "wait_ms" && wait > 0:
				if longest /= 4; longest < minRequestWait {
					longest = 0
				}
				continue
			case problem.Code == "lock-held":
				err = c.held(problem.document)
				if isFinal {
					return got, err
				}
				if wait > 0 && sent+wait <= now() {
					next = 0
				}
			case !problem.isPassing():
				return got, err
			default:
				next = longer(problem.RetryAfter, pause)
			}
		}
		if now() >= end {
			return got, err
		}
		if stopped := sleepUntil(ctx, shorter(end, now()+next)); stopped != nil {
			return got, err
		}
	}
}

// try sends one request. A grant is renewed before it is used where the answer was so late that little of it is left.
func (c *claim) try(ctx context.Context, wait time.Duration) (grant, error) {
	sent := now()
	create := request{method: "POST", path: c.path(), body: c.creation(wait), token: c.token, timeout: wait + answerTimeout}
	answer, err := c.client.send(ctx, create)
	if err != nil {
		return grant{}, err
	}
	got, err := c.grant(answer, sent)
	if err != nil || got.until-now() >= c.ttl/2 {
		return got, err
	}
	renewed, err := c.renew(ctx, answerTimeout)
	got.until = renewed.until
	return got, err
}

// renew starts the TTL again, and counts from the sending of the request.
func (c *claim) renew(ctx context.Context, timeout time.Duration) (grant, error) {
	sent := now()
	renewal := request{method: "PUT", path: c.path(), body: c.renewal(), token: c.token, timeout: timeout}
	answer, err := c.client.send(ctx, renewal)
	if err != nil {
		return grant{}, err
	}
	return c.grant(answer, sent)
}

// release says whether the token still held the locks. It repeats for 5 s until there is an answer.
func (c *claim) release(ctx context.Context) (bool, error) {
	end, mayBeDone := now()+answerTimeout, false
	for {
		_, err := c.client.send(ctx, request{method: "DELETE", path: c.releasePath(), token: c.token})
		if err == nil {
			return true, nil
		}
		var problem *Problem
		var unreachable *UnreachableError
		if errors.As(err, &problem) {
			if lossOf(problem) != nil {
				// The try whose answer was lost has released what is gone now.
				return mayBeDone, nil
			}
			if !problem.isPassing() {
				return false, err
			}
			mayBeDone = mayBeDone || problem.Outcome == "unknown"
		} else if errors.As(err, &unreachable) {
			mayBeDone = mayBeDone || unreachable.Sent
		}
		if now()+pause >= end || sleepUntil(ctx, now()+pause) != nil {
			return false, err
		}
	}
}

func (c *claim) releasePath() string {
	if c.isSet {
		names := make([]string, len(c.names))
		for at, name := range c.names {
			names[at] = "name=" + url.QueryEscape(name)
		}
		return c.path() + "?" + strings.Join(names, "&")
	}
	if c.entry == "" {
		return c.path()
	}
	return c.path() + "?entry=" + url.QueryEscape(c.entry)
}

// grant is what an answer or an event grants, to a request that was sent then.
func (c *claim) grant(answer document, sent time.Duration) (grant, error) {
	locks := answer.Locks
	if !c.isSet {
		locks = []leasedLock{{Name: c.names[0], FencingToken: answer.FencingToken, Slot: answer.Slot}}
	}
	if answer.WaitedMs == nil || answer.ValidForMs == nil || len(locks) == 0 {
		return grant{}, &UnreachableError{Sent: true, Err: errNotKeylatch}
	}
	valid := time.Duration(*answer.WaitedMs+*answer.ValidForMs) * time.Millisecond
	return grant{locks: locks, until: sent + valid}, nil
}

func (c *claim) held(problem document) *HeldError {
	held := &HeldError{Name: problem.Name, Holder: problem.Holder}
	if held.Name == "" {
		held.Name = c.names[0]
	}
	if held.Holder == nil && len(problem.Holders) > 0 {
		first := append([]Holder(nil), problem.Holders...)
		sort.Slice(first, func(one, other int) bool { return first[one].ExpiresInMs < first[other].ExpiresInMs })
		held.Holder = &first[0]
	}
	return held
}

// lead is how long before its end a lease that is not renewed counts as lost.
func lead(ttl time.Duration) time.Duration { return shorter(ttl/4, leadMax) }

// lossOf says why the lease is over, if the problem says that it is.
func lossOf(problem *Problem) *LostError {
	reasons := map[string]string{"lock-not-held": "expired", "token-mismatch": "taken", "lock-broken": "broken"}
	reason, isLoss := reasons[problem.Code]
	if !isLoss {
		return nil
	}
	detail := problem.Detail
	if problem.document.Broken != nil {
		detail = problem.document.Broken.Reason
	}
	return &LostError{Reason: reason, Detail: detail}
}

// mayHold says whether the service may have granted what the caller does not get.
func mayHold(err error) bool {
	var problem *Problem
	if errors.As(err, &problem) {
		return problem.isPassing()
	}
	var held *HeldError
	var unreachable *UnreachableError
	return !errors.As(err, &held) && !(errors.As(err, &unreachable) && !unreachable.Sent)
}
