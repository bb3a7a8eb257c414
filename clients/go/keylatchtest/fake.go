// Package keylatchtest has a keylatch in this process, for the tests of a program that uses one: without a network, with a
// time that the test moves and leases that it can lose. The client is the real one.
//
//	fake := keylatchtest.New()
//	client := fake.Client()
//	lease, err := client.Lock(ctx, "deploy")
//	fake.Advance(time.Hour) // the lease is renewed
//	fake.Lose("deploy")     // lease.Context() is done
//
// It has locks, sets of locks and things done once, but no holds, watches, slots and entries by name. Who waits longest
// need not be the next.
package keylatchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

// Fake is a keylatch. Its clients may be used by several goroutines.
type Fake struct {
	mutex sync.Mutex
	// changed is told of every change of what follows.
	changed  *sync.Cond
	at       time.Duration
	sleepers map[*sleeper]bool
	// running is how many of the goroutines beside the callers do not sleep.
	running int
	fence   uint64
	holders map[string][]*kept
	broken  map[string]bool // by token
	runs    map[string]*kept
}

type sleeper struct {
	then    time.Duration
	isAwake bool
}

// New makes a keylatch in which nothing is held.
func New() *Fake {
	fake := &Fake{
		sleepers: map[*sleeper]bool{}, holders: map[string][]*kept{}, broken: map[string]bool{},
		runs: map[string]*kept{},
	}
	fake.changed = sync.NewCond(&fake.mutex)
	return fake
}

// Client is a client of the fake, as another process has one.
func (f *Fake) Client(options ...keylatch.Option) *keylatch.Client {
	client, err := keylatch.New(append([]keylatch.Option{
		keylatch.URL("http://keylatch.test"), keylatch.HTTPClient(&http.Client{Transport: f}), keylatch.UseClock(f),
	}, options...)...)
	if err != nil {
		panic(err)
	}
	return client
}

// Advance lets time pass, in which clients renew what they hold.
func (f *Fake) Advance(by time.Duration) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for end, isOver := f.at+by, false; !isOver; {
		f.settle()
		next := end
		for s := range f.sleepers {
			if s.then < next {
				next = s.then
			}
		}
		f.at, isOver = next, next == end
		for s := range f.sleepers {
			if s.then <= next {
				f.wake(s)
			}
		}
		f.expire()
	}
	f.settle()
}

// Lose breaks the leases of a lock, and lets their holders know.
func (f *Fake) Lose(name string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.settle()
	f.breakLock(name)
	// A renewal tells them.
	for s := range f.sleepers {
		f.wake(s)
	}
	f.settle()
}

// settle waits until what clients do beside their callers is done or sleeps.
func (f *Fake) settle() {
	f.changed.Broadcast()
	for f.running > 0 {
		f.changed.Wait()
	}
}

func (f *Fake) wake(s *sleeper) {
	s.isAwake = true
	delete(f.sleepers, s)
	f.running++
}

// Now is the time of the fake.
func (f *Fake) Now() time.Duration {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.at
}

// Go runs what a client does beside its caller.
func (f *Fake) Go(run func()) {
	f.mutex.Lock()
	f.running++
	f.mutex.Unlock()
	go func() {
		run()
		f.mutex.Lock()
		defer f.mutex.Unlock()
		f.running--
		f.changed.Broadcast()
	}()
}

// SleepUntil waits until the test has moved the time.
func (f *Fake) SleepUntil(ctx context.Context, then time.Duration) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.at < then && ctx.Err() == nil {
		s := &sleeper{then: then}
		f.sleepers[s] = true
		f.running--
		f.await(ctx, func() bool { return s.isAwake })
		if !s.isAwake {
			f.wake(s)
		}
	}
	return ctx.Err()
}

// await waits until that is so, or the context is done.
func (f *Fake) await(ctx context.Context, isSo func() bool) {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ctx.Done():
			f.mutex.Lock()
			defer f.mutex.Unlock()
			f.changed.Broadcast()
		case <-over:
		}
	}()
	f.changed.Broadcast()
	for !isSo() && ctx.Err() == nil {
		f.changed.Wait()
	}
}

// RoundTrip gives the response to a request.
func (f *Fake) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	f.mutex.Lock()
	status, said := f.answer(r, body)
	f.changed.Broadcast()
	f.mutex.Unlock()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(said)
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(text)), Request: r,
	}, err
}
