package keylatchtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

type object map[string]any

// holder is one that holds a lock.
type holder struct {
	token, owner string
	fence        uint64
	until        time.Duration
	isShared     bool
	entered      int
}

type record struct {
	object
	token     string
	fence     uint64
	until     time.Duration
	answer    object
	isUnknown bool
}

// asked is what the bodies of requests have.
type asked struct {
	Names   []string `json:"names"`
	TTLMs   int64    `json:"ttl_ms"`
	WaitMs  int64    `json:"wait_ms"`
	Owner   string   `json:"owner"`
	Mode    string   `json:"mode"`
	Limit   *int     `json:"limit"`
	LeaseMs int64    `json:"lease_ms"`
	OnCrash string   `json:"on_crash"`
	request object
	token   string
	isSet   bool
}

func millis(count int64) time.Duration { return time.Duration(count) * time.Millisecond }

func problem(status int, code, retry string, more object) (int, object) {
	said := object{"code": code, "detail": "The fake says " + code + ".", "retry": retry}
	for member, value := range more {
		said[member] = value
	}
	return status, said
}

// answer carries a request out.
func (f *Fake) answer(r *http.Request, body []byte) (int, object) {
	ask := asked{token: r.Header.Get("Lock-Token"), request: object{}}
	_ = json.Unmarshal(body, &ask)
	_ = json.Unmarshal(body, &ask.request)
	path := r.URL.EscapedPath()
	if key := strings.TrimPrefix(path, "/v1/idempotency/"); key != path {
		return f.answerOfRecord(r, key, ask)
	}
	name, step, _ := strings.Cut(strings.TrimPrefix(path, "/v1/locks/"), "/")
	name, _ = url.PathUnescape(name)
	if ask.isSet = path == "/v1/locks"; !ask.isSet {
		ask.Names = []string{name}
	} else if r.Method == http.MethodDelete {
		ask.Names = r.URL.Query()["name"]
	}
	switch {
	case step == "hold" || step == "events":
		return problem(501, "not-supported", "never", nil)
	case step == "break":
		f.breakLock(name)
		return 200, object{}
	case r.Method == http.MethodPost && (ask.TTLMs <= 0 || ask.Limit != nil && *ask.Limit <= 0):
		return problem(400, "invalid-body", "never", nil)
	case r.Method == http.MethodPost:
		return f.create(r, ask)
	case r.Method == http.MethodGet && len(f.holders[name]) == 0:
		return problem(404, "lock-not-held", "never", nil)
	case r.Method == http.MethodGet:
		return 200, object{"name": name, "holders": f.shown(name)}
	}
	for _, name := range ask.Names {
		if f.of(name, ask.token) == nil && f.broken[ask.token] {
			why := object{"reason": "the test has lost it", "by": "keylatchtest"}
			return problem(409, "lock-broken", "never", object{"broken": why})
		} else if f.of(name, ask.token) == nil {
			return problem(404, "lock-not-held", "never", nil)
		}
	}
	for _, name := range ask.Names {
		mine := f.of(name, ask.token)
		if r.Method == http.MethodPut {
			mine.until = f.at + millis(ask.TTLMs)
		} else if mine.entered--; mine.entered == 0 {
			mine.until = 0
		}
	}
	f.expire()
	if r.Method == http.MethodDelete {
		return 200, object{}
	}
	return 200, f.grant(ask, f.at)
}

func (f *Fake) create(r *http.Request, ask asked) (int, object) {
	began := f.at
	f.await(r.Context(), func() bool { return f.inTheWay(ask) == "" || f.at >= began+millis(ask.WaitMs) })
	if name := f.inTheWay(ask); name != "" || r.Context().Err() != nil {
		said := object{"name": name, "holders": f.shown(name), "waited_ms": (f.at - began).Milliseconds()}
		return problem(409, "lock-held", "same-key", said)
	}
	f.fence++
	for _, name := range ask.Names {
		mine := f.of(name, ask.token)
		if mine == nil {
			mine = &holder{token: ask.token, owner: ask.Owner, fence: f.fence, isShared: ask.Mode == "shared"}
			f.holders[name] = append(f.holders[name], mine)
		}
		mine.entered++
		mine.until = f.at + millis(ask.TTLMs)
	}
	return 201, f.grant(ask, began)
}

