package keylatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lease is what the program holds, renewed until it is released or lost.
type Lease struct {
	claim *claim
	locks []leasedLock
	// ctx is what the program sees, cancelled when the lease is lost.
	ctx    context.Context
	cancel context.CancelFunc
	// keeping is the context of what renews, with the values of the one that the lock was asked for with. It ends when
	// the lease is released.
	keeping context.Context
	end     context.CancelFunc

	mutex    sync.Mutex
	until    time.Duration
	loss     *LostError
	released bool
}

// Lock gets a lock. Where others hold it until the wait is over the error is a *HeldError. The lease outlives ctx, which
// ends the waiting.
func (c *Client) Lock(ctx context.Context, name string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, []string{name}, false, options)
}

// LockAll gets several locks at once, or none of them, under one token.
func (c *Client) LockAll(ctx context.Context, names []string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, names, true, options)
}

func (c *Client) lock(ctx context.Context, names []string, isSet bool, options []LockOption) (*Lease, error) {
	claim, err := c.claim(names, isSet, options)
	if err != nil {
		return nil, err
	}
	got, err := claim.acquire(ctx)
	if err != nil {
		return nil, err
	}
	lease := newLease(ctx, claim, got)
	go func() { lease.lose(lease.renew()) }()
	return lease, nil
}

func newLease(ctx context.Context, claim *claim, got grant) *Lease {
	lease := &Lease{claim: claim, locks: got.locks, until: got.until}
	lease.keeping, lease.end = context.WithCancel(valuesOf{ctx})
	lease.ctx, lease.cancel = context.WithCancel(lease.keeping)
	return lease
}

// Context is cancelled when the lease is lost or released, and has the values of the one that the lock was asked for with.
// Hand it to what the lease protects.
func (l *Lease) Context() context.Context { return l.ctx }

// Err is a *LostError once the lease is lost, and else nil. Ask it before each step of the work.
func (l *Lease) Err() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.loss == nil {
		return nil
	}
	return l.loss
}

// FencingToken is larger than that of every earlier grant that this one cannot be held together with. The resource
// remembers the largest that it has seen, and refuses a smaller one.
func (l *Lease) FencingToken() uint64 { return l.locks[0].FencingToken }

// FencingTokens has the fencing token of each lock, by name.
func (l *Lease) FencingTokens() map[string]uint64 {
	tokens := make(map[string]uint64, len(l.locks))
	for _, lock := range l.locks {
		tokens[lock.Name] = lock.FencingToken
	}
	return tokens
}

// Slot is which of the places is this lease's, from 0, and whether the lock was asked for with a number of them.
func (l *Lease) Slot() (int, bool) {
	if slot := l.locks[0].Slot; slot != nil {
		return *slot, true
	}
	return 0, false
}

// Token is the secret that proves the lease, for a program that enters the lock again.
func (l *Lease) Token() string { return l.claim.token }

// ValidFor is for how long the lease is exclusive from now on unless it is renewed.
func (l *Lease) ValidFor() time.Duration { return longer(l.validUntil()-now(), 0) }

// Release says whether the lease was still held. It repeats for 5 s until there is an answer.
func (l *Lease) Release(ctx context.Context) (bool, error) {
	l.mutex.Lock()
	l.released = true
	l.mutex.Unlock()
	defer l.cancel()
	// Not before: without its stream the service would release a hold by itself.
	defer l.end()
	return l.claim.release(ctx)
}

func (l *Lease) validUntil() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.until
}

func (l *Lease) renewed(until time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.loss == nil {
		l.until = until
	}
}

// lose cancels the context of the lease, unless the program has released it.
func (l *Lease) lose(loss *LostError) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !l.released && l.loss == nil && loss != nil {
		l.loss = loss
		l.cancel()
	}
}

