"""Schemas that mean harm: how long each is judged or answered, and what a stream beside it sees meanwhile.

python -m benchmarks.hostile_schemas MODEL [--out FILE]
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.servers import Server, twinpath_server
from benchmarks.table import render
from twinpath.bench import describe_machine

#: Tokens of the answers that are given after all.
MAX_TOKENS = 40
_DEPTH = 5_000
#: As they stand in a request: some nest deeper than a JSON writer goes.
HOSTILE_SCHEMAS: dict[str, bytes] = {
    "a cycle of references": b'{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
    "a cycle through allOf": b'{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}}',
    "an object without end": b'{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}',
    "50,000 brackets": b"[" * 50_000 + b"]" * 50_000,
    "nested 5,000 deep": b'{"properties":{"a":' * _DEPTH + b"{}" + b"}}" * _DEPTH,
    "5,000 nested arrays": b'{"items":' * _DEPTH + b"{}" + b"}" * _DEPTH,
    "20,000 values": json.dumps({"enum": [f"value {i}" for i in range(20_000)]}).encode(),
    "20,000 properties": json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}).encode(),
    "nested quantifiers": b'{"type":"string","pattern":"^(a+)+$"}',
    "alternatives of one letter": b'{"type":"string","pattern":"^(a|a)*$"}',
    "exponential in a DFA": b'{"type":"string","pattern":"^(a|b)*a(a|b){20}$"}',
    "counters in counters": b'{"type":"string","pattern":"^((a{1,100}){1,100}){1,100}$"}',
    "a pattern of 100,000 letters": json.dumps({"type": "string", "pattern": "a" * 100_000}).encode(),
    "a large divisor": b'{"type":"integer","multipleOf":1000003}',
    "a long string": b'{"type":"string","minLength":1000000}',
    "a long array": b'{"type":"array","items":{"type":"string"},"minItems":100000}',
}


def hostile_body(schema: bytes, prompt: str, max_tokens: int = MAX_TOKENS) -> bytes:
    """A chat request with `response_format` strict."""
    head = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
    form = b'{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":' + schema + b"}}"
    return json.dumps(head).encode()[:-1] + b',"response_format":' + form + b"}"


class Listener(threading.Thread):
    """Reads one long stream and notes when its events come."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.arrivals: list[float] = []
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 1500, "stream": True}
            connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
            fields = {"ignore_eos": True, "temperature": 0}
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps({**body, **fields}), headers)
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    self.arrivals.append(time.perf_counter())
                if self.stopped:
                    break
            connection.close()


def measure(server: Server) -> list[dict[str, Any]]:
    """Every schema twice: never seen, and seen before."""
    listener = Listener(server)
    listener.start()
    while len(listener.arrivals) < 20:
        time.sleep(0.01)
    rows = []
    for name, schema in HOSTILE_SCHEMAS.items():
        for visit in ("first", "again"):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            begin = time.perf_counter()
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", hostile_body(schema, "Say something."), headers)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            end = time.perf_counter()
            connection.close()
            during = [t for t in list(listener.arrivals) if begin - 0.1 <= t <= end]
            gaps = [b - a for a, b in pairwise([*during, end])]
            row = {"schema": name, "visit": visit, "status": answer.status, "seconds": end - begin}
            says = body["error"]["message"][:100] if answer.status != 200 else body["choices"][0]["message"]["content"]
            rows.append({**row, "worst_gap_ms": 1e3 * max(gaps, default=0.0), "says": says[:100]})
    listener.stopped = True
    listener.join(10)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, twinpath_server(arguments.model, Path(folder)) as server:
        rows = measure(server)
    columns = ("schema", "visit", "status", "seconds", "worst_gap_ms", "says")
    shown = [[f"{row[c]:.3f}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
    print(render([list(columns), *shown]))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
