package interop

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// scenario is one row of the matrix: a behavior that operators rely on.
type scenario struct {
	name, about string
	// run returns a remark on a success.
	run func(context.Context, *bench) (string, error)
	// control: two Go peers must pass as well, otherwise the run proves nothing.
	control bool
	// waits: the scenario mostly waits, so it runs beside others.
	waits bool
	// fresh: needs its own pair, because it breaks it.
	fresh bool
	// bare: starts its own programs.
	bare bool
	// only: the cells in which it applies; all if nil.
	only func(cell) bool
	// flags of its own pair.
	flags flags
	// limit is its time limit; a minute if zero.
	limit time.Duration
}

func (s scenario) applies(c cell) bool { return s.only == nil || s.only(c) }

// bench is the environment of a scenario.
type bench struct {
	*rig
	ends *endpoints
	// long: the counts and durations of the nightly run.
	long bool
	// golang is the Go peer of this row's version; the zero value in a cell of our own programs.
	golang peer
	own    peer
}

var scenarios = []scenario{
	{name: "echo", about: "bytes both ways, 1 B to 3 MiB in one write", run: runEcho, control: true},
	{name: "bulk", about: "16 MiB each way at once, by checksum", run: runBulk, control: true},
	{name: "one lane", about: "16 MiB each way at once by an agent with --lanes=1", run: runBulk, fresh: true,
		only: func(c cell) bool { return c.own() }, flags: flags{agent: []string{"--lanes=1"}}},
	{name: "client closes", about: "the endpoint hears of it, the client is told that it did", run: runClientCloses, control: true},
	{name: "endpoint closes", about: "the client gets all bytes, then the end", run: runEndpointCloses, control: true},
	{name: "paused client", about: "the client gets all bytes although it reads only 12 s after the endpoint has closed", run: runPausedClient,
		waits: true, only: func(c cell) bool { return !c.front.grpc() }},
	{name: "send then close", about: "uploads whose writer closes at once arrive whole", run: runUploads},
	{name: "server first", about: "a greeting comes whole, behind the head and apart from it", run: runServerFirst},
	{name: "500 at once", about: "500 connections open together, each used", run: runMany, limit: 2 * time.Minute},
	{name: "shared connection", about: "100 dials at a time on one HTTP/2 connection", run: runShared,
		only: func(c cell) bool { return c.front.grpc() }},
	{name: "reusable tunnel", about: "1,000 connections at once over one HTTP/2 connection of the client library", run: runReusable,
		only: func(c cell) bool { return c.front.grpc() }, limit: 3 * time.Minute},
	{name: "reusable canceled", about: "dials canceled by the thousand leave the other connections alone", run: runReusableCancelled,
		only: func(c cell) bool { return c.front.grpc() && c.server.ours() }, limit: 3 * time.Minute},
	{name: "reusable stalled", about: "connections that stall do not delay the others of their HTTP/2 connection", run: runReusableStalled,
		fresh: true, only: func(c cell) bool { return c.front.grpc() && c.own() }, limit: 5 * time.Minute},
	{name: "reusable shutdown", about: "no dial is lost while the client moves to a server's successor", run: runReusableShutdown,
		fresh: true, only: func(c cell) bool { return c.front == grpcUnix && c.server.ours() },
		flags: flags{server: []string{"--graceful-shutdown-timeout=60s"}}, limit: 3 * time.Minute},
	{name: "refused", about: "an endpoint that refuses is reported as such", run: runRefused},
	{name: "unknown host", about: "a name that does not exist is reported as such", run: runUnknownHost},
	{name: "dial time-out", about: "a silent endpoint ends the dial after 5 s, and is called a time-out", run: runDialTimeout, waits: true},
	{name: "dial canceled", about: "a client that gives up leaves no pending dial behind", run: runDialCancelled, waits: true},
	{name: "late answer", about: "an endpoint that answers an abandoned dial is let go", run: runLateAnswer, waits: true},
	{name: "agent lost", about: "open connections end, new dials are refused at once, a new agent serves", run: runAgentLost, fresh: true},
	{name: "agent lost while dialing", about: "a pending dial is answered", run: runAgentLostDialling, fresh: true},
	{name: "server lost", about: "the agent returns to the next server within its sync interval", run: runServerLost, fresh: true},
	{name: "replicas", about: "an agent finds a server of each kind behind one address, and one that comes back as the other", run: runReplicas,
		bare: true},
	{name: "drain", about: "a draining agent keeps its connections and gets no new ones", run: runDrain, fresh: true,
		only: func(c cell) bool { return c.agent.name != noDrain }},
	{name: "idle", about: "keepalives every 10 s, an idle connection, no too_many_pings", run: runIdle, fresh: true,
		limit: 10 * time.Minute, flags: flags{
			server: []string{"--keepalive-time=10s", "--frontend-keepalive-time=10s"},
			agent:  []string{"--keepalive-time=10s"},
		}},
	{name: "stalled client", about: "one that does not read holds up nobody for long; memory is bounded", run: runStalledClient, fresh: true},
	{name: "stalled endpoint", about: "one that does not read holds up nobody for long; memory is bounded", run: runStalledEndpoint, fresh: true},
	{name: "rolling", about: "both programs replaced under load, there and back", run: runRolling, bare: true, limit: 3 * time.Minute},
}

// noDrain is the version whose agent does not support DRAIN (added in v0.31.0) and ends on the first signal.
const noDrain = "v0.30.3"

// faulty is a failure with its kind. A failure of a mixed pair is excused only by a failure of the same kind between two Go
// peers.
type faulty struct {
	kind string
	err  error
}

func (f *faulty) Error() string { return f.kind + ": " + f.err.Error() }
func (f *faulty) Unwrap() error { return f.err }

func fault(kind, format string, args ...any) error {
	return &faulty{kind, fmt.Errorf(format, args...)}
}

// kindOf returns the kind of a failure.
func kindOf(err error) string {
	var f *faulty
	switch {
	case errors.As(err, &f):
		return f.kind
	case errors.Is(err, context.DeadlineExceeded):
		return "time"
	}
	return "error"
}
