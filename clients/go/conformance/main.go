// The program that carries out the commands of clients/conformance with this client.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

type command struct {
	ID          int      `json:"id"`
	Do          string   `json:"do"`
	Lease       string   `json:"lease"`
	Watch       string   `json:"watch"`
	Run         string   `json:"run"`
	Key         string   `json:"key"`
	Name        string   `json:"name"`
	Names       []string `json:"names"`
	TTLMs       *int64   `json:"ttl_ms"`
	WaitMs      int64    `json:"wait_ms"`
	MaxAhead    *int     `json:"max_ahead"`
	LeaseMs     int64    `json:"lease_ms"`
	RetentionMs int64    `json:"retention_ms"`
	TakeMs      int64    `json:"take_ms"`
	Owner       string   `json:"owner"`
	Limit       any      `json:"limit"`
	Entry       string   `json:"entry"`
	Token       string   `json:"token"`
	Reason      string   `json:"reason"`
	By          string   `json:"by"`
	Detail      string   `json:"detail"`
	Fingerprint string   `json:"fingerprint"`
	OnCrash     string   `json:"on_crash"`
	Status      int      `json:"status"`
	Body        string   `json:"body"`
	Bytes       int      `json:"bytes"`
	End         string   `json:"end"`
	Users       int      `json:"users"`
	APIKey      string   `json:"api_key"`
	URL         string   `json:"url"`
	CA          string   `json:"ca"`
	Scope       *struct {
		Method    string `json:"method"`
		Path      string `json:"path"`
		Principal string `json:"principal"`
	} `json:"scope"`
}

// millis is a duration of the commands.
func millis(duration int64) time.Duration { return time.Duration(duration) * time.Millisecond }

type object map[string]any

type program struct {
	client  *keylatch.Client
	mutex   sync.Mutex
	leases  map[string]*keylatch.Lease
	runs    map[string]*keylatch.Run
	watches map[string]context.CancelFunc
	blocks  map[string]*block
}

func (p *program) say(line object) {
	text, _ := json.Marshal(line)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	fmt.Println(string(text))
}

func (c command) options() []keylatch.LockOption {
	options := []keylatch.LockOption{
		keylatch.Wait(millis(c.WaitMs)), keylatch.Entry(c.Entry), keylatch.Token(c.Token),
	}
	if c.MaxAhead != nil {
		options = append(options, keylatch.MaxAhead(*c.MaxAhead))
	}
	if c.TTLMs != nil {
		options = append(options, keylatch.TTL(millis(*c.TTLMs)))
	}
	if c.Owner != "" {
		options = append(options, keylatch.Owner(c.Owner))
	}
	switch limit := c.Limit.(type) {
	case string:
		options = append(options, keylatch.Shared())
	case float64:
		options = append(options, keylatch.Limit(int(limit)))
	}
	return options
}

func (c command) runOptions() []keylatch.OnceOption {
	options := []keylatch.OnceOption{keylatch.AwaitRun(millis(c.WaitMs))}
	if c.Fingerprint != "" {
		options = append(options, keylatch.Fingerprint(c.Fingerprint))
	}
	if c.LeaseMs > 0 {
		options = append(options, keylatch.RunLease(millis(c.LeaseMs)))
	}
	if c.RetentionMs > 0 {
		options = append(options, keylatch.Retention(millis(c.RetentionMs)))
	}
	if c.OnCrash != "" {
		options = append(options, keylatch.OnCrash(c.OnCrash))
	}
	if c.Scope != nil {
		options = append(options, keylatch.Scope(c.Scope.Method, c.Scope.Path), keylatch.Principal(c.Scope.Principal))
	}
	return options
}

