package keylatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// keeper keeps what the service granted for a time: it renews it, and says when it is lost.
type keeper struct {
	client *Client
	names  []string
	ttl    time.Duration
	// lead is how long before its end a lease that is not renewed counts as lost.
	lead time.Duration
	// ctx is what the program sees, cancelled when the lease is lost.
	ctx    context.Context
	cancel context.CancelFunc
	// keeping is the context of what renews, with the values of the caller's. It ends when the program has ended the lease.
	keeping context.Context
	end     context.CancelFunc

	until atomic.Int64
	// isEnded says that the program ends the lease: it is not lost from then on.
	isEnded atomic.Bool
	why     atomic.Value // the last renewal failed
	mutex   sync.Mutex
	loss    *LostError
}

func (c *Client) keeper(ctx context.Context, names []string, ttl, lead, until time.Duration) *keeper {
	k := &keeper{client: c, names: names, ttl: ttl, lead: lead}
	k.why.Store("there was no time")
	k.until.Store(int64(until))
	k.keeping, k.end = context.WithCancel(valuesOf{ctx})
	k.ctx, k.cancel = context.WithCancel(k.keeping)
	return k
}

// Context is cancelled when the lease is lost or ended, and has the values of the one that it was asked for with.
// Hand it to what the lease protects.
func (k *keeper) Context() context.Context {
	_ = k.Err()
	return keptContext{k.ctx, k, k.cancel}
}

// Err is a *LostError once the lease is lost, [ErrReleased] once the program has ended it, and else nil. It looks at the
// clock. Ask it before each step of the work.
func (k *keeper) Err() error {
	at, until := k.client.clock.Now(), k.validUntil()
	if at >= until && k.lead > 0 {
		k.lose(&LostError{Reason: "paused", Detail: "it ended while this process was paused"})
	} else if at >= until-k.lead {
		k.lose(&LostError{Reason: "unrenewed", Detail: fmt.Sprint("it could not be renewed in time: ", k.why.Load())})
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.loss != nil {
		return k.loss
	} else if k.isEnded.Load() {
		return ErrReleased
	}
	return nil
}

// ValidFor is for how long the lease is exclusive from now on unless it is renewed; 0 once Err says that it is over.
func (k *keeper) ValidFor() time.Duration {
	if k.Err() != nil {
		return 0
	}
	return longer(k.validUntil()-k.client.clock.Now(), 0)
}

// keptContext is a context that looks at the clock where it is asked for its error.
type keptContext struct {
	context.Context
	keeper *keeper
	cancel context.CancelFunc
}

func (c keptContext) Err() error {
	if c.keeper.Err() != nil {
		c.cancel()
	}
	return c.Context.Err()
}

// during is a context that ends with ctx, and with the lease.
func (k *keeper) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		<-k.ctx.Done()
		cancel()
	}()
	return keptContext{ctx, k, cancel}, cancel
}

func (k *keeper) validUntil() time.Duration { return time.Duration(k.until.Load()) }

// lose cancels the context of the lease, unless it is lost already or the program has ended it.
func (k *keeper) lose(loss *LostError) {
	if !k.isEnded.Load() {
		k.record(loss)
	}
}

func (k *keeper) record(loss *LostError) {
	k.mutex.Lock()
	isFirst := k.loss == nil
	if isFirst {
		if len(loss.Names) == 0 {
			loss.Names = k.names
		}
		k.loss = loss
		k.cancel()
	}
	k.mutex.Unlock()
	if isFirst {
		k.client.log("keylatch has lost a lease", "names", loss.Names, "reason", loss.Reason, "detail", loss.Detail)
	}
}

func (k *keeper) renew(renewal func(ctx context.Context, timeout time.Duration) (until time.Duration, err error)) {
	clock := k.client.clock
	due := clock.Now() + k.ttl/3
	for {
		giveUp := k.validUntil() - k.lead
		if clock.SleepUntil(k.keeping, shorter(due, giveUp)) != nil || k.Err() != nil {
			return
		}
		sent := clock.Now()
		until, err := renewal(k.keeping, shorter(k.client.timeout, longer((giveUp-sent)/2, 50*time.Millisecond)))
		if err == nil {
			k.until.Store(int64(until))
			due = sent + k.ttl/3
			continue
		}
		var problem *Problem
		if errors.As(err, &problem) {
			if loss := lossOf(problem.Code, problem.document); loss != nil {
				k.lose(loss)
				return
			}
		}
		k.client.log("keylatch could not renew", "names", k.names, "error", err)
		k.why.Store(err.Error())
		due = clock.Now() + k.client.pauseAfter(err)
	}
}

