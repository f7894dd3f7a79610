package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"

	benchcmd "github.com/fencelock/fencelock/cmd/fencelock/internal/bench"
)

// The page in a browser: on a phone, a small window and a large one, in the light and in the dark,
// nothing is wider than the window, charts are large enough to read, and no label runs.
func TestBenchPageInBrowser(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	var page strings.Builder
	must(t, benchcmd.WritePage(&page, pageRows(), time.Now()))
	asked := make(chan string, 100)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			if r.URL.Path != "/favicon.ico" { // which every browser asks for
				asked <- r.URL.Path
			}
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(page.String()))
	}))
	defer web.Close()
	for _, width := range []int{360, 768, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			b.looks(width, 900, width == 360, scheme)
			b.open(web.URL + "/")
			at := fmt.Sprintf("%d %s", width, scheme)
			b.shows(at+": no wider than the window", fmt.Sprintf("document.documentElement.scrollWidth <= %d", width))
			b.shows(at+": the charts",
				`document.querySelectorAll("svg").length === 4 && `+
					`[...document.querySelectorAll("svg")]`+
					`.every((s) => s.getBoundingClientRect().width > 250)`)
			b.shows(at+": letters of 10 px at least",
				`[...document.querySelectorAll("svg text")]`+
					`.every((t) => parseFloat(getComputedStyle(t).fontSize) * t.getCTM().a >= 10)`)
			b.shows(at+": labels inside their chart",
				`[...document.querySelectorAll("svg text")].every((t) => `+
					`t.getBoundingClientRect().left >= `+
					`t.ownerSVGElement.getBoundingClientRect().left - 1)`)
			b.shows(at+": the colours of the scheme", inScheme(scheme))
			b.shows(at+": labels as text",
				`[...document.querySelectorAll("tbody th")]`+
					`.some((th) => th.textContent.startsWith("<script>alert(1)</script>")) && `+
					`!document.querySelector("script, img")`)
			b.shows(at+": words for who cannot see the charts",
				`[...document.querySelectorAll("figure")]`+
					`.every((f) => f.getAttribute("role") === "img" && f.getAttribute("aria-label"))`)
			b.picture(fmt.Sprintf("bench-%d-%s", width, scheme))
		}
	}
	b.quiet()
	if len(asked) > 0 {
		t.Errorf("the page asked for %q, want nothing", <-asked)
	}
}

// inScheme is true when letters stand out from the page, on it and in the charts: their luminance
// differs by more than half, the right way round.
func inScheme(scheme string) string {
	light := "(text < 0.3 && back > 0.8)"
	if scheme == "dark" {
		light = "(text > 0.7 && back < 0.2)"
	}
	return `[document.body, document.querySelector("svg text")].every((e) => {
		const of = (c) => {
			const [r, g, b] = c.match(/\d+/g).map(Number);
			return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255
		};
		const text = of(e === document.body ? getComputedStyle(e).color : getComputedStyle(e).fill);
		const back = of(getComputedStyle(document.body).backgroundColor);
		return ` + light + ` })`
}

// The picture of the documents is of a page that the command wrote.
func TestBenchPagePicture(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	path := filepath.Join(t.TempDir(), "bench.html")
	got := invoke(t, nil, "bench", "--duration", "20ms", "--rounds", "2", "--only",
		"cycle/goroutines=64,handover", "--html", path, "memory://", fileStore(t),
		servers.Redis(t, servers.RedisOptions{}).URL())
	if got.code != 0 {
		t.Fatalf("got %+v", got)
	}
	web := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(path))))
	defer web.Close()
	b.looks(1100, 900, false, "light")
	b.open(web.URL + "/bench.html")
	b.shows("the backends",
		`["memory", "file", "redis"].every((l) => document.body.innerText.includes(l)) && `+
			`document.querySelectorAll("svg").length === 4`)
	b.picture("bench")
	b.quiet()
}
