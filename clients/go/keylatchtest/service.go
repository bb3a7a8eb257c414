package keylatchtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// object is the body of a request or of a response.
type object map[string]any

func (o object) span(member string) time.Duration {
	millis, _ := o[member].(float64)
	return time.Duration(millis) * time.Millisecond
}

// kept is what a token has: a lock, or the run of a key.
type kept struct {
	token     string
	fence     uint64
	until     time.Duration
	asked     object
	answer    object
	isUnknown bool
}

func problem(status int, code, retry string, more object) (int, object) {
	said := object{"code": code, "detail": "The fake says " + code + ".", "retry": retry}
	for member, value := range more {
		said[member] = value
	}
	return status, said
}

// answer carries a request out.
func (f *Fake) answer(r *http.Request, body []byte) (int, object) {
	asked, set := object{}, struct{ Names []string }{}
	_, _ = json.Unmarshal(body, &asked), json.Unmarshal(body, &set)
	token, path := r.Header.Get("Lock-Token"), r.URL.EscapedPath()
	if key := strings.TrimPrefix(path, "/v1/idempotency/"); key != path {
		key, step, _ := strings.Cut(key, "/")
		return f.answerOfRun(r, key+"?"+r.URL.RawQuery, step, token, asked)
	}
	name, step, _ := strings.Cut(strings.TrimPrefix(path, "/v1/locks/"), "/")
	name, _ = url.PathUnescape(name)
	names := []string{name}
	if path == "/v1/locks" {
		names = append(set.Names, r.URL.Query()["name"]...)
	}
	switch {
	case step == "hold" || step == "events":
		return problem(501, "not-supported", "never", nil)
	case step == "break":
		f.breakLock(name)
		return 200, object{}
	case r.Method == http.MethodPost:
		return f.create(r, names, token, asked)
	case r.Method == http.MethodGet && len(f.holders[name]) == 0:
		return problem(404, "lock-not-held", "never", nil)
	case r.Method == http.MethodGet:
		return 200, object{"name": name, "holders": f.shown(name)}
	}
	for _, name := range names {
		mine := f.of(name, token)
		if mine == nil && f.broken[token] {
			why := object{"reason": "the test has lost it", "by": "keylatchtest"}
			return problem(409, "lock-broken", "never", object{"broken": why})
		} else if mine == nil {
			return problem(404, "lock-not-held", "never", nil)
		}
		// A release has no TTL.
		mine.until = f.at + asked.span("ttl_ms")
	}
	if r.Method == http.MethodDelete {
		f.expire()
		return 200, object{}
	}
	return 200, f.grant(names, token, f.at)
}

func (f *Fake) create(r *http.Request, names []string, token string, asked object) (int, object) {
	if limit, isLimited := asked["limit"].(float64); asked.span("ttl_ms") <= 0 || isLimited && limit <= 0 {
		return problem(400, "invalid-body", "never", nil)
	}
	began, end := f.at, f.at+asked.span("wait_ms")
	f.await(r.Context(), func() bool { return f.inTheWay(names, token, asked) == "" || f.at >= end })
	if name := f.inTheWay(names, token, asked); name != "" || r.Context().Err() != nil {
		said := object{"name": name, "holders": f.shown(name), "waited_ms": (f.at - began).Milliseconds()}
		return problem(409, "lock-held", "same-key", said)
	}
	f.fence++
	for _, name := range names {
		mine := f.of(name, token)
		if mine == nil {
			mine = &kept{token: token, fence: f.fence, asked: asked}
			f.holders[name] = append(f.holders[name], mine)
		}
		mine.until = f.at + asked.span("ttl_ms")
	}
	return 201, f.grant(names, token, began)
}

// inTheWay is the first lock that is not to be had, if there is one.
func (f *Fake) inTheWay(names []string, token string, asked object) string {
	limit, isLimited := asked["limit"].(float64)
	for _, name := range names {
		held := f.holders[name]
		isShared := len(held) > 0 && held[0].asked["mode"] == "shared" && asked["mode"] == "shared"
		hasRoom := len(held) == 0 || isShared && (!isLimited || len(held) < int(limit))
		if !hasRoom && f.of(name, token) == nil {
			return name
		}
	}
	return ""
}

func (f *Fake) of(name, token string) *kept {
	for _, holder := range f.holders[name] {
		if holder.token == token {
			return holder
		}
	}
	return nil
}

func (f *Fake) grant(names []string, token string, began time.Duration) object {
	locks := make([]object, len(names))
	for at, name := range names {
		locks[at] = object{"name": name, "fencing_token": f.of(name, token).fence}
	}
	first := f.of(names[0], token)
	return object{
		"name": names[0], "fencing_token": first.fence, "locks": locks, "token": token,
		"waited_ms": (f.at - began).Milliseconds(), "valid_for_ms": (first.until - f.at).Milliseconds(),
	}
}

func (f *Fake) shown(name string) []object {
	var shown []object
	for _, holder := range f.holders[name] {
		left := (holder.until - f.at).Milliseconds()
		shown = append(shown, object{"owner": holder.asked["owner"], "fencing_token": holder.fence, "expires_in_ms": left})
	}
	return shown
}

func (f *Fake) breakLock(name string) {
	for _, holder := range f.holders[name] {
		f.broken[holder.token] = true
	}
	delete(f.holders, name)
}

// expire ends what is over by now.
func (f *Fake) expire() {
	for name, held := range f.holders {
		var left []*kept
		for _, holder := range held {
			if holder.until > f.at {
				left = append(left, holder)
			}
		}
		f.holders[name] = left
	}
	for key, run := range f.runs {
		if run.until <= f.at && run.answer == nil {
			run.isUnknown = true
			if run.asked["on_crash"] == "rerun" {
				delete(f.runs, key)
			}
		}
	}
}

func (f *Fake) answerOfRun(r *http.Request, key, step, token string, asked object) (int, object) {
	run := f.runs[key]
	switch {
	case r.Method == http.MethodPost && step == "":
		return f.begin(r, key, token, asked)
	case run == nil:
		return problem(404, "no-record", "never", nil)
	case run.token != token || run.isUnknown || run.answer != nil:
		return problem(412, "token-mismatch", "never", nil)
	case r.Method == http.MethodDelete:
		delete(f.runs, key)
	case r.Method == http.MethodPut:
		run.answer = asked
	case step == "fail":
		run.isUnknown = true
	default:
		run.until = f.at + run.asked.span("lease_ms")
	}
	return 200, object{}
}

func (f *Fake) begin(r *http.Request, key, token string, asked object) (int, object) {
	seconds, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("Prefer"), "wait="))
	end := f.at + time.Duration(seconds)*time.Second
	f.await(r.Context(), func() bool {
		run := f.runs[key]
		return run == nil || run.isUnknown || run.answer != nil || run.token == token || f.at >= end
	})
	run := f.runs[key]
	switch {
	case run == nil:
		f.fence++
		run = &kept{token: token, fence: f.fence, until: f.at + asked.span("lease_ms"), asked: asked}
		f.runs[key] = run
	case run.asked["fingerprint"] != asked["fingerprint"]:
		return problem(422, "idempotency-key-reused", "new-key", nil)
	case run.isUnknown:
		return problem(409, "outcome-unknown", "never", nil)
	case run.answer != nil:
		return 200, object{"state": "done", "fencing_token": run.fence, "answer": run.answer}
	case run.token != token:
		return problem(409, "request-in-progress", "same-key", nil)
	}
	return 201, object{"state": "in-flight", "fencing_token": run.fence, "token": token}
}
