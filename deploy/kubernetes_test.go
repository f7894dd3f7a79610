package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The parts of Kubernetes' schema that the example uses. The parse is strict: a misspelt key is an error.
type (
	manifest struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   metadata          `yaml:"metadata"`
		StringData map[string]string `yaml:"stringData"`
		Spec       struct {
			Replicas    int    `yaml:"replicas"`
			Schedule    string `yaml:"schedule"`
			Concurrency string `yaml:"concurrencyPolicy"`
			Selector    struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"selector"`
			Template    template `yaml:"template"`
			JobTemplate struct {
				Spec struct {
					BackoffLimit     int `yaml:"backoffLimit"`
					PodFailurePolicy struct {
						Rules []struct {
							Action      string `yaml:"action"`
							OnExitCodes struct {
								ContainerName string `yaml:"containerName"`
								Operator      string `yaml:"operator"`
								Values        []int  `yaml:"values"`
							} `yaml:"onExitCodes"`
						} `yaml:"rules"`
					} `yaml:"podFailurePolicy"`
					Template template `yaml:"template"`
				} `yaml:"spec"`
			} `yaml:"jobTemplate"`
		} `yaml:"spec"`
	}
	metadata struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	}
	template struct {
		Metadata metadata `yaml:"metadata"`
		Spec     struct {
			GracePeriod   int            `yaml:"terminationGracePeriodSeconds"`
			RestartPolicy string         `yaml:"restartPolicy"`
			Affinity      map[string]any `yaml:"affinity"`
			Containers    []struct {
				Name    string   `yaml:"name"`
				Image   string   `yaml:"image"`
				Command []string `yaml:"command"`
				Env     []struct {
					Name      string `yaml:"name"`
					ValueFrom struct {
						FieldRef struct {
							FieldPath string `yaml:"fieldPath"`
						} `yaml:"fieldRef"`
						SecretKeyRef struct {
							Name string `yaml:"name"`
							Key  string `yaml:"key"`
						} `yaml:"secretKeyRef"`
					} `yaml:"valueFrom"`
				} `yaml:"env"`
				Resources map[string]map[string]string `yaml:"resources"`
				Security  struct {
					Escalation bool `yaml:"allowPrivilegeEscalation"`
					NonRoot    bool `yaml:"runAsNonRoot"`
					User       int  `yaml:"runAsUser"`
				} `yaml:"securityContext"`
			} `yaml:"containers"`
		} `yaml:"spec"`
	}
)

func TestKubernetesExample(t *testing.T) {
	raw, err := os.ReadFile("kubernetes/singleton.yaml")
	if err != nil {
		t.Fatal(err)
	}
	loader, err := yaml.NewLoader(bytes.NewReader(raw), yaml.WithKnownFields())
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]manifest{}
	for {
		var m manifest
		err := loader.Load(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		by[m.APIVersion+" "+m.Kind] = m
	}
	if got, want := slices.Sorted(maps.Keys(by)), []string{
		"apps/v1 Deployment", "batch/v1 CronJob", "v1 Secret",
	}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	secret, service, job := by["v1 Secret"], by["apps/v1 Deployment"], by["batch/v1 CronJob"]
	if service.Spec.Replicas < 2 ||
		!maps.Equal(service.Spec.Selector.MatchLabels, service.Spec.Template.Metadata.Labels) {
		t.Errorf("got %d replicas, the selector %v for %v; want a stand-by and the same labels",
			service.Spec.Replicas, service.Spec.Selector.MatchLabels, service.Spec.Template.Metadata.Labels)
	}
	once := job.Spec.JobTemplate.Spec
	if once.Template.Spec.RestartPolicy != "Never" || job.Spec.Concurrency != "Forbid" ||
		len(strings.Fields(job.Spec.Schedule)) != 5 {
		t.Errorf("got restartPolicy %q, concurrencyPolicy %q, schedule %q; "+
			"a podFailurePolicy needs Never",
			once.Template.Spec.RestartPolicy, job.Spec.Concurrency, job.Spec.Schedule)
	}
	if rules := once.PodFailurePolicy.Rules; len(rules) != 1 ||
		rules[0].OnExitCodes.ContainerName != once.Template.Spec.Containers[0].Name ||
		rules[0].OnExitCodes.Operator != "In" {
		t.Errorf("got %+v, want a rule for the job's own container", rules)
	}
	for _, tpl := range []template{service.Spec.Template, once.Template} {
		checkContainers(t, tpl, secret)
	}
}

// checkContainers holds the containers to the command as it is, and to what the secret has.
func checkContainers(t *testing.T, tpl template, secret manifest) {
	t.Helper()
	source, err := os.ReadFile("../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	flag := regexp.MustCompile(`^(--[a-z-]+)=.+$`)
	for _, c := range tpl.Spec.Containers {
		run, program, ok := cut(c.Command, "--")
		if !ok || len(program) == 0 || len(run) < 3 || run[0] != "fencelock" || run[1] != "run" {
			t.Errorf("%s: got %q, want fencelock run … NAME -- COMMAND", c.Name, c.Command)
			continue
		}
		for _, arg := range run[2 : len(run)-1] {
			m := flag.FindStringSubmatch(arg)
			if m == nil || !strings.Contains(string(source), "| `"+m[1]+" ") {
				t.Errorf("%s: %q is no flag of run", c.Name, arg)
			}
		}
		urls := 0
		for _, e := range c.Env {
			if ref := e.ValueFrom.SecretKeyRef; e.Name == "FENCELOCK_URL" &&
				ref.Name == secret.Metadata.Name && secret.StringData[ref.Key] != "" {
				urls++
			}
		}
		if urls != 1 || !c.Security.NonRoot || c.Security.User == 0 {
			t.Errorf("%s: got env %+v, security %+v; want the URL from the secret, and no root",
				c.Name, c.Env, c.Security)
		}
	}
}

// cut splits at the first argument that is sep.
func cut(args []string, sep string) (before, after []string, ok bool) {
	i := slices.Index(args, sep)
	if i < 0 {
		return args, nil, false
	}
	return args[:i], args[i+1:], true
}
