package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// report is the content of matrix.json.
type report struct {
	Versions []string        `json:"versions"`
	Cases    int             `json:"cases"`
	Seconds  float64         `json:"seconds"`
	Counts   map[verdict]int `json:"counts"`
	Outcomes []outcome       `json:"outcomes"`
}

// writeReport writes the matrix to matrix.json and, with measurements, to matrix.md; summary.md has no measurements.
func writeReport(s settings, outcomes []outcome, took time.Duration) error {
	r := report{Cases: len(outcomes), Seconds: took.Seconds(), Counts: make(map[verdict]int), Outcomes: outcomes}
	for _, p := range s.golang {
		r.Versions = append(r.Versions, p.name)
	}
	for _, o := range outcomes {
		r.Counts[o.Verdict]++
	}
	slices.SortFunc(r.Outcomes, func(a, b outcome) int {
		return strings.Compare(a.Version+a.Front+a.Server+a.Agent+a.Case, b.Version+b.Front+b.Server+b.Agent+b.Case)
	})
	encoded, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.out, "matrix.json"), encoded, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.out, "summary.md"), []byte(r.summary(s)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.out, "matrix.md"), []byte(r.markdown(s)), 0o644)
}

// marks are the symbols of the verdicts.
var marks = map[verdict]string{passed: "✓", failed: "**✗**", excused: "Go ✗ too", defect: "Go ✗"}

func (r report) headline() string {
	return fmt.Sprintf("%d cases: %d pass, %d fail as they do between two Go programs, %d more are cases of two Go programs that fail, and %d fail only with a program of this project.\n",
		r.Cases, r.Counts[passed], r.Counts[excused], r.Counts[defect], r.Counts[failed])
}

func (r report) markdown(s settings) string {
	var text strings.Builder
	text.WriteString(r.headline())
	r.ownTable(&text, s, true)
	for _, f := range []front{grpcUnix, httpUnix} {
		for _, g := range s.golang {
			r.table(&text, "Go "+g.name+", "+f.name, []column{
				{"native server, Go agent", cell{s.own, g, f}},
				{"Go server, native agent", cell{g, s.own, f}},
				{"Go server, Go agent", cell{g, g, f}},
			}, true)
		}
	}
	r.failures(&text)
	return text.String()
}

func (r report) summary(s settings) string {
	var text strings.Builder
	text.WriteString(r.headline())
	r.ownTable(&text, s, false)
	for _, f := range []front{grpcUnix, httpUnix} {
		for _, pair := range []struct {
			title string
			of    func(peer) cell
		}{
			{"Native server, Go agent", func(g peer) cell { return cell{s.own, g, f} }},
			{"Go server, native agent", func(g peer) cell { return cell{g, s.own, f} }},
		} {
			var columns []column
			for _, g := range s.golang {
				columns = append(columns, column{g.name, pair.of(g)})
			}
			r.table(&text, pair.title+", "+f.name, columns, false)
		}
	}
	return text.String()
}

func (r report) ownTable(text *strings.Builder, s settings, notes bool) {
	var columns []column
	for _, f := range []front{grpcUnix, grpcTLS, httpUnix, httpTLS} {
		columns = append(columns, column{f.name, cell{s.own, s.own, f}})
	}
	r.table(text, "Native server, native agent", columns, notes)
}

type column struct {
	title string
	cell  cell
}

// table writes a row for each scenario that ran in one of the columns.
func (r report) table(text *strings.Builder, title string, columns []column, notes bool) {
	var rows strings.Builder
	for _, one := range scenarios {
		row, found := "| "+one.name, false
		for _, c := range columns {
			shown := "–"
			for _, o := range r.Outcomes {
				if o.Case == one.name && o.cell == c.cell {
					shown, found = marks[o.Verdict], true
					if notes && o.Note != "" && o.Verdict == passed {
						shown += " " + o.Note
					}
				}
			}
			row += " | " + shown
		}
		if found {
			rows.WriteString(row + " |\n")
		}
	}
	if rows.Len() == 0 {
		return
	}
	fmt.Fprintf(text, "\n### %s\n\n| case", title)
	for _, c := range columns {
		text.WriteString(" | " + c.title)
	}
	text.WriteString(" |\n|---" + strings.Repeat("|---", len(columns)) + "|\n" + rows.String())
}

func (r report) failures(text *strings.Builder) {
	for _, v := range []verdict{failed, excused, defect} {
		if r.Counts[v] == 0 {
			continue
		}
		fmt.Fprintf(text, "\n### %s\n\n", map[verdict]string{
			failed: "Failures", excused: "Fails, as two Go peers do", defect: "Two Go peers fail",
		}[v])
		for _, o := range r.Outcomes {
			if o.Verdict == v {
				fmt.Fprintf(text, "- %s: %s: %s\n", o.cell, o.Case, firstLine(o.Detail))
			}
		}
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
