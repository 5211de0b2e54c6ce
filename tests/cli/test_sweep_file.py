# SPDX-License-Identifier: MIT
"""Sweep files: what an entry may hold, how it becomes a request, and the line that a wrong one gets."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from dsa_bench.cli.sweep_file import load_sweep, sweep_keys, sweep_schema
from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper import GateShape, MixShape
from dsa_bench.model.hyper_request import HyperRequest
from dsa_bench.model.request import DataSpec, Policy, SparseRequest

ENTRY = '[[measure]]\nop = "decode"\n'


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "my sweep[1].toml"


def test_an_entry_is_the_command_line_that_it_stands_for(written: Path) -> None:
    written.write_text(
        ENTRY + "rows = [1, 8, 1]\ncontext = [2048]\ncandidates = [512, 1024]\ntiles-per-split = [0, 4]\n"
        'kernels = ["int8-tc"]\n'
        'l2 = "cold"\nrounds = 6\nseed = 3\nquery-std = 11.2\nvalue-scale-multiplier = 12_000_000\n'
        'selection = "blocks:16"\nceiling = true\n[[measure]]\nop = "prefill"\nbackend = "cpu"\nceiling = false\n'
    )
    sweep = load_sweep(written)
    decode, prefill = (entry.request for entry in sweep.entries)
    assert sweep.name == "my-sweep-1"
    assert isinstance(decode, SparseRequest)
    assert isinstance(prefill, SparseRequest)
    assert [(shape.rows, shape.context, shape.candidates) for shape in decode.shapes] == [
        (1, 2048, 512), (1, 2048, 1024), (8, 2048, 512), (8, 2048, 1024),
    ]  # fmt: skip
    assert decode.data == DataSpec(3, 11.2, 1.0, 1.2e7, 0.0, "blocks:16")
    assert decode.policy == Policy(6, None, "auto", "cold")
    assert (decode.kernels, decode.tiles_per_split, decode.ceiling) == (("int8-tc",), (0, 4), True)
    assert [entry.backend for entry in sweep.entries] == ["auto", "cpu"]
    assert (prefill.op, prefill.shapes[0].rows, prefill.ceiling, prefill.dense) == ("prefill", 128, False, None)
    assert sweep.cells == 5


def test_mix_and_gate_are_entries_too(written: Path) -> None:
    written.write_text(
        '[[measure]]\nop = "mix"\nrows = [8]\nhidden = 64\nkernels = ["scaled-silu"]\nl2 = "cold"\nceiling = false\n'
        '[[measure]]\nop = "gate"\nrows = [1, 8]\ngated = 64\nwidth = 128\nrounds = 4\nbackend = "cpu"\n'
    )
    mix, gate = (entry.request for entry in load_sweep(written).entries)
    assert mix == HyperRequest((MixShape(8, 64),), ("scaled-silu",), 0, Policy(16, None, "auto", "cold"), False)
    assert gate == HyperRequest(
        (GateShape(1, 64, 128), GateShape(8, 64, 128)), policy=Policy(4, None, "auto", "warm"), ceiling=False
    )


@pytest.mark.parametrize("op", ["decode", "prefill"])
@pytest.mark.parametrize("values", [["0"], ["0", "1"]])
def test_an_entry_holds_several_options_of_the_dispatcher(op: str, values: list[str], written: Path) -> None:
    """And several values of one, each a side."""
    asked = ["ep.cuda.dsa_prefill_int8_tc=1", *(f"ep.cuda.dsa_prefill_int8_union={value}" for value in values)]
    written.write_text(f'[[measure]]\nop = "{op}"\noption = {json.dumps(asked)}\n')
    (entry,) = load_sweep(written).entries
    assert isinstance(entry.request, SparseRequest)
    sides = [{(one.name, one.value) for one in side if one.source == "option"} for side in entry.request.sides]
    assert sides == [
        {("ep.cuda.dsa_prefill_int8_tc", 1), ("ep.cuda.dsa_prefill_int8_union", int(value))} for value in values
    ]


def test_variables_do_not_reach_into_a_sweep_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSA_BENCH_ROWS", "5")
    monkeypatch.setenv("DSA_BENCH_QUERY_STD", "nonsense")
    written.write_text(ENTRY)
    (entry,) = load_sweep(written).entries
    assert [shape.rows for shape in entry.request.shapes] == [1, 8]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": measure: must be one or more [[measure]] entries"),
        ("measure = []", ": measure: must be one or more [[measure]] entries"),
        ("measure = [1]", ": measure: must be one or more [[measure]] entries"),
        ('measure = "decode"', ": measure: must be one or more [[measure]] entries"),
        ("rows = [1]", ": rows: is no key of a sweep file"),
        ("[[measure]]\nrows = [1]", ": measure[1].op: is missing; it is one of decode, prefill"),
        ('[[measure]]\nop = "[/tmp]"', ": measure[1].op: '[/tmp]' is not an operator"),
        ('[[measure]]\nop = ["decode"]', ": measure[1].op: ['decode'] is not an operator"),
        (ENTRY + ENTRY + "row = [1]", ": measure[2].row: is no option of decode; there are rows, context,"),
        (ENTRY + "rows = 8", ": measure[1].rows: must be an array of integers, not 8"),
        (ENTRY + "rows = [1.5]", ": measure[1].rows: must be an array of integers, not [1.5]"),
        (ENTRY + "rows = [true]", ": measure[1].rows: must be an array of integers, not [True]"),
        (ENTRY + 'rows = ["1"]', ": measure[1].rows: must be an array of integers, not ['1']"),
        (ENTRY + "rows = []", ": measure[1].rows: is empty; leave it out for the default"),
        (ENTRY + "rows = [0]", ": measure[1].rows: '0' is not a positive decimal integer"),
        (ENTRY + "rows = [1, -1]", ": measure[1].rows: '-1' is not a positive decimal integer"),
        (ENTRY + "rows = [9000]", ": measure[1]: --rows 9000: must be at most --context 8192"),
        (ENTRY + "rounds = 3", ": measure[1]: --rounds 3: must be even"),
        (ENTRY + "rounds = 1e1", ": measure[1].rounds: must be an integer, not 10.0"),
        (ENTRY + "query-std = nan", ": measure[1].query-std: 'nan' is not a number at least 0"),
        (ENTRY + 'query-std = "1"', ": measure[1].query-std: must be a number, not '1'"),
        (ENTRY + 'ceiling = "yes"', ": measure[1].ceiling: must be true or false, not 'yes'"),
        (ENTRY + 'l2 = "hot"', ": measure[1].l2: 'hot' is not one of warm, cold"),
        (ENTRY + 'selection = "some"', ": measure[1]: --selection some: must be sorted"),
        (ENTRY + 'record = "x"', ": measure[1].record: is no option of decode"),
        (ENTRY + "plan = true", ": measure[1].plan: is no option of decode"),
        (ENTRY + "tiles_per_split = [1]", ": measure[1].tiles_per_split: is no option of decode"),
        ('[[measure]]\nop = "prefill"\ntiles-per-split = [1]', ": measure[1].tiles-per-split: is no option of prefill"),
        ('[[measure]]\nop = "mix"\nhidden = 12', ": measure[1]: --hidden 12: must be a multiple of 8"),
        ('[[measure]]\nop = "gate"\ntimer = "cupti"', ": measure[1]: --timer cupti: sums durations of kernels"),
        ('[[measure]]\nop = "gate"\nceiling = true', ": measure[1].ceiling: is no option of gate"),
        (ENTRY + 'inputs = "/nowhere.npz"', ": measure[1]: --inputs /nowhere.npz"),
        (ENTRY + "rows = [1\n", ": is not TOML ("),
        (ENTRY + "rows = [1]\nrows = [2]\nseed = 1", "at line 4, column"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(written: Path, text: str, said: str) -> None:
    """A3, pallets/click#2871, in a file; A8, Textualize/rich#2636: brackets are whole."""
    written.write_text(text)
    with pytest.raises(BadInput) as refused:
        load_sweep(written)
    message = str(refused.value)
    assert message.startswith(f"{written}: ")
    assert said in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            load_sweep(path)
    (tmp_path / "latin.toml").write_bytes(b"# gr\xf6sser")
    with pytest.raises(BadInput, match="is not TOML"):
        load_sweep(tmp_path / "latin.toml")


