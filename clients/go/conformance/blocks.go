package main

import (
	"context"
	"errors"
	"sync"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

// block is a With or a Once under way.
type block struct {
	cancel   context.CancelFunc
	finished chan struct{}
}

// errOwn is the error of a block, and what it panics with.
var errOwn = errors.New("an error of the caller's own")

// settingsError is one of New.
type settingsError struct{ error }

func makeClient(c command) (object, error) {
	var options []keylatch.Option
	if c.APIKey != "" {
		options = append(options, keylatch.APIKey(c.APIKey))
	}
	if c.URL != "" {
		options = append(options, keylatch.URL(c.URL))
	}
	if c.CA != "" {
		options = append(options, keylatch.CA(c.CA))
	}
	if _, err := keylatch.New(options...); err != nil {
		return nil, settingsError{err}
	}
	return object{"made": true}, nil
}

// ask counts how often a lease says that it is not lost although it was over before.
func ask(lease *keylatch.Lease) int {
	passed := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		left := lease.ValidFor()
		if lease.Err() != nil {
			break
		}
		if left == 0 {
			passed++
		}
	}
	return passed
}

func (p *program) carryOutBlock(ctx context.Context, c command) (object, error) {
	switch c.Do {
	case "work":
		return p.block(ctx, c, p.work)
	case "run":
		return p.block(ctx, c, p.run)
	case "shared":
		return p.shared(ctx, c)
	case "shared_once":
		return p.sharedOnce(ctx, c)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if of := p.blocks[c.Lease+c.Run]; c.Do == "cancel" {
		of.cancel()
	} else {
		close(of.finished)
	}
	return object{}, nil
}

// block carries out a block, and says what came out of it.
func (p *program) block(
	ctx context.Context, c command, do func(context.Context, command, *block) (object, error),
) (ended object, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	of := &block{cancel: cancel, finished: make(chan struct{})}
	p.mutex.Lock()
	p.blocks[c.Lease+c.Run] = of
	p.mutex.Unlock()
	defer func() {
		if what := recover(); what == errOwn {
			ended, err = object{"ended": "threw"}, nil
		} else if what != nil {
			panic(what)
		}
	}()
	ended, err = do(ctx, c, of)
	switch {
	case err == nil:
		return ended, nil
	case err == errOwn || errors.Is(err, keylatch.ErrNothingDone):
		return object{"ended": "threw"}, nil
	case errors.Is(err, keylatch.ErrHeld):
		return object{"ended": "held"}, nil
	case errors.Is(err, keylatch.ErrLost):
		return object{"ended": "lost"}, nil
	case errors.Is(err, context.Canceled):
		return object{"ended": "cancelled"}, nil
	}
	return nil, err
}

// end is what a block ends with.
func (c command) ending() error {
	switch c.End {
	case "throw":
		return errOwn
	case "panic":
		panic(errOwn)
	case "nothing-done":
		return keylatch.ErrNothingDone
	}
	return nil
}

func (p *program) work(ctx context.Context, c command, of *block) (object, error) {
	return object{"ended": "returned"}, p.client.With(ctx, c.Name, func(_ context.Context, lease *keylatch.Lease) error {
		p.tellLoss(c, lease)
		p.say(object{"event": "working", "lease": c.Lease})
		select {
		case <-of.finished:
		case <-ctx.Done():
			return ctx.Err()
		}
		return c.ending()
	}, c.options()...)
}

func (p *program) run(ctx context.Context, c command, of *block) (object, error) {
	ended := "replayed"
	answer, err := p.client.Once(ctx, c.Key, func(context.Context) (keylatch.Answer, error) {
		ended = "returned"
		p.say(object{"event": "working", "run": c.Run})
		select {
		case <-of.finished:
		case <-ctx.Done():
		}
		return keylatch.Answer{Body: []byte(c.Body)}, c.ending()
	}, c.runOptions()...)
	return object{"ended": ended, "body": string(answer.Body)}, err
}

// shared enters a lock with one set of options from all goroutines.
func (p *program) shared(ctx context.Context, c command) (object, error) {
	var mutex sync.Mutex
	inside, most, tokens := 0, 0, []uint64{}
	options := c.options()
	err := p.atOnce(c.Users, func() error {
		return p.client.With(ctx, c.Name, func(_ context.Context, lease *keylatch.Lease) error {
			mutex.Lock()
			inside++
			if inside > most {
				most = inside
			}
			tokens = append(tokens, lease.FencingToken())
			mutex.Unlock()
			time.Sleep(millis(c.TakeMs))
			mutex.Lock()
			defer mutex.Unlock()
			inside--
			return nil
		}, options...)
	})
	return object{"at_once": most, "fencing_tokens": tokens}, err
}

func (p *program) sharedOnce(ctx context.Context, c command) (object, error) {
	var mutex sync.Mutex
	ran := 0
	options := []keylatch.OnceOption{keylatch.AwaitRun(20 * time.Second)}
	err := p.atOnce(c.Users, func() error {
		_, err := p.client.Once(ctx, c.Key, func(context.Context) (keylatch.Answer, error) {
			mutex.Lock()
			ran++
			mutex.Unlock()
			time.Sleep(millis(c.TakeMs))
			return keylatch.Answer{}, nil
		}, options...)
		return err
	})
	return object{"ran": ran}, err
}

// atOnce runs as many at once, and gives an error of one of them.
func (p *program) atOnce(users int, run func() error) (err error) {
	errs := make(chan error, users)
	for at := 0; at < users; at++ {
		go func() { errs <- run() }()
	}
	for at := 0; at < users; at++ {
		if failed := <-errs; failed != nil {
			err = failed
		}
	}
	return err
}