// renew renews at each third of the TTL until the lease is lost.
func (l *Lease) renew() *LostError {
	ttl, why := l.claim.ttl, "there was no time"
	due := now() + ttl/3
	for {
		until := l.validUntil()
		giveUp := until - lead(ttl)
		if sleepUntil(l.keeping, shorter(due, giveUp)) != nil {
			return nil
		}
		sent := now()
		if sent >= until {
			return &LostError{Reason: "paused", Detail: "it ended while this process was paused"}
		}
		if sent >= giveUp {
			return &LostError{Reason: "unrenewed", Detail: "it could not be renewed in time: " + why}
		}
		limit := shorter(answerTimeout, longer((giveUp-sent)/2, 50*time.Millisecond))
		got, err := l.claim.renew(l.keeping, limit)
		if err == nil {
			l.renewed(got.until)
			due = sent + ttl/3
			continue
		}
		next := pause
		var problem *Problem
		if errors.As(err, &problem) {
			if loss := lossOf(problem); loss != nil {
				return loss
			}
			next = longer(problem.RetryAfter, pause)
		}
		why, due = err.Error(), now()+next
	}
}

// Hold holds a lock by a connection: the service renews it, and frees it when this process is gone.
func (c *Client) Hold(ctx context.Context, name string, options ...LockOption) (*Lease, error) {
	claim, err := c.claim([]string{name}, false, options)
	if err != nil {
		return nil, err
	}
	reading, cancel := context.WithCancel(valuesOf{ctx})
	opening, opened := context.WithTimeout(ctx, claim.wait+answerTimeout)
	defer opened()
	stop := cancelWith(opening, cancel)
	sent := now()
	holding := request{method: "POST", path: claim.path() + "/hold", body: claim.creation(claim.wait), token: claim.token}
	stream, err := c.events(reading, holding)
	if err == nil {
		var got grant
		if got, err = claim.heldBy(stream, sent); err == nil && stop() {
			lease := newLease(ctx, claim, got)
			go lease.follow(stream, sent)
			go lease.outlast(cancel)
			return lease, nil
		}
	}
	cancel()
	var problem *Problem
	if errors.As(err, &problem) && problem.Code == "lock-held" {
		err = claim.held(problem.document)
	}
	if why := opening.Err(); why != nil && problem == nil {
		err = &UnreachableError{Sent: true, Err: why}
	}
	return nil, err
}

// cancelWith cancels when ctx is done, until it is stopped. Stopping says whether it came before.
func cancelWith(ctx context.Context, cancel context.CancelFunc) (stop func() bool) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			// Both may have come by now.
			select {
			case <-stopped:
			default:
				cancel()
			}
		case <-stopped:
		}
	}()
	return func() bool {
		close(stopped)
		return ctx.Err() == nil
	}
}

// heldBy waits for the event that says that the lock is held.
func (c *claim) heldBy(stream *eventStream, sent time.Duration) (grant, error) {
	for {
		event, data, err := stream.next()
		if err != nil {
			return grant{}, &UnreachableError{Sent: true, Err: err}
		}
		switch event.Type {
		case "acquired":
			return c.grant(data, sent)
		case "refused":
			return grant{}, problemOf(0, event.Data, 0)
		}
	}
}

// follow reads the stream that holds the lock to its end.
func (l *Lease) follow(stream *eventStream, sent time.Duration) {
	defer stream.close()
	for {
		event, data, err := stream.next()
		switch {
		case err != nil:
			l.lose(&LostError{Reason: "unreachable", Detail: fmt.Sprintf("the stream has ended: %v", err)})
			return
		case event.Type == "lost":
			l.lose(&LostError{Reason: data.Reason, Detail: data.Detail})
		case event.Type == "renewed" && data.WaitedMs != nil && data.ValidForMs != nil:
			l.renewed(sent + time.Duration(*data.WaitedMs+*data.ValidForMs)*time.Millisecond)
		}
	}
}

// outlast sees that events renew a hold in time. Where none does, it is lost, but exclusive until its validity ends: its
// stream stays open until then, because the service frees the lock with the stream.
func (l *Lease) outlast(endStream context.CancelFunc) {
	defer endStream()
	for {
		giveUp := l.validUntil() - lead(l.claim.ttl)
		if giveUp <= now() || l.Err() != nil {
			break
		}
		if sleepUntil(l.keeping, giveUp) != nil {
			return
		}
	}
	l.lose(&LostError{Reason: "unrenewed", Detail: "no renewal came in time"})
	_ = sleepUntil(l.keeping, l.validUntil())
}
