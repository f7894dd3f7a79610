package main

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/servers"
)

// rowNamed finds the row of a name as it is shown.
const rowNamed = `[...document.querySelectorAll("tbody tr")].find((r) => r.querySelector("th").textContent === `

func rowOf(shown string) string { return rowNamed + "`" + strings.ReplaceAll(shown, `\`, `\\`) + "`)" }

func TestPageFollows(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	url := fileStore(t)
	s := serveOn(t, url)
	b.looks(1100, 760, false, "light")
	b.open(s.base)
	b.shows("that there is nothing",
		`document.body.innerText.includes("No lock is held or waited for.") && `+
			`document.body.innerText.includes("0 held")`)
	lease := hold(t, url, "jobs/nightly")
	hold(t, url, "accounts/7")
	b.shows("the lock", rowOf("jobs/nightly")+`?.innerText.includes("`+lease.Owner()+`")`)
	b.shows("its token",
		rowOf("jobs/nightly")+`.innerText.includes("`+
			cli.Token(fencelock.Info{Token: lease.Token()})+`")`)
	b.shows("what is left", `/^(29|30)s$/.test(`+rowOf("jobs/nightly")+`.cells[4].innerText)`)
	b.shows("the mark", rowOf("jobs/nightly")+`.className === "acquired"`)
	b.shows("the change", `document.querySelector("#changes").innerText.includes("accounts/7")`)
	b.shows("that it goes", `!document.querySelector("tr.acquired")`)
	must(t, lease.Unlock(t.Context()))
	b.shows("that it is gone", "!"+rowOf("jobs/nightly"))
	b.shows("the release", `/released\s*jobs\/nightly/.test(document.querySelector("#changes li").innerText)`)
	// For who cannot see it.
	b.shows("a table for a screen reader",
		`document.querySelector("table caption") && `+
			`document.querySelectorAll("th[scope=col]").length === 7 && `+
			`document.querySelector("tbody th[scope=row]")`)
	b.shows("changes that are read out",
		`document.querySelector("#changes").getAttribute("aria-live") === "polite" && `+
			`document.querySelector("[role=status]")`)
	// The filter, from the keyboard.
	b.press("Tab")
	b.press(strings.Split("zzz", "")...)
	b.shows("the filter",
		`document.activeElement.id === "filter" && document.body.innerText.includes("No lock matches the filter.")`)
	b.quiet()
}

// A name or an owner is never anything but text.
func TestPageHostileNames(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	url := fileStore(t)
	s := serveOn(t, url)
	evil := []string{
		`<img src=x onerror=alert(1)>`, `<script>alert(1)</script>`, `"><svg onload=alert(1)>`,
		`javascript:alert(1)`, `__proto__`, `constructor`,
		"\u202egnp.exe", "a\nb", "\x1b[31m", `{{alert(1)}}`, `&lt;b&gt;`, "'-alert(1)-'",
	}
	locks := client(t, url)
	for _, name := range evil {
		_, err := locks.Mutex(name, fencelock.WithOwner(name+" ")).TryLock(t.Context())
		must(t, err)
	}
	b.looks(1100, 900, false, "light")
	b.open(s.base)
	for _, name := range evil {
		shown := strings.NewReplacer("\u202e", `\u{202e}`, "\n", `\u{a}`, "\x1b", `\u{1b}`).Replace(name)
		b.shows(shown, rowOf(shown))
	}
	b.shows("no element of theirs", `document.querySelectorAll("main img, main svg, main script, main b").length === 0`)
	// The policy would have stopped it too.
	got := b.eval(`(() => { try { document.body.innerHTML = "<b>x</b>"; return "taken" } ` +
		`catch { return "refused" } })()`)
	if got != "refused" {
		t.Errorf("HTML from a script: %s", got)
	}
	b.mu.Lock()
	for i, said := range b.trouble {
		if strings.Contains(said, "TrustedHTML") { // the line above
			b.trouble = append(b.trouble[:i:i], b.trouble[i+1:]...)
			break
		}
	}
	b.mu.Unlock()
	b.quiet()
}

func TestPageOutage(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	r := servers.Redis(t, servers.RedisOptions{})
	s := serveOn(t, r.URL())
	hold(t, r.URL(), "jobs/nightly")
	b.looks(1100, 700, false, "light")
	b.open(s.base)
	b.shows("the lock", rowOf("jobs/nightly"))
	must(t, r.Stop())
	b.shows("the outage",
		`document.querySelector("#trouble").innerText`+
			`.startsWith("The store has not answered since") && `+rowOf("jobs/nightly"))
	b.picture("outage")
	must(t, r.Start())
	b.shows("that it is over",
		`document.querySelector("#trouble").hidden && document.body.innerText.includes("0 held")`)
	s.end()
	b.shows("that the server is gone",
		`document.querySelector("#trouble").innerText.startsWith("This page has not reached its server since")`)
	again := serveOn(t, r.URL(), "--listen", strings.TrimPrefix(s.base, "http://"))
	b.shows("that it is back", `document.querySelector("#trouble").hidden`)
	again.end()
	b.quiet()
}

func TestPageBreaks(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	url := fileStore(t)
	s := serveOn(t, url, "--allow-break")
	lease := hold(t, url, "jobs/nightly")
	b.looks(1100, 760, false, "light")
	b.open(s.base)
	b.shows("the lock", rowOf("jobs/nightly"))
	// By keyboard: past the filter to the button.
	b.press("Tab", "Tab")
	b.shows("the button", `document.activeElement.getAttribute("aria-label") === "Break jobs/nightly"`)
	b.press("Enter")
	b.shows("the question",
		`document.querySelector("dialog").open && document.activeElement.id === "ask-secret" && `+
			`document.querySelector("dialog").innerText.includes("two may work at")`)
	b.picture("break")
	b.press("x", "Enter")
	b.shows("the refusal", `document.querySelector("#ask-error").innerText.startsWith("wrong or no token")`)
	if lease.Err() != nil {
		t.Errorf("broken without the token: %v", lease.Err())
	}
	b.press("Escape")
	b.shows("that it is left",
		`!document.querySelector("dialog").open && document.querySelector("#ask-secret").value === ""`)
	b.press("Enter")
	b.press(strings.Split(testToken, "")...)
	b.press("Enter")
	b.shows("that it is free", `!document.querySelector("dialog").open && !`+rowOf("jobs/nightly"))
	await(t, "the holder is told", func() bool { return lease.Err() != nil })
	b.quiet()
}

// Nothing is cut off, on a phone neither, in the light and in the dark.
func TestPageFits(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	url := fileStore(t)
	s := serveOn(t, url, "--allow-break")
	locks := client(t, url)
	for name, owner := range map[string]string{
		"jobs/nightly": "worker-3.example.com:4711", "inventory/sku-4711": "shop-eu-1:812", "accounts/7": "ledger-2:99",
		strings.Repeat("a/very/long/name/", 12): strings.Repeat("an-owner-without-spaces-", 8),
	} {
		_, err := locks.Mutex(name, fencelock.WithOwner(owner)).TryLock(t.Context())
		must(t, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if lease, err := client(t, url).Mutex("jobs/nightly").Lock(t.Context()); err == nil {
			_ = lease.Unlock(t.Context())
		}
	}()
	t.Cleanup(func() { <-done })
	for _, c := range []struct {
		name          string
		width, height int
		phone         bool
		scheme, back  string
	}{
		{"desktop", 1100, 640, false, "light", "rgb(246, 247, 247)"},
		{"desktop-dark", 1100, 640, false, "dark", "rgb(18, 22, 23)"},
		{"phone", 390, 844, true, "light", "rgb(246, 247, 247)"},
		{"phone-dark", 390, 844, true, "dark", "rgb(18, 22, 23)"},
		{"small-phone", 320, 568, true, "light", "rgb(246, 247, 247)"},
	} {
		b.looks(c.width, c.height, c.phone, c.scheme)
		b.open(s.base)
		b.shows("the waiter", rowOf("jobs/nightly")+`?.cells[5].innerText.trim() === "1"`)
		b.shows("no scrolling sideways", `document.documentElement.scrollWidth <= window.innerWidth`)
		b.shows(c.scheme, `getComputedStyle(document.body).backgroundColor === "`+c.back+`"`)
		b.picture(c.name)
	}
	b.quiet()
}
