package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strconv"
	"sync"
)

// counted counts events by name; /metrics shows them, so that tests can see the path of a request.
var counted = struct {
	sync.Mutex
	by map[string]int
}{by: map[string]int{}}

func count(what string) {
	counted.Lock()
	defer counted.Unlock()
	counted.by[what]++
}

// registerPlain adds the paths that are neither streams nor logs.
func registerPlain(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		counted.Lock()
		defer counted.Unlock()
		names := make([]string, 0, len(counted.by))
		for name := range counted.by {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintln(w, "# TYPE kubelet_requests_total counter")
		for _, name := range names {
			fmt.Fprintf(w, "kubelet_requests_total{what=%q} %d\n", name, counted.by[name])
		}
	})
	mux.HandleFunc("GET /stats/summary", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{"node": map[string]any{"nodeName": "node"}, "pods": []any{}})
	})
}

// webServer is a pod's web server: a page, an echo, and as many bytes as requested.
func webServer() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from the pod") })
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		// Go's server discards the rest of a body once an answer has begun.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(body)
	})
	mux.HandleFunc("GET /bytes/{count}", func(w http.ResponseWriter, r *http.Request) {
		count, err := strconv.ParseInt(r.PathValue("count"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = io.CopyN(w, letters{}, count)
	})
	return mux
}

// letters is an endless alphabet.
type letters struct{}

func (letters) Read(into []byte) (int, error) {
	for at := range into {
		into[at] = 'x'
	}
	return len(into), nil
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