def test_the_schema_is_published(root: Path) -> None:
    """To renew it: python -m dsa_bench.cli.sweep_file > docs/schemas/sweep.schema.json"""
    assert json.loads((root / "docs/schemas/sweep.schema.json").read_text()) == sweep_schema()


def test_the_committed_sweeps_are_sweeps(root: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(sweep_schema())
    sweeps = sorted((root / "sweeps").glob("*.toml"))
    assert {path.stem for path in sweeps} >= {
        "cpu-small", "seed-decode", "seed-splits-padded", "seed-prefill", "seed-fallback", "seed-splits",
        "seed-hyper",
    }  # fmt: skip
    for path in sweeps:
        jsonschema.validate(tomllib.loads(path.read_text()), sweep_schema())
        assert load_sweep(path).entries


def test_schema_and_reader_refuse_alike(written: Path) -> None:
    for text in (
        ENTRY + "rows = 8",
        ENTRY + "row = [8]",
        ENTRY + "rows = []",
        ENTRY + "l2 = 1",
        "[[measure]]",
        "x = 1",
    ):
        written.write_text(text)
        with pytest.raises(BadInput):
            load_sweep(written)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(text), sweep_schema())


def test_keys_are_the_options() -> None:
    assert {"rows", "context", "tiles-per-split", "l2", "timer", "backend", "query-std"} <= sweep_keys("decode").keys()
    assert not {"record", "format", "plan", "explain", "help"} & sweep_keys("decode").keys()
