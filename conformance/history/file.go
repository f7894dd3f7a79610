package history

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Save writes events and the options of their check to a file, as Load reads them.
func Save(path string, events []Event, o Options) error {
	var head []Event
	if o.Plain {
		head = append(head, Event{Kind: asksPlain})
	}
	if o.Brittle {
		head = append(head, Event{Kind: asksBrittle})
	}
	var text []byte
	for _, e := range slices.Concat(head, events) {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	return os.WriteFile(path, text, 0o644)
}

// Load reads a whole history from a file, as Save writes it; gzip-compressed if the path ends with ".gz". Other than
// Read it takes nothing on trust: its error names the file and the line of what is no event, or of where the file is
// cut off. Of the options it sets Plain and Brittle.
func Load(path string) ([]Event, Options, error) {
	var o Options
	f, err := os.Open(path)
	if err != nil {
		return nil, o, err
	}
	defer f.Close()
	in := io.Reader(f)
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, o, fmt.Errorf("%s: it is not compressed with gzip: %w", path, err)
		}
		in = z
	}
	text, cut := io.ReadAll(in) // the error names the line at which a file is cut off
	var events []Event
	n := 0
	for line := range bytes.Lines(text) {
		n++
		e, err := parse(line)
		switch whole := bytes.HasSuffix(line, []byte("\n")); {
		case err != nil && !whole && errors.Is(err, io.ErrUnexpectedEOF):
			return nil, o, fmt.Errorf("%s:%d: the file is cut off in this line; leave the line out "+
				"if its process was killed there", path, n)
		case err != nil:
			return nil, o, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		switch e.Kind {
		case asksPlain:
			o.Plain = true
		case asksBrittle:
			o.Brittle = true
		default:
			events = append(events, e)
		}
	}
	switch {
	case cut != nil:
		return nil, o, fmt.Errorf("%s:%d: it cannot be read further: %w", path, n, cut)
	case n == 0:
		return nil, o, fmt.Errorf("%s: it is empty: want an event a line", path)
	}
	return events, o, nil
}

// parse reads a line.
func parse(line []byte) (Event, error) {
	var e Event
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		if errors.Is(err, io.EOF) {
			return e, errors.New("the line is empty: want an event as a JSON object")
		}
		return e, fmt.Errorf("it is no event of a history: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("there is more behind the event: want one a line")
	}
	return e, e.valid()
}

// valid returns an error if an event lacks something that its kind needs.
func (e Event) valid() error {
	switch e.Result {
	case "", OK, Refused, Unclear:
	default:
		return fmt.Errorf("result %q is none: want %q, %q or %q", e.Result, OK, Refused, Unclear)
	}
	named, token, result := true, false, false
	switch e.Kind {
	case Granted, Ended:
		token = true
	case Freed, Shown:
		token, result = true, true
	case Wanted, Added, Counted, Asked, Left:
	case Died, Stopped, Continued, Down, asksPlain, asksBrittle:
		named = false
	default:
		return fmt.Errorf("kind %q is none of a history", e.Kind)
	}
	switch {
	case named && e.Name == "":
		return fmt.Errorf("kind %q: it has no name", e.Kind)
	case token && e.Token < 1, e.Token < 0:
		return fmt.Errorf("kind %q: token %d: want 1 or more", e.Kind, e.Token)
	case result && e.Result == "":
		return fmt.Errorf("kind %q: it has no result", e.Kind)
	case e.Called > e.At:
		return fmt.Errorf("kind %q: it was called at %d, after it returned, at %d", e.Kind, e.Called, e.At)
	}
	return nil
}
