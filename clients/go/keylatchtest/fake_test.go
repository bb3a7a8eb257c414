package keylatchtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
	"github.com/keylatch/keylatch/clients/go/keylatchtest"
)

func Example() {
	fake := keylatchtest.New()
	client, ctx := fake.Client(), context.Background()
	lease, err := client.Lock(ctx, "deploy")
	if err != nil {
		panic(err)
	}
	fake.Advance(time.Hour)
	fmt.Println("after an hour:", lease.Err())
	fake.Lose("deploy")
	fmt.Println(lease.Err())
	// Output:
	// after an hour: <nil>
	// keylatch: the lease of deploy was broken by keylatchtest: the test has lost it
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWaiterGetsTheLockWhenItIsFree(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	first, err := fake.Client().Lock(ctx, "a", keylatch.Owner("ann"))
	must(t, err)
	_, err = fake.Client().Lock(ctx, "a")
	var held *keylatch.HeldError
	if !errors.As(err, &held) || held.Holder.Owner != "ann" {
		t.Fatal(err)
	}
	if _, ok, err := fake.Client().TryLock(ctx, "a"); ok || err != nil {
		t.Fatal(ok, err)
	}
	got := make(chan uint64)
	go func() {
		second, err := fake.Client().Lock(ctx, "a", keylatch.Wait(time.Minute))
		must(t, err)
		got <- second.FencingToken()
	}()
	must(t, first.Close())
	if token := <-got; token <= first.FencingToken() {
		t.Error(token)
	}
}

func TestWaitEndsWithTheTimeOfTheTest(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	_, err := fake.Client().Lock(ctx, "a")
	must(t, err)
	done := make(chan error)
	go func() {
		_, err := fake.Client().Lock(ctx, "a", keylatch.Wait(time.Minute))
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if !errors.Is(err, keylatch.ErrHeld) {
				t.Error(err)
			}
			return
		default:
			fake.Advance(10 * time.Second)
		}
	}
}

func TestCancelledWaiterIsGone(t *testing.T) {
	fake := keylatchtest.New()
	lease, err := fake.Client().Lock(context.Background(), "a")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := fake.Client().Lock(ctx, "a", keylatch.Wait(time.Minute))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, lease.Close())
	if _, ok, err := fake.Client().TryLock(context.Background(), "a"); !ok {
		t.Error(err)
	}
}

func TestSetsReadersAndLimits(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	set, err := fake.Client().LockAll(ctx, []string{"a", "b"})
	must(t, err)
	fake.Advance(time.Minute)
	if _, ok, _ := fake.Client().TryLock(ctx, "b"); ok || len(set.FencingTokens()) != 2 {
		t.Error("b is free")
	}
	must(t, set.Close())
	for range []int{1, 2} {
		_, err := fake.Client().Lock(ctx, "a", keylatch.Limit(2))
		must(t, err)
	}
	if _, ok, _ := fake.Client().TryLock(ctx, "a", keylatch.Limit(2)); ok {
		t.Error("there are three")
	}
	_, err = fake.Client().Lock(ctx, "b", keylatch.Limit(0))
	var problem *keylatch.Problem
	if !errors.As(err, &problem) {
		t.Error(err)
	}
}

func TestWithTellsTheLossAndKeepsTheError(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	own := errors.New("own")
	for _, end := range []error{nil, own} {
		err := fake.Client().With(ctx, "a", func(ctx context.Context, lease *keylatch.Lease) error {
			fake.Lose("a")
			<-ctx.Done()
			return end
		})
		var lost *keylatch.LostError
		if end != nil && err != own || end == nil && !errors.As(err, &lost) {
			t.Error(end, err)
		}
	}
}

