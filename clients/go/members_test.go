package keylatch_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

// TestEveryMemberOfTheAPICanBeSent compares the OpenAPI document with what the options make of the bodies. Operations that
// have no method of their own are sent by Call.
func TestEveryMemberOfTheAPICanBeSent(t *testing.T) {
	text, err := os.ReadFile("../../openapi/openapi.json")
	if err != nil {
		t.Skip("the document is not in the module: ", err)
	}
	type reference struct {
		Ref string `json:"$ref"`
	}
	var document struct {
		Paths map[string]map[string]struct {
			Parameters  []reference
			RequestBody struct {
				Content map[string]struct{ Schema reference }
			}
		}
		Components struct {
			Schemas    map[string]struct{ Properties map[string]any }
			Parameters map[string]struct{ Name, In string }
		}
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	sent := bodies(t)
	sent["DescribedRequest"], _ = sent["BeginRecord"]["request"].(map[string]any)
	// In place of these the client sends others that can say more.
	sent["DescribedRequest"]["body"] = "body_base64"
	sent["CompleteRecord"]["json"] = "body"
	schemas, others := []string{"DescribedRequest"}, map[string]bool{"EndWait": true, "IssueKey": true, "ResolveRecord": true}
	for _, operations := range document.Paths {
		for _, operation := range operations {
			if schema := path.Base(operation.RequestBody.Content["application/json"].Schema.Ref); schema != "." && !others[schema] {
				schemas = append(schemas, schema)
			}
		}
	}
	if len(schemas) < 10 {
		t.Error("these are not all: ", schemas)
	}
	for _, begins := range document.Paths["/v1/idempotency/{key}"]["post"].Parameters {
		said := document.Components.Parameters[path.Base(begins.Ref)]
		if _, isSent := sent["BeginRecord"]["?"+said.Name]; said.In == "query" && !isSent {
			t.Errorf("no option sends %s of a key", said.Name)
		}
	}
	for _, schema := range schemas {
		properties := document.Components.Schemas[schema].Properties
		if len(properties) == 0 {
			t.Errorf("there is no %s", schema)
		}
		for property := range properties {
			if _, isSent := sent[schema][property]; !isSent {
				t.Errorf("no option sends %s.%s", schema, property)
			}
		}
	}
}

func TestVersionIsThatOfTheService(t *testing.T) {
	text, err := os.ReadFile("../../Cargo.toml")
	if err != nil {
		t.Skip("the service is not in the module: ", err)
	}
	if !strings.Contains(string(text), "\nversion = \""+keylatch.Version+"\"\n") {
		t.Error("another version than ", keylatch.Version)
	}
}

// bodies has the members that the client has sent with all its options, by schema.
func bodies(t *testing.T) map[string]map[string]any {
	sent := map[string]map[string]any{}
	_, client := serve(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
		schema := map[string]string{
			"POST /v1/locks/a": "CreateLock", "PUT /v1/locks/a": "RenewLock", "POST /v1/locks/a/hold": "HoldLock",
			"POST /v1/locks": "CreateLocks", "PUT /v1/locks": "RenewLocks", "POST /v1/locks/a/break": "BreakLock",
			"POST /v1/idempotency/k": "BeginRecord", "PUT /v1/idempotency/k": "CompleteRecord",
			"POST /v1/idempotency/k/fail": "FailRecord",
		}[r.Method+" "+r.URL.Path]
		members := map[string]any{}
		_ = json.Unmarshal([]byte(body), &members)
		if sent[schema] == nil {
			sent[schema] = map[string]any{}
		}
		for member, value := range members {
			sent[schema][member] = value
		}
		for name := range r.URL.Query() {
			sent[schema]["?"+name] = true
		}
		switch schema {
		case "CreateLock":
			// So late that the client renews.
			_, _ = w.Write([]byte(`{"name":"a","token":"` + r.Header.Get("Lock-Token") + `","waited_ms":0,"valid_for_ms":1}`))
		case "CreateLocks", "RenewLocks":
			_, _ = w.Write([]byte(`{"locks":[{"name":"a"},{"name":"b"}],"token":"` + r.Header.Get("Lock-Token") + `","waited_ms":0,"valid_for_ms":1}`))
		case "HoldLock":
			refuse(w, http.StatusNotImplemented, "not-supported")
		default:
			if strings.HasSuffix(r.URL.Path, "/a") && r.Method == http.MethodGet {
				_, _ = w.Write([]byte(`{"name":"a","holders":[{"slot":1}]}`))
				return true
			}
			return false
		}
		return true
	})
	ctx, all := context.Background(), []keylatch.LockOption{
		keylatch.TTL(time.Second), keylatch.Wait(time.Second), keylatch.Owner("ann"), keylatch.Limit(2), keylatch.Entry("e"),
		keylatch.MaxHold(time.Second), keylatch.MaxAhead(0),
	}
	if lease, err := client.Lock(ctx, "a", all...); err == nil {
		_, _ = lease.Release(ctx)
	}
	if lease, err := client.LockAll(ctx, []string{"a", "b"}, all...); err == nil {
		_, _ = lease.Release(ctx)
	}
	_, _ = client.Hold(ctx, "a", all...)
	_, _ = client.Break(ctx, "a", "it hangs", keylatch.By("ann"), keylatch.Grace(time.Second))
	request := keylatch.Described{Query: "a=1", ContentType: "text/plain", Headers: http.Header{"A": {"b"}}, Body: []byte("c")}
	run, err := client.Begin(ctx, "k", keylatch.Fingerprint("f"), keylatch.Request(request), keylatch.RunLease(time.Second),
		keylatch.Retention(time.Hour), keylatch.OnCrash("rerun"), keylatch.Scope("POST", "/v1/orders"), keylatch.Principal("ann"),
		keylatch.Source("json:/no"), keylatch.RunToken(strings.Repeat("t", 20)))
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []keylatch.Answer{{Body: []byte("text")}, {Body: []byte{0xff}}, {Headers: http.Header{"A": {"b"}}, Status: 201}} {
		_ = run.Complete(ctx, answer)
	}
	_ = run.Fail(ctx, "half way")
	return sent
}
