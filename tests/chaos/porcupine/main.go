// Reads registers as JSON lines and says of each, by porcupine, whether it is linearizable.
//
// A line of stdin: {"id": 7, "operations": [["w", 5, 100, 200], ...]}, where an operation is what
// (w: written, m: maybe written, r: read), a value, and when it began and ended. The register holds
// -1 at first. A line of stdout: "7 yes", "7 no", or "7 timeout".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	lineBytesMax = 256 << 20
	timeout      = 10 * time.Second
	noOffset     = int64(-1)
)

type input struct {
	what  string
	value int64
}

type register struct {
	ID         int               `json:"id"`
	Operations []json.RawMessage `json:"operations"`
}

func step(state, in, _ any) []any {
	done := in.(input)
	switch done.what {
	case "w":
		return []any{done.value}
	case "m":
		return []any{state, done.value}
	default:
		if state.(int64) == done.value {
			return []any{state}
		}
		return nil
	}
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{noOffset} },
	Step: step,
}).ToModel()

func operation(raw json.RawMessage) (porcupine.Operation, error) {
	var what string
	var value, began, ended int64
	fields := []any{&what, &value, &began, &ended}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return porcupine.Operation{}, err
	}
	if len(fields) != 4 || (what != "w" && what != "m" && what != "r") || ended < began {
		return porcupine.Operation{}, fmt.Errorf("no operation: %s", raw)
	}
	return porcupine.Operation{Input: input{what, value}, Call: began, Return: ended}, nil
}

func answer(line []byte) (string, error) {
	var given register
	if err := json.Unmarshal(line, &given); err != nil {
		return "", err
	}
	operations := make([]porcupine.Operation, 0, len(given.Operations))
	for client, raw := range given.Operations {
		one, err := operation(raw)
		if err != nil {
			return "", err
		}
		one.ClientId = client
		operations = append(operations, one)
	}
	words := map[porcupine.CheckResult]string{
		porcupine.Ok: "yes", porcupine.Illegal: "no", porcupine.Unknown: "timeout",
	}
	result := porcupine.CheckOperationsTimeout(model, operations, timeout)
	return fmt.Sprintf("%d %s", given.ID, words[result]), nil
}

func run() error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), lineBytesMax)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		text, err := answer(lines.Bytes())
		if err != nil {
			return err
		}
		fmt.Fprintln(out, text)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return out.Flush()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(1)
	}
}