func TestOneLeadsAndLeadsAgain(t *testing.T) {
	fake := keylatchtest.New()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leads := make(chan uint64)
	done := make(chan error)
	go func() {
		done <- fake.Client().Elect(ctx, "leader", func(ctx context.Context, lease *keylatch.Lease) error {
			leads <- lease.FencingToken()
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	first := <-leads
	fake.Advance(time.Hour)
	fake.Lose("leader")
	if second := <-leads; second <= first {
		t.Error(first, second)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if shown, err := fake.Client().Show(context.Background(), "leader"); shown != nil || err != nil {
		t.Error("it still leads", shown, err)
	}
}

func TestOnceOverTheFake(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	client := fake.Client()
	do := func(key string, end error, options ...keylatch.OnceOption) (string, bool, error) {
		ran := false
		answer, err := client.Once(ctx, key, func(ctx context.Context) (keylatch.Answer, error) {
			ran = true
			fake.Advance(time.Hour)
			if end != nil {
				return keylatch.Answer{}, end
			}
			return keylatch.JSON(201, map[string]int{"n": 1})
		}, options...)
		return string(answer.Body), ran, err
	}
	_, ran, err := do("k", nil)
	if !ran || err != nil {
		t.Error(ran, err)
	}
	if body, ran, err := do("k", nil); ran || err != nil || body != `{"n":1}` {
		t.Error(body, ran, err)
	}
	for key, options := range map[string][]keylatch.OnceOption{"nothing": nil, "rerun": {keylatch.OnCrash("rerun")}} {
		for range []int{1, 2} {
			if _, ran, err := do(key, fmt.Errorf("no: %w", keylatch.ErrNothingDone), options...); !ran || !errors.Is(err, keylatch.ErrNothingDone) {
				t.Error(key, ran, err)
			}
		}
	}
	_, _, _ = do("failed", errors.New("half way"))
	var problem *keylatch.Problem
	if _, ran, err := do("failed", nil); ran || !errors.As(err, &problem) || problem.Code != "outcome-unknown" {
		t.Error(ran, err)
	}
	if _, _, err := do("k", nil, keylatch.Fingerprint("other")); !errors.As(err, &problem) || problem.Code != "idempotency-key-reused" {
		t.Error(err)
	}
}

func TestRunThatEndsItselfIsNotEndedAgain(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	ran := 0
	for range []int{1, 2} {
		_, err := fake.Client().Once(ctx, "k", func(ctx context.Context) (keylatch.Answer, error) {
			ran++
			return keylatch.Answer{}, keylatch.RunOf(ctx).Abandon(ctx)
		})
		must(t, err)
	}
	if ran != 2 {
		t.Error(ran)
	}
}

func TestDuplicateWaitsForTheFirst(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	run, err := fake.Client().Begin(ctx, "k")
	must(t, err)
	if _, err := fake.Client().Begin(ctx, "k"); err == nil {
		t.Error("it is begun twice")
	}
	got := make(chan *keylatch.Run)
	go func() {
		other, err := fake.Client().Begin(ctx, "k", keylatch.AwaitRun(time.Minute))
		must(t, err)
		got <- other
	}()
	must(t, run.Complete(ctx, keylatch.Answer{Body: []byte("\xff done")}))
	if other := <-got; string(other.Answer.Body) != "\xff done" {
		t.Error(other.Answer)
	}
}

func TestRunThatIsLeftIsUnknownAfterItsLease(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	for key, options := range map[string][]keylatch.OnceOption{"unknown": nil, "rerun": {keylatch.OnCrash("rerun")}} {
		run, err := fake.Client().Begin(ctx, key, options...)
		must(t, err)
		run.Leave()
		fake.Advance(31 * time.Second)
		_, err = fake.Client().Begin(ctx, key, options...)
		if isFree := err == nil; isFree != (key == "rerun") {
			t.Error(key, err)
		}
	}
}

func TestElectWaitsForeverAlsoWithAWait(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	first, err := fake.Client().Lock(ctx, "leader")
	must(t, err)
	done := make(chan error)
	go func() {
		lead := func(context.Context, *keylatch.Lease) error { return nil }
		done <- fake.Client().Elect(ctx, "leader", lead, keylatch.Wait(0))
	}()
	select {
	case err := <-done:
		t.Fatal(err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, first.Close())
	must(t, <-done)
}

func TestElectReturnsTheLossOfAnInnerLock(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	client, times := fake.Client(), 0
	err := client.Elect(ctx, "leader", func(ctx context.Context, _ *keylatch.Lease) error {
		if times++; times == 2 {
			return errors.New("it leads again")
		}
		return client.With(ctx, "inner", func(context.Context, *keylatch.Lease) error {
			fake.Lose("inner")
			return nil
		})
	})
	var lost *keylatch.LostError
	if !errors.As(err, &lost) || lost.Names[0] != "inner" {
		t.Error(err)
	}
}

func TestNamesMayLookLikeSteps(t *testing.T) {
	fake, ctx := keylatchtest.New(), context.Background()
	for _, name := range []string{"ci/break", "ci/hold", "a b+c%"} {
		lease, err := fake.Client().Lock(ctx, name)
		must(t, err)
		if shown, err := fake.Client().Show(ctx, name); err != nil || shown == nil {
			t.Error(name, shown, err)
		}
		fake.Lose(name)
		if lease.Err() == nil {
			t.Error(name, "is not lost")
		}
	}
	for _, key := range []string{"mail/fail", "mail/renew", "mail"} {
		run, err := fake.Client().Begin(ctx, key)
		must(t, err)
		fake.Advance(time.Minute)
		must(t, run.Complete(ctx, keylatch.Answer{}))
	}
}

func TestFakeHasNoStreams(t *testing.T) {
	client, ctx := keylatchtest.New().Client(), context.Background()
	_, held := client.Hold(ctx, "a")
	for _, err := range []error{held, client.Watch(ctx, "a", nil)} {
		var problem *keylatch.Problem
		if !errors.As(err, &problem) || problem.Status != 501 {
			t.Error(err)
		}
	}
}
