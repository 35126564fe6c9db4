"""Files that nobody vouches for: every refusal is one InputError with file and place."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimators.errors import InputError
from estimators.readers import read_config
from estimators.readers.safe import MAX_BYTES, load

REFUSED = [
    ("x.json", b"", "x.json is empty"),
    ("x.json", b"  \n", "x.json is empty"),
    ("x.json", b"[]", "x.json is a list; a configuration is a mapping"),
    ("x.yaml", b"just words", "x.yaml is a line of text"),
    ("x.yaml", b"# nothing\n", "x.yaml is empty"),
    ("x.json", b'{"a": 1,\n "b": }', r"x.json, line 2, column 7: not valid JSON"),
    ("x.json", b'{"a": 1', "x.json, line 1, column 8: not valid JSON"),
    ("x.json", b'{"a": 1 // one\n}', r"not valid JSON.*JSON has no comments"),
    ("x.json", b'{"a": {"b": 1,\n "b": 2}}', r"x.json, line 2: a.b is given twice; keep one"),
    ("x.yaml", b"a:\n  b: 1\n  b: 2\n", r"x.yaml, line 3: a.b is given twice; keep one"),
    ("x.json", b'{"a": NaN}', "x.json holds NaN"),
    ("x.json", b'{"a": -Infinity}', "x.json holds -Infinity"),
    ("x.json", b'{"a": 1e999}', "x.json holds '1e999', which is too large"),
    ("x.yaml", b"a: .nan", "x.yaml, line 1: .nan is not a finite number"),
    ("x.json", b'{"a": ' + b"9" * 5000 + b"}", "x.json holds a number too long to read"),
    ("x.json", b'{"a": "\0"}', "x.json holds NUL bytes \\(at byte 7\\)"),
    ("x.json", b'{"a":\n "\xff"}', "x.json, line 2: not UTF-8 text"),
    ("x.json", '{"a": 1}'.encode("utf-16"), "x.json holds NUL bytes"),
    ("x.json", b'{"a":' * 40 + b"1" + b"}" * 40, "x.json is nested deeper than 32 levels"),
    ("x.json", b'{"a":' * 100_000, "x.json is nested deeper than 32 levels"),
    ("x.json", b'{"a": ' + b"[" * 100_000, "x.json is nested deeper than 32 levels"),
    ("x.yaml", b"a: " + b"[" * 100_000, "x.yaml, line 1: nested deeper than 32 levels"),
    ("x.json", b'{"a": [' + b"1," * 60_000 + b"1]}", "x.json holds more than 50,000 values"),
    ("x.yaml", b"a: 1\n---\nb: 2\n", "x.yaml, line 2: not valid YAML: but found another document"),
    (
        "x.yaml",
        b"a: !!python/object/apply:os.system ['true']",
        "x.yaml, line 1: the tag .*python/object",
    ),
    ("x.yaml", b"a: !secret b", "the tag !secret is not plain data"),
    ("x.yaml", b"? [a, b]\n: 1\n", "a key is a mapping or a list"),
    ("x.yaml", b"base: &b {a: 1}\nc:\n  <<: *b\n", r"x.yaml, line 3: merge keys"),
    ("x.yaml", b"a: !!int ''", "is not a YAML int"),
    ("x.yaml", b"a: \x07", "not valid YAML"),
    ("x.yaml", b"a: [1, 2", "x.yaml, line 1: not valid YAML"),
    ("x.yaml", b"a: &x [*x]", "nested deeper than 32 levels|not valid YAML"),
]


@pytest.mark.parametrize(("name", "raw", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(InputError, match=message):
        load(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": "' + b"x" * MAX_BYTES + b'"}')
    with pytest.raises(InputError, match=r"x.json is larger than 4 MiB"):
        load(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/", "no-such-file.json", "nul\0.json", "x" * 5000])
def test_not_a_file(path: str) -> None:
    with pytest.raises(InputError, match=r"is not a file|cannot read"):
        load(path)


def test_billion_laughs_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [" + ", ".join(["lol"] * 10) + "]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 10)]
    path = tmp_path / "x.yaml"
    path.write_text("\n".join(lines))
    start = time.perf_counter()
    with pytest.raises(InputError, match="more than 50,000 values once its aliases are expanded"):
        load(path)
    assert time.perf_counter() - start < 5  # what is refused here expands to 10**10 values


def test_lines_of_json_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1,\n "b": {"c": "}{",\n  "d\\"e": [1, {"f": 2},\n {"f": 3}]}\n,"g": 4}')
    assert load(path).lines == {"a": 1, "b": 2, "b.c": 2, 'b.d"e': 3, 'b.d"e.1.f': 3, 'b.d"e.2.f': 4, "g": 5}


def test_lines_of_yaml_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb:\n  c: [1, {f: 2}]\n  d: 2001-01-01\n")
    document = load(path)
    assert document.lines == {"a": 1, "b": 2, "b.c": 3, "b.c.1.f": 3, "b.d": 4}
    assert document.data["b"]["d"] == "2001-01-01"


def test_byte_order_mark_and_format_by_content(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b'\xef\xbb\xbf{"zero_optimization": {"stage": 1}}')
    assert read_config(path).strategy.name == "zero1"
    path.write_text("zero_optimization: {stage: 2}")
    assert read_config(path).strategy.name == "zero2"


def test_an_alias_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &x {b: 1}\nc: *x\n")
    assert load(path).data == {"a": {"b": 1}, "c": {"b": 1}}


def test_json_needs_no_yaml(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"zero_optimization": {"stage": 3}}')
    code = (
        f"import sys; from estimators.readers import read_config; read_config({str(path)!r}); "
        "assert 'yaml' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_unrecognised(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"colour": "red", "size": 3}')
    with pytest.raises(InputError, match=r"x\.json has the keys 'colour', 'size': neither a DeepSpeed JSON"):
        read_config(path)