// keep remembers a lease and says when it is lost; or says who holds the lock.
func (p *program) keep(c command, lease *keylatch.Lease, err error) (object, error) {
	var held *keylatch.HeldError
	if errors.As(err, &held) {
		holder := object{"name": held.Name}
		if held.Holder != nil {
			holder["owner"] = held.Holder.Owner
		}
		return object{"held": holder}, nil
	}
	if err != nil {
		return nil, err
	}
	p.mutex.Lock()
	p.leases[c.Lease] = lease
	p.mutex.Unlock()
	p.tellLoss(c, lease)
	shown := object{"fencing_token": lease.FencingToken(), "fencing_tokens": lease.FencingTokens(), "token": lease.Token()}
	if slot, isCounted := lease.Slot(); isCounted {
		shown["slot"] = slot
	}
	return shown, nil
}

func (p *program) tellLoss(c command, lease *keylatch.Lease) {
	done := lease.Context().Done()
	go func() {
		<-done
		var lost *keylatch.LostError
		if errors.As(lease.Err(), &lost) {
			event := object{"event": "lost", "lease": c.Lease, "reason": lost.Reason}
			if lost.By != "" {
				event["by"] = lost.By
			}
			p.say(event)
		}
	}()
}

func (p *program) lease(c command) *keylatch.Lease {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.leases[c.Lease]
}

func (p *program) carryOut(ctx context.Context, c command) (object, error) {
	switch c.Do {
	case "lock":
		lease, err := p.client.Lock(ctx, c.Name, c.options()...)
		return p.keep(c, lease, err)
	case "lock_set":
		lease, err := p.client.LockAll(ctx, c.Names, c.options()...)
		return p.keep(c, lease, err)
	case "hold":
		lease, err := p.client.Hold(ctx, c.Name, c.options()...)
		return p.keep(c, lease, err)
	case "release":
		released, err := p.lease(c).Release(ctx)
		return object{"released": released}, err
	case "lease":
		return object{"lost": errors.Is(p.lease(c).Err(), keylatch.ErrLost)}, nil
	case "show":
		shown, err := p.client.Show(ctx, c.Name)
		if shown == nil || err != nil {
			return object{"held": nil}, err
		}
		holder := shown.Holders[0]
		answer := object{"owner": holder.Owner, "fencing_token": holder.FencingToken, "waiting": shown.Waiting}
		answer["expires_in_ms"] = holder.ExpiresInMs
		return answer, nil
	case "break":
		var options []keylatch.BreakOption
		if c.By != "" {
			options = append(options, keylatch.By(c.By))
		}
		_, err := p.client.Break(ctx, c.Name, c.Reason, options...)
		return object{}, err
	case "ask":
		return object{"passed_when_over": ask(p.lease(c))}, nil
	case "make_client":
		return makeClient(c)
	case "work", "run", "cancel", "finish", "shared", "shared_once":
		return p.carryOutBlock(ctx, c)
	case "watch", "unwatch":
		return p.watch(ctx, c)
	}
	return p.carryOutRun(ctx, c)
}

func (p *program) watch(ctx context.Context, c command) (object, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if c.Do == "unwatch" {
		p.watches[c.Watch]()
		return object{}, nil
	}
	watching, cancel := context.WithCancel(ctx)
	p.watches[c.Watch] = cancel
	go func() {
		_ = p.client.Watch(watching, c.Name, func(event keylatch.Event) {
			p.say(object{"event": "change", "watch": c.Watch, "type": event.Type})
		})
	}()
	return object{}, nil
}

