package keylatch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"
)

// Event is what the service says on a stream: Type is a word such as "acquired".
type Event struct {
	Type string
	Data json.RawMessage
}

// eventStream reads server-sent events (WHATWG HTML, section 9.2).
type eventStream struct {
	body   io.ReadCloser
	reader *bufio.Reader
	// heard is called for each line, and so for each comment.
	heard func()
}

// events opens a stream. The error is a *Problem or an *UnreachableError.
func (c *Client) events(ctx context.Context, r request) (*eventStream, error) {
	response, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		return nil, read(response, nil)
	}
	return &eventStream{body: response.Body, reader: bufio.NewReader(response.Body)}, nil
}

// next gives the next event, and what of its data the client reads.
func (s *eventStream) next() (Event, document, error) {
	var event Event
	for {
		line, err := s.reader.ReadBytes('\n')
		if err != nil {
			return event, document{}, err
		}
		if s.heard != nil {
			s.heard()
		}
		text := string(bytes.TrimRight(line, "\r\n"))
		switch {
		case strings.HasPrefix(text, "event:"):
			event.Type = strings.TrimSpace(text[6:])
		case strings.HasPrefix(text, "data:"):
			event.Data = append(event.Data, strings.TrimSpace(text[5:])...)
		case text == "" && event.Type != "":
			var data document
			return event, data, json.Unmarshal(event.Data, &data)
		}
	}
}

// Watch calls on for whatever happens to a lock, until ctx is done. After a lost connection it begins with a
// "snapshot".
func (c *Client) Watch(ctx context.Context, name string, on func(Event)) error {
	for {
		err := c.watchOnce(ctx, request{method: "GET", path: "/v1/locks/" + plain(name) + "/events"}, on)
		var problem *Problem
		if errors.As(err, &problem) && !problem.isPassing() {
			return err
		}
		c.log("keylatch opens a watch again", "lock", name, "error", err)
		if c.clock.SleepUntil(ctx, c.clock.Now()+c.pauseAfter(err)) != nil {
			return ctx.Err()
		}
	}
}

// watchOnce calls on for the events of one connection, until it is lost or silent.
func (c *Client) watchOnce(ctx context.Context, r request, on func(Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	chosen := c.chosen.Load()
	silence := time.AfterFunc(c.silence, func() {
		c.chosen.CompareAndSwap(chosen, chosen+1)
		cancel()
	})
	defer silence.Stop()
	stream, err := c.events(ctx, r)
	if err != nil {
		return err
	}
	defer stream.body.Close()
	stream.heard = func() { silence.Reset(c.silence) }
	for {
		event, _, err := stream.next()
		if err != nil {
			return err
		}
		on(event)
	}
}
