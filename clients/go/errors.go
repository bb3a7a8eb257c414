package keylatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Problem is what the service says when it refuses a request (RFC 9457). Use errors.As to find one.
type Problem struct {
	Status int
	// Code is a stable word such as "outcome-unknown". It is empty where something else than keylatch answered.
	Code   string
	Detail string
	// RetryAfter is how long to wait before the request is sent again, where the service says so.
	RetryAfter time.Duration
	// Outcome of a 5xx is "not-executed", or "unknown" where the request may have been carried out.
	Outcome string

	retry    string
	document document
}

// document has the members of answers and problems that the client reads.
type document struct {
	Code         string        `json:"code"`
	Detail       string        `json:"detail"`
	Retry        string        `json:"retry"`
	Outcome      string        `json:"outcome"`
	Field        string        `json:"field"`
	Name         string        `json:"name"`
	Holder       *Holder       `json:"holder"`
	Holders      []Holder      `json:"holders"`
	Locks        []leasedLock  `json:"locks"`
	FencingToken uint64        `json:"fencing_token"`
	Slot         *int          `json:"slot"`
	WaitedMs     *int64        `json:"waited_ms"`
	ValidForMs   *int64        `json:"valid_for_ms"`
	State        string        `json:"state"`
	Status       int           `json:"status"`
	Answer       *answerMember `json:"answer"`
	Reason       string        `json:"reason"`
	Token        string        `json:"token"`
	Broken       *struct{ Reason, By string }
}

// validity is how long a grant is exclusive from the sending of its request.
func (d document) validity() time.Duration {
	return time.Duration(*d.WaitedMs+*d.ValidForMs) * time.Millisecond
}

type leasedLock struct {
	Name         string `json:"name"`
	FencingToken uint64 `json:"fencing_token"`
	Slot         *int   `json:"slot"`
}

// Holder is a holder of a lock, as others see it.
type Holder struct {
	Owner        string `json:"owner"`
	FencingToken uint64 `json:"fencing_token"`
	ExpiresInMs  int64  `json:"expires_in_ms"`
	Slot         *int   `json:"slot"`
}

func (p *Problem) Error() string {
	if p.Detail == "" {
		return fmt.Sprintf("keylatch: status %d", p.Status)
	}
	return "keylatch: " + p.Detail
}

// Retry is what the client does next: "same-key" repeats the same request, "new-key" corrects it, and "never" leaves
// it to a person or a program to find out what happened.
func (p *Problem) Retry() string {
	if p.retry != "" {
		return p.retry
	}
	if p.isPassing() {
		return "same-key"
	}
	return "never"
}

// isPassing says whether the same request may be answered otherwise after a while.
func (p *Problem) isPassing() bool {
	if p.retry != "" {
		return p.retry == "same-key"
	}
	return p.Status >= 500 || p.Status == 408 || p.Status == 429
}

// isOthers says that others have what is asked for, and so not the token of the request.
func (p *Problem) isOthers() bool { return p.Code == "lock-held" || p.Code == "request-in-progress" }

func problemOf(status int, body []byte, retryAfter time.Duration) *Problem {
	problem := &Problem{Status: status, RetryAfter: retryAfter}
	if json.Unmarshal(body, &problem.document) == nil {
		said := problem.document
		problem.Code, problem.Detail, problem.Outcome, problem.retry = said.Code, said.Detail, said.Outcome, said.Retry
	}
	return problem
}

// ErrHeld is what errors.Is finds in a *HeldError.
var ErrHeld = errors.New("keylatch: the lock is held")

// HeldError says that others held the lock until the wait was over.
type HeldError struct {
	// Name of several locks is the first that was not to be had.
	Name string
	// Holder is the one whose lease ends first; nil where the lock was free for a waiter that was before.
	Holder *Holder
}

func (h *HeldError) Error() string {
	if h.Holder != nil && h.Holder.Owner != "" {
		return fmt.Sprintf("keylatch: %s is held by %s", h.Name, h.Holder.Owner)
	}
	return fmt.Sprintf("keylatch: %s is held", h.Name)
}

// Is finds ErrHeld.
func (h *HeldError) Is(target error) bool { return target == ErrHeld }

// UnreachableError says that the service gave no response.
type UnreachableError struct {
	// Sent says whether the service may have carried the request out.
	Sent bool
	Err  error
}

func (u *UnreachableError) Error() string { return "keylatch: no response: " + u.Err.Error() }
func (u *UnreachableError) Unwrap() error { return u.Err }

// ErrLost is what errors.Is finds in a *LostError.
var ErrLost = errors.New("keylatch: the lease is lost")

// ErrReleased is what Err gives of a lease or a run that the program has ended.
var ErrReleased = errors.New("keylatch: the lease is released")

// LostError says why a lease is over, or will be before it can be renewed.
type LostError struct {
	// Names of the locks that are lost, or the key of the run.
	Names []string
	// Reason is "expired", "taken", "broken", "unrenewed", "paused" or "unreachable", or a word of the service for a
	// hold.
	Reason string
	Detail string
	// By is who broke the lock, where they said so.
	By string
}

func (l *LostError) Error() string {
	names := strings.Join(l.Names, ", ")
	switch {
	case l.Reason != "broken":
		return fmt.Sprintf("keylatch: the lease of %s is lost (%s): %s", names, l.Reason, l.Detail)
	case l.By == "":
		return fmt.Sprintf("keylatch: the lease of %s was broken: %s", names, l.Detail)
	}
	return fmt.Sprintf("keylatch: the lease of %s was broken by %s: %s", names, l.By, l.Detail)
}

// Is finds ErrLost.
func (l *LostError) Is(target error) bool { return target == ErrLost }

// lossOf says why the lease is over, if a code of the service says that it is.
func lossOf(code string, said document) *LostError {
	reasons := map[string]string{"lock-not-held": "expired", "token-mismatch": "taken", "lock-broken": "broken"}
	reason, isLoss := reasons[code]
	if !isLoss {
		return nil
	}
	loss := &LostError{Reason: reason, Detail: said.Detail}
	for _, lock := range said.Locks {
		loss.Names = append(loss.Names, lock.Name)
	}
	if said.Broken != nil {
		loss.Detail, loss.By = said.Broken.Reason, said.Broken.By
	}
	return loss
}
