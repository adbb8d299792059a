package eventlog

import (
	"fmt"
	"html"
	"strings"

	"stepd/internal/printable"
)

// The picture's measures, in pixels.
const (
	svgWidth  = 1100
	svgNames  = 330 // where the bars begin
	svgNumber = 90  // the durations' column, right of the bars
	svgRow    = 18
	svgHead   = 40
)

// SVG is the picture of the bars, in one file of its own: no script, no font and no
// style from elsewhere. Each bar tells its figures to who points at it.
func (t *Timeline) SVG(title string) string {
	d := &picture{y: svgHead}
	for i := range t.Sections {
		d.section(&t.Sections[i])
	}
	height := d.y + 10
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="12">
<title>%s</title>
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="10" y="22" font-size="15" fill="#222222">%s</text>
%s</svg>
`, svgWidth, height, svgWidth, height, text(title), text(title), d.b.String())
}

type picture struct {
	b strings.Builder
	y int
}

func (d *picture) section(s *Section) {
	const left, right = svgNames, svgWidth - svgNumber
	d.y += svgRow
	top := d.y + 4
	fmt.Fprintf(&d.b, "<text x=\"10\" y=\"%d\" font-weight=\"bold\" fill=\"#222222\">%s, %s</text>\n", d.y, text(s.Name), text(duration(s.EndUS-s.BeginUS)))
	bottom := top + svgRow*len(s.Spans)
	whole := max(s.EndUS-s.BeginUS, 1)
	for _, at := range ticks(whole) {
		x := left + int(at*int64(right-left)/whole)
		fmt.Fprintf(&d.b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#dddddd\"/>\n", x, top, x, bottom)
		fmt.Fprintf(&d.b, "<text x=\"%d\" y=\"%d\" fill=\"#777777\" font-size=\"10\" text-anchor=\"middle\">%s</text>\n", x, d.y, text(duration(at)))
	}
	d.y = top
	for i := range s.Spans {
		d.bar(s, &s.Spans[i], left, right)
	}
	d.y += svgRow / 2
}

func (d *picture) bar(sec *Section, s *Span, left, right int) {
	whole := float64(max(sec.EndUS-sec.BeginUS, 1))
	x := float64(left) + float64(s.BeginUS-sec.BeginUS)/whole*float64(right-left)
	width := max(float64(s.EndUS-s.BeginUS)/whole*float64(right-left), 1)
	indent := 10
	if s.Kind == KindHook {
		indent = 26
	}
	told := fmt.Sprintf("%s: at %s, for %s", s.Label(), duration(s.BeginUS), duration(s.EndUS-s.BeginUS))
	if s.Count > 1 {
		told += fmt.Sprintf(", the longest of %d %s", s.Count, duration(s.LongestUS))
	}
	if s.Error != "" {
		told += ", failed: " + s.Error
	}
	fmt.Fprintf(&d.b, "<g><title>%s</title>\n", text(told))
	fmt.Fprintf(&d.b, "<text x=\"%d\" y=\"%d\" fill=\"#222222\">%s</text>\n", indent, d.y+13, text(printable.Fit(s.Label(), (left-indent-8)*10/73)))
	fmt.Fprintf(&d.b, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>\n", x, d.y+3, width, svgRow-6, colourOf(s))
	fmt.Fprintf(&d.b, "<text x=\"%d\" y=\"%d\" fill=\"#555555\" text-anchor=\"end\">%s</text></g>\n", svgWidth-10, d.y+13, text(duration(s.EndUS-s.BeginUS)))
	d.y += svgRow
}

func colourOf(s *Span) string {
	switch {
	case s.Error != "":
		return "#c62828"
	case s.Open:
		return "#f9a825"
	case s.Kind == KindHook:
		return "#00838f"
	case s.Kind == KindTask:
		return "#2e7d32"
	}
	return "#455a8a"
}

// ticks are the places of the lines: at most six, at 1, 2 or 5 times a power of ten.
func ticks(whole int64) (at []int64) {
	unit := int64(1)
	for i := 0; whole/unit > 5; i++ {
		if i%3 == 1 {
			unit = unit / 2 * 5
		} else {
			unit *= 2
		}
	}
	for t := int64(0); t <= whole; t += unit {
		at = append(at, t)
	}
	return at
}

// text is a text of XML: printable text has no control characters, so that HTML's escapes are XML's.
func text(s string) string { return html.EscapeString(printable.Line(s, 0)) }