func (p *program) carryOutRun(ctx context.Context, c command) (object, error) {
	switch c.Do {
	case "begin":
		run, err := p.client.Begin(ctx, c.Key, c.runOptions()...)
		if err != nil {
			return nil, err
		}
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.runs[c.Run] = run
		if run.Answer != nil {
			return done(*run.Answer), nil
		}
		return object{"state": "begun", "fencing_token": run.FencingToken}, nil
	case "complete", "abandon", "fail":
		p.mutex.Lock()
		run := p.runs[c.Run]
		p.mutex.Unlock()
		switch c.Do {
		case "abandon":
			return object{}, run.Abandon(ctx)
		case "fail":
			return object{}, run.Fail(ctx, c.Detail)
		}
		body := []byte(c.Body)
		for at := 0; at < c.Bytes; at++ {
			body = append(body, byte(at%251))
		}
		return object{}, run.Complete(ctx, keylatch.Answer{Status: c.Status, Body: body})
	case "once":
		isReplayed := true
		answer, err := p.client.Once(ctx, c.Key, func(context.Context) (keylatch.Answer, error) {
			isReplayed = false
			time.Sleep(millis(c.TakeMs))
			return keylatch.Answer{Body: []byte(c.Body)}, nil
		}, append(c.runOptions(), keylatch.AwaitRun(10*time.Second))...)
		return object{"body": string(answer.Body), "replayed": isReplayed}, err
	}
	return nil, fmt.Errorf("there is no command %q", c.Do)
}

// done shows a kept answer.
func done(answer keylatch.Answer) object {
	headers := object{}
	for name, values := range answer.Headers {
		headers[strings.ToLower(name)] = values
	}
	shown := object{"state": "done", "status": answer.Status, "headers": headers}
	switch {
	case utf8.Valid(answer.Body):
		shown["body"] = string(answer.Body)
	case len(answer.Body) > 1000:
		shown["size"], shown["sha256"] = len(answer.Body), fmt.Sprintf("%x", sha256.Sum256(answer.Body))
	default:
		shown["body_base64"] = answer.Body
	}
	return shown
}

func (p *program) answer(ctx context.Context, c command) {
	ok, err := p.carryOut(ctx, c)
	var problem *keylatch.Problem
	var unreachable *keylatch.UnreachableError
	var settings settingsError
	switch {
	case errors.As(err, &settings):
		p.say(object{"id": c.ID, "error": object{"kind": "settings", "text": err.Error()}})
	case err == nil:
		p.say(object{"id": c.ID, "ok": ok})
	case errors.As(err, &problem):
		p.say(object{"id": c.ID, "error": object{"kind": "problem", "code": problem.Code, "retry": problem.Retry()}})
	case errors.As(err, &unreachable) && !unreachable.Sent:
		p.say(object{"id": c.ID, "error": object{"kind": "unreachable"}})
	case errors.As(err, &unreachable):
		p.say(object{"id": c.ID, "error": object{"kind": "unknown-effect"}})
	default:
		p.say(object{"id": c.ID, "error": object{"kind": err.Error()}})
	}
}

// trace is the key of the value by which a context says to which trace its requests belong.
type trace struct{}

// options are what a scenario asks for.
func options() []keylatch.Option {
	options := []keylatch.Option{keylatch.Traceparent(func(ctx context.Context) string {
		of, _ := ctx.Value(trace{}).(string)
		return of
	})}
	if file := os.Getenv("CONFORMANCE_CA"); file != "" {
		options = append(options, keylatch.CA(file))
	}
	if file := os.Getenv("CONFORMANCE_CERT"); file != "" {
		options = append(options, keylatch.Certificate(file, os.Getenv("CONFORMANCE_KEY")))
	}
	if silence, err := strconv.Atoi(os.Getenv("CONFORMANCE_SILENCE_MS")); err == nil {
		options = append(options, keylatch.Silence(time.Duration(silence)*time.Millisecond))
	}
	return options
}

func main() {
	client, err := keylatch.New(options()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	p := &program{
		client: client, leases: map[string]*keylatch.Lease{},
		runs: map[string]*keylatch.Run{}, watches: map[string]context.CancelFunc{},
		blocks: map[string]*block{},
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if json.Unmarshal(lines.Bytes(), &c) != nil || c.Do == "stop" {
			return
		}
		go p.answer(context.WithValue(context.Background(), trace{}, os.Getenv("TRACEPARENT")), c)
	}
}
