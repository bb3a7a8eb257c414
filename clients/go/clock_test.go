package keylatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestSleepCountsAndClockNeverGoesBack(t *testing.T) {
	var clock sleepClock
	for _, step := range []struct{ monotonic, wall, want time.Duration }{
		{10 * time.Second, 10*time.Second + 900*time.Millisecond, 10 * time.Second},
		{11 * time.Second, 71 * time.Second, 71 * time.Second},
		// The wall clock is set back.
		{12 * time.Second, -time.Hour, 72 * time.Second},
		{13 * time.Second, 133 * time.Second, 133 * time.Second},
	} {
		if got := clock.at(step.monotonic, step.wall); got != step.want {
			t.Errorf("at %v and %v: %v, not %v", step.monotonic, step.wall, got, step.want)
		}
	}
}

func TestPauseIsRandom(t *testing.T) {
	before := rand.Reader
	defer func() { rand.Reader = before }()
	rand.Reader = bytes.NewReader([]byte{0, 51, 255})
	for _, want := range []time.Duration{100, 160, 400} {
		if got := jitter(); got != want*time.Millisecond {
			t.Errorf("%v, not %v ms", got, want)
		}
	}
}

// stoppedClock wakes nobody, as a process is that was paused.
type stoppedClock struct{ at time.Duration }

func (c *stoppedClock) Now() time.Duration { return c.at }
func (c *stoppedClock) Go(func())          {}
func (c *stoppedClock) SleepUntil(ctx context.Context, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestLeaseIsLostByTheClockBeforeATimerTells(t *testing.T) {
	for name, ask := range map[string]func(*Lease) bool{
		"Err":      func(l *Lease) bool { return l.Err() != nil },
		"Context":  func(l *Lease) bool { return l.Context().Err() != nil },
		"ValidFor": func(l *Lease) bool { return l.ValidFor() == 0 && l.loss != nil },
		"an earlier Context": func(l *Lease) bool {
			return l.claim.names[0] == "a" && seen.Err() != nil
		},
	} {
		for passed, reason := range map[time.Duration]string{23 * time.Second: "unrenewed", 31 * time.Second: "paused"} {
			clock := &stoppedClock{}
			client, err := New(UseClock(clock))
			if err != nil {
				t.Fatal(err)
			}
			claim, err := client.claim([]string{"a"}, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			lease := claim.lease(context.Background(), grant{until: 30 * time.Second})
			seen = lease.Context()
			clock.at = 22 * time.Second
			if lease.Err() != nil {
				t.Fatal("lost too soon")
			}
			clock.at = passed
			if !ask(lease) || lease.loss == nil || lease.loss.Reason != reason {
				t.Errorf("%s after %v: %v", name, passed, lease.loss)
			}
			select {
			case <-seen.Done():
			default:
				t.Errorf("%s after %v: the context goes on", name, passed)
			}
		}
	}
}

var seen context.Context

// pausedClient is of a process that is stopped, so that no timer tells.
func pausedClient(t *testing.T) (*stoppedClock, *Client) {
	clock := &stoppedClock{}
	fake := roundTrip(func(r *http.Request) (*http.Response, error) {
		text := fmt.Sprintf(`{"name":"a","token":%q,"fencing_token":1,"waited_ms":0,"valid_for_ms":30000}`, r.Header.Get("Lock-Token"))
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
	})
	client, err := New(UseClock(clock), HTTPClient(&http.Client{Transport: fake}))
	if err != nil {
		t.Fatal(err)
	}
	return clock, client
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestContextOfABlockLooksAtTheClock(t *testing.T) {
	clock, client := pausedClient(t)
	see := func(ctx context.Context) error {
		if ctx.Err() != nil {
			t.Error("it is over too soon")
		}
		clock.at += time.Minute
		if ctx.Err() == nil {
			t.Error("its error is nil after a pause")
		}
		select {
		case <-ctx.Done():
		default:
			t.Error("it goes on after a pause")
		}
		return errors.New("enough")
	}
	lead := func(ctx context.Context, _ *Lease) error { return see(ctx) }
	_ = client.With(context.Background(), "a", lead)
	_, _ = client.Once(context.Background(), "k", func(ctx context.Context) (Answer, error) {
		if RunOf(ctx) == nil {
			t.Error("it has no run")
		}
		return Answer{}, see(ctx)
	}, OnCrash("rerun"))
}

func TestLeaseThatIsReleasedIsNotValid(t *testing.T) {
	_, client := pausedClient(t)
	lease, err := client.Lock(context.Background(), "a")
	if err != nil || lease.Err() != nil || lease.ValidFor() != 30*time.Second {
		t.Fatal(err, lease)
	}
	_ = lease.Close()
	if lease.Err() != ErrReleased || lease.ValidFor() != 0 || lease.Close() != nil {
		t.Error(lease.Err(), lease.ValidFor())
	}
	run, err := client.Begin(context.Background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	run.Leave()
	if run.Err() != ErrReleased || run.ValidFor() != 0 {
		t.Error(run.Err(), run.ValidFor())
	}
}
