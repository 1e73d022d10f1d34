package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// lookAgain is the interval at which a followed file is checked for new lines.
const lookAgain = 20 * time.Millisecond

// logFiles serves files as container logs.
type logFiles struct {
	folder string
}

func (l *logFiles) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", l.serve)
}

func (l *logFiles) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("namespace") + "_" + r.PathValue("pod") + "_" + r.PathValue("container") + ".log"
	if strings.ContainsRune(name, filepath.Separator) {
		http.Error(w, "a bad name", http.StatusBadRequest)
		return
	}
	file, err := os.Open(filepath.Join(l.folder, name))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer file.Close()
	query := r.URL.Query()
	if lines, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		if err := seekLines(file, lines); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	var out io.Writer = w
	follow := query.Get("follow") == "true"
	if follow {
		out = flushing{w, http.NewResponseController(w)}
	}
	for {
		if _, err := io.Copy(out, file); err != nil || !follow || !waitFor(r.Context()) {
			return
		}
	}
}

func waitFor(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(lookAgain):
		return true
	}
}

// seekLines sets a file to the start of its last lines.
func seekLines(file *os.File, lines int) error {
	whole, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	start := len(whole)
	if lines > 0 {
		start = len(bytes.TrimSuffix(whole, []byte("\n")))
	}
	for ; lines > 0 && start >= 0; lines-- {
		start = bytes.LastIndexByte(whole[:max(start, 0)], '\n')
	}
	if start != len(whole) {
		start++
	}
	_, err = file.Seek(int64(start), io.SeekStart)
	return err
}

// flushing sends each write at once, because a follower waits for every line.
type flushing struct {
	io.Writer
	control *http.ResponseController
}

func (f flushing) Write(bytes []byte) (int, error) {
	count, err := f.Writer.Write(bytes)
	if err == nil {
		err = f.control.Flush()
	}
	return count, err
}