// inTheWay is the first lock that is not to be had, if there is one.
func (f *Fake) inTheWay(ask asked) string {
	for _, name := range ask.Names {
		held := f.holders[name]
		hasRoom := len(held) == 0 ||
			ask.Mode == "shared" && held[0].isShared && (ask.Limit == nil || len(held) < *ask.Limit)
		if !hasRoom && f.of(name, ask.token) == nil {
			return name
		}
	}
	return ""
}

func (f *Fake) of(name, token string) *holder {
	for _, holder := range f.holders[name] {
		if holder.token == token {
			return holder
		}
	}
	return nil
}

func (f *Fake) grant(ask asked, began time.Duration) object {
	locks := make([]object, len(ask.Names))
	for at, name := range ask.Names {
		locks[at] = object{"name": name, "fencing_token": f.of(name, ask.token).fence}
	}
	granted := object{"locks": locks}
	if !ask.isSet {
		granted = locks[0]
	}
	granted["token"], granted["waited_ms"], granted["valid_for_ms"] = ask.token, (f.at - began).Milliseconds(), ask.TTLMs
	return granted
}

func (f *Fake) shown(name string) []object {
	var shown []object
	for _, holder := range f.holders[name] {
		left := (holder.until - f.at).Milliseconds()
		shown = append(shown, object{"owner": holder.owner, "fencing_token": holder.fence, "expires_in_ms": left})
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
		var left []*holder
		for _, holder := range held {
			if holder.until > f.at {
				left = append(left, holder)
			}
		}
		f.holders[name] = left
	}
	for key, record := range f.records {
		if record.until <= f.at && record.answer == nil {
			record.isUnknown = true
			if record.object["on_crash"] == "rerun" {
				delete(f.records, key)
			}
		}
	}
}

func (f *Fake) answerOfRecord(r *http.Request, key string, ask asked) (int, object) {
	key, step, _ := strings.Cut(key, "/")
	scope := key + "?" + r.URL.RawQuery
	known := f.records[scope]
	switch {
	case r.Method == http.MethodPost && step == "":
		return f.begin(r, scope, ask)
	case known == nil:
		return problem(404, "no-record", "never", nil)
	case known.token != ask.token || known.isUnknown || known.answer != nil:
		return problem(412, "token-mismatch", "never", nil)
	case r.Method == http.MethodDelete:
		delete(f.records, scope)
	case r.Method == http.MethodPut:
		known.answer = ask.request
	case step == "fail":
		known.isUnknown = true
	default:
		known.until = f.at + millis(int64(known.object["lease_ms"].(float64)))
	}
	return 200, object{}
}

func (f *Fake) begin(r *http.Request, scope string, ask asked) (int, object) {
	seconds, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("Prefer"), "wait="))
	end := f.at + time.Duration(seconds)*time.Second
	f.await(r.Context(), func() bool {
		known := f.records[scope]
		return known == nil || known.isUnknown || known.answer != nil || known.token == ask.token || f.at >= end
	})
	known := f.records[scope]
	switch {
	case known == nil:
		f.fence++
		known = &record{object: ask.request, token: ask.token, fence: f.fence, until: f.at + millis(ask.LeaseMs)}
		f.records[scope] = known
	case !reflect.DeepEqual(known.object["fingerprint"], ask.request["fingerprint"]):
		return problem(422, "idempotency-key-reused", "new-key", nil)
	case known.isUnknown:
		return problem(409, "outcome-unknown", "never", nil)
	case known.answer != nil:
		return 200, object{"state": "done", "fencing_token": known.fence, "answer": known.answer}
	case known.token != ask.token:
		return problem(409, "request-in-progress", "same-key", nil)
	}
	return 201, object{"state": "in-flight", "fencing_token": known.fence, "token": ask.token}
}