// Lease is what the program holds, renewed until it is released or lost.
type Lease struct {
	*keeper
	claim *claim
	locks []leasedLock
}

// Lock gets a lock. Where others hold it until the wait is over the error is a *HeldError. The lease outlives ctx, which
// ends the waiting. What fails on the way is retried for the time of the wait, and for 5 s at least.
func (c *Client) Lock(ctx context.Context, name string, options ...LockOption) (*Lease, error) {
	return c.lock(ctx, []string{name}, false, options)
}

// TryLock gets a lock if it is free, and says whether it was.
func (c *Client) TryLock(ctx context.Context, name string, options ...LockOption) (*Lease, bool, error) {
	lease, err := c.Lock(ctx, name, options...)
	if errors.Is(err, ErrHeld) {
		return nil, false, nil
	}
	return lease, err == nil, err
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
	lease := claim.lease(ctx, got)
	c.clock.Go(func() {
		lease.renew(func(ctx context.Context, timeout time.Duration) (time.Duration, error) {
			got, err := claim.renew(ctx, timeout)
			return got.until, err
		})
	})
	return lease, nil
}

func (c *claim) lease(ctx context.Context, got grant) *Lease {
	lead := shorter(c.ttl/4, leadMax)
	return &Lease{keeper: c.client.keeper(ctx, c.names, c.ttl, lead, got.until), claim: c, locks: got.locks}
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

// Release says whether the lease was still held. It retries for 5 s until there is a response, also where ctx is done: of
// ctx it has the values alone.
func (l *Lease) Release(ctx context.Context) (bool, error) {
	l.isEnded.Store(true)
	defer l.cancel()
	// Not before: without its stream the service would release a hold by itself.
	defer l.end()
	return l.claim.release(ctx)
}

// Close releases the lease, for defer. The error is a *LostError if the lease was lost before. A lease that is released
// is closed without error.
func (l *Lease) Close() (err error) {
	_ = l.Err()
	if !l.isEnded.Swap(true) {
		var isHeld bool
		if isHeld, err = l.Release(l.keeping); err == nil && !isHeld {
			l.record(&LostError{Reason: "expired", Detail: "it was not held when it was released"})
		}
	}
	if lost := l.Err(); lost != ErrReleased {
		return lost
	}
	return err
}

// With runs action under a lock, and releases it when action returns or panics. Its context ends with ctx, and when the
// lease is lost. The error is that of action. Where it has none and the lease was lost, the error is a *LostError.
func (c *Client) With(
	ctx context.Context, name string, action func(ctx context.Context, lease *Lease) error, options ...LockOption,
) error {
	lease, err := c.Lock(ctx, name, options...)
	if err != nil {
		return err
	}
	return lease.use(ctx, action)
}

func (l *Lease) use(ctx context.Context, action func(context.Context, *Lease) error) (err error) {
	working, end := l.during(ctx)
	defer func() {
		end()
		// The lease of a release that failed ends by itself.
		if closed := l.Close(); err == nil && errors.Is(closed, ErrLost) {
			err = closed
		}
	}()
	return action(working, l)
}

// Elect calls lead while this process holds the lock, and again when it has lost it and holds it anew. The context of lead
// ends with ctx, and a quarter of the TTL before another can lead. Elect returns the error of ctx when that is done, and
// what lead returns while it leads.
func (c *Client) Elect(
	ctx context.Context, name string, lead func(ctx context.Context, lease *Lease) error, options ...LockOption,
) error {
	options = append(options[:len(options):len(options)], Wait(WaitForever))
	for {
		lease, err := c.Lock(ctx, name, options...)
		if err != nil {
			return err
		}
		err = lease.use(ctx, lead)
		if err == nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(lease.Err(), ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}
