// Lints deploy/Dockerfile with BuildKit's own parser and rules, and reads deploy/compose.yaml as Docker Compose does.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	directory := os.Args[1]
	bad := append(dockerfile(filepath.Join(directory, "Dockerfile")), compose(directory)...)
	for _, each := range bad {
		fmt.Fprintln(os.Stderr, each)
	}
	if len(bad) > 0 {
		os.Exit(1)
	}
}

func dockerfile(path string) (bad []string) {
	file, err := os.Open(path)
	if err != nil {
		return []string{err.Error()}
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		return []string{path + ": " + err.Error()}
	}
	rules := linter.New(&linter.Config{Warn: func(rule, _, _, message string, _ []parser.Range) {
		bad = append(bad, fmt.Sprintf("%s: %s: %s", path, rule, message))
	}})
	if _, _, err := instructions.Parse(parsed.AST, rules); err != nil {
		bad = append(bad, path+": "+err.Error())
	}
	for _, warning := range parsed.Warnings {
		bad = append(bad, path+": "+warning.Short)
	}
	return bad
}

// Every profile, with the names of example.env and words in place of its passwords.
func compose(directory string) []string {
	path := filepath.Join(directory, "compose.yaml")
	options, err := cli.NewProjectOptions(
		[]string{path},
		cli.WithProfiles([]string{"*"}),
		cli.WithEnv([]string{"POSTGRES_PASSWORD=word", "S3_ACCESS_KEY=name", "S3_SECRET_KEY=word"}),
	)
	if err != nil {
		return []string{path + ": " + err.Error()}
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return []string{path + ": " + err.Error()}
	}
	fmt.Printf("%s: %d services, %d volumes\n", path, len(project.Services), len(project.Volumes))
	return nil
}
