package keylatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Hold holds a lock by a connection: the service renews it, and frees it when this process is gone. What fails on the way is
// retried as by Lock, but with a new token after a lost response, and not with a [Token].
func (c *Client) Hold(ctx context.Context, name string, options ...LockOption) (lease *Lease, err error) {
	claim, err := c.claim([]string{name}, false, options)
	if err != nil {
		return nil, err
	}
	retrying, stop := context.WithCancel(ctx)
	defer stop()
	err = c.retry(retrying, claim.path(), claim.wait, nil, func(wait, timeout time.Duration, _ bool) (err error) {
		lease, err = claim.hold(ctx, wait, timeout)
		// When the service ends a stream that is lost it releases what the token holds, also by another stream.
		if isLost := err != nil && mayBeDone(err, false); isLost && claim.isOwn {
			stop()
		} else if isLost {
			claim.token, _ = tokenOr("")
		}
		return err
	})
	return lease, callers(ctx, claim.orHeld(err))
}

func (c *claim) hold(ctx context.Context, wait, timeout time.Duration) (*Lease, error) {
	reading, cancel := context.WithCancel(valuesOf{ctx})
	opening, opened := context.WithTimeout(ctx, timeout)
	defer opened()
	var isOpen atomic.Bool
	chosen := c.client.chosen.Load()
	go func() {
		if <-opening.Done(); !isOpen.Load() {
			cancel()
		}
	}()
	sent := c.client.clock.Now()
	opens := request{method: "POST", path: c.path() + "/hold", body: c.creation(wait), token: c.token}
	stream, err := c.client.events(reading, opens)
	if err == nil {
		var got grant
		got, err = c.heldBy(stream, sent)
		if isOpen.Store(err == nil); err == nil && opening.Err() == nil {
			lease := c.lease(ctx, got)
			c.client.clock.Go(func() { lease.follow(stream, sent) })
			c.client.clock.Go(func() { lease.outlast(cancel) })
			return lease, nil
		}
	}
	cancel()
	var problem *Problem
	var unreachable *UnreachableError
	if why := opening.Err(); why != nil && !errors.As(err, &problem) {
		if ctx.Err() == nil {
			c.client.chosen.CompareAndSwap(chosen, chosen+1)
		}
		err = &UnreachableError{Sent: !errors.As(err, &unreachable) || unreachable.Sent, Err: why}
	}
	return nil, err
}

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

func (l *Lease) follow(stream *eventStream, sent time.Duration) {
	defer stream.body.Close()
	for {
		event, data, err := stream.next()
		switch {
		case err != nil:
			l.lose(&LostError{Reason: "unreachable", Detail: fmt.Sprintf("the stream has ended: %v", err)})
			return
		case event.Type == "lost":
			loss := lossOf(data.Reason, data)
			if loss == nil {
				loss = &LostError{Reason: data.Reason, Detail: data.Detail}
			}
			l.lose(loss)
		case event.Type == "renewed" && data.WaitedMs != nil && data.ValidForMs != nil:
			l.until.Store(int64(sent + data.validity()))
		}
	}
}

// outlast sees that events renew a hold in time. Where none does, it is lost, but exclusive until its validity ends: its
// stream stays open until then, because the service frees the lock with the stream.
func (l *Lease) outlast(endStream context.CancelFunc) {
	defer endStream()
	for l.Err() == nil {
		if l.client.clock.SleepUntil(l.keeping, l.validUntil()-l.lead) != nil {
			return
		}
	}
	_ = l.client.clock.SleepUntil(l.keeping, l.validUntil())
}
