# SPDX-License-Identifier: MIT
"""What a program may hand over by mistake: every such call is one line of BadInput that names it, before any launch."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from map_doubles import splits_map

from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.dispatch.arrays import stream_pointer, view
from dsa_bench.dispatch.dispatcher import Dispatcher
from dsa_bench.dispatch.map_file import write_map
from dsa_bench.dispatch.tuned import MapWarning
from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

FOREIGN = ">" if sys.byteorder == "little" else "<"


def kind(value: object) -> str:
    """A test's name, because some of these values have no text."""
    return type(value).__name__


@pytest.fixture
def inputs() -> SparseInputs:
    return sparse_inputs(SparseShape(8, 1024, 512), DataSpec())


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    made = Dispatcher({"ep.cuda.dsa_decode_int8_tc": "1"})
    yield made
    made.close()


def refused(dispatcher: Dispatcher, inputs: SparseInputs, said: str, **changes: Any) -> None:
    call: dict[str, Any] = {**inputs.tensors, "out": np.zeros_like(inputs.query), "scale": inputs.scale, "stream": None}
    with pytest.raises(BadInput, match=said) as raised:
        dispatcher.prepare(**(call | changes))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("name", ["selected", "key_scale", "value_scale", "query", "out"])
def test_arrays_of_another_byte_order_are_refused(name: str, inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    array = np.zeros_like(inputs.query) if name == "out" else inputs.tensors[name]
    plain = array.view(np.uint16) if name in ("query", "out") else array
    other = plain.astype(plain.dtype.newbyteorder("S"))
    refused(dispatcher, inputs, rf"^{name}: is .*not in this machine's byte order", **{name: other})
    refused(dispatcher, inputs, r"^workspace: .*byte order", workspace=np.zeros(1 << 20, FOREIGN + "f4"))


@pytest.mark.parametrize("name", ["query", "key", "value", "key_scale", "value_scale", "selected", "out", "workspace"])
def test_arrays_that_are_more_than_their_memory_are_refused(
    name: str, inputs: SparseInputs, dispatcher: Dispatcher
) -> None:
    """A masked list would be read without its mask."""
    arrays = {**inputs.tensors, "out": np.zeros_like(inputs.query), "workspace": np.zeros(1 << 22, np.uint8)}
    masked = np.ma.MaskedArray(arrays[name], mask=False)
    refused(dispatcher, inputs, f"^{name}: is MaskedArray, which is more than its memory", **{name: masked})
    if arrays[name].ndim == 2:
        matrix = arrays[name].view(np.matrix)
        refused(dispatcher, inputs, f"^{name}: is matrix", **{name: matrix})
    objects = np.empty(arrays[name].shape, object)
    refused(dispatcher, inputs, f"^{name}: holds Python objects", **{name: objects})


def test_a_file_mapped_into_memory_is_an_array(inputs: SparseInputs, dispatcher: Dispatcher, tmp_path: Any) -> None:
    key = np.memmap(tmp_path / "key", np.int8, "w+", shape=inputs.key.shape)
    key[:] = inputs.key
    out, expected = np.zeros_like(inputs.query), np.zeros_like(inputs.query)
    for tensor, into in ((key, out), (inputs.key, expected)):
        arrays: dict[str, Any] = inputs.tensors | {"key": tensor, "out": into}
        dispatcher.prepare(**arrays, scale=inputs.scale, stream=None).launch()
    assert np.array_equal(out.view(np.uint16), expected.view(np.uint16))


WHOLE: dict[str, Any] = {"data": (4096, False), "shape": (2, 3, 4), "typestr": "|i1", "strides": None, "version": 3}


def foreign(interface: Any, **more: Any) -> Any:
    return SimpleNamespace(__cuda_array_interface__=interface, **more)


@pytest.mark.parametrize(
    "interface",
    [
        *({name: WHOLE[name] for name in WHOLE if name != lost} for lost in ("data", "shape", "typestr")),
        *(WHOLE | change for change in (
            {"data": None}, {"data": 4096}, {"data": ("x", False)}, {"data": (1.5, False)}, {"data": (-4, False)},
            {"shape": None}, {"shape": 3}, {"shape": ("2",)}, {"shape": (2.5,)}, {"shape": (-2, 3, 4)},
            {"typestr": None}, {"typestr": "no type"}, {"typestr": "|O"}, {"typestr": FOREIGN + "i4"},
            {"strides": 1}, {"strides": (4, 1)}, {"strides": ("a", "b", "c")}, {"mask": foreign(WHOLE)},
        )),
        5, "abc", [], (), 1.5, {},
    ],
)  # fmt: skip
def test_a_damaged_interface_is_bad_input(interface: Any) -> None:
    with pytest.raises(BadInput, match=r"^key: ") as raised:
        view("key", foreign(interface))
    assert str(raised.value).isprintable()


def test_an_interface_needs_nothing_beside_it() -> None:
    key = view("key", foreign(WHOLE))
    assert (key.shape, key.dtype, key.nbytes) == ((2, 3, 4), "int8", 24)
    assert view("key", foreign(WHOLE | {"data": (None, False), "shape": (0, 3, 4)})).nbytes == 0
    own = np.dtype(FOREIGN + "i4")
    for typestr, dtype in ((own.str, own), ("<i4", own), ("|i1", np.dtype("i4"))):
        with pytest.raises(BadInput, match=r"^selected: is "):
            view("selected", foreign(WHOLE | {"typestr": typestr}, dtype=dtype))


def test_a_tensor_that_refuses_its_memory_is_bad_input() -> None:
    def no_storage() -> int:
        raise RuntimeError("cannot access\nthe data pointer of a tensor that has no storage")

    tensor = SimpleNamespace(
        data_ptr=no_storage, is_contiguous=lambda: True, shape=(2,), dtype="torch.int8",
        device=SimpleNamespace(type="cpu", index=None),
    )  # fmt: skip
    with pytest.raises(BadInput, match=r"^key: is SimpleNamespace, which does not say where") as raised:
        view("key", tensor)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "scale", [None, "x", "0.1", b"0.1", 1j, True, np.True_, 10**400, -(10**400), 10**5000, [0.1], np.ones(1)], ids=kind
)
def test_a_scale_that_is_no_number(scale: Any, inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    refused(dispatcher, inputs, "^scale ", scale=scale)
    with pytest.raises(BadInput, match=r"^scale "):
        dispatcher.choose(rows=1, candidates=512, scale=scale, device="cpu")


@pytest.mark.parametrize("scale", [0, 1, 0.25, np.float32(0.25), np.float64(0.25), np.int8(1)])
def test_a_scale_that_is_one(scale: Any, inputs: SparseInputs, dispatcher: Dispatcher) -> None:
    assert dispatcher.choose(rows=1, candidates=512, scale=scale, device="cpu").kernel == "int8-tc decode"


SIZES = ("rows", "candidates", "query_heads", "kv_heads", "head_size")


@pytest.mark.parametrize(
    "value", ["1", None, 1.5, True, -1, 2**31, 10**400, 10**5000, [1], np.ones(2), np.float64(1)], ids=kind
)
@pytest.mark.parametrize("name", [*SIZES, "context"])
def test_a_size_that_is_none_is_named(name: str, value: Any, dispatcher: Dispatcher) -> None:
    sizes: dict[str, Any] = {"rows": 1, "candidates": 512, "device": "cpu"}
    for ask in (dispatcher.choose, dispatcher.workspace_bytes)[: 1 if name == "context" else 2]:
        with pytest.raises(BadInput, match=rf"^{name} .*: must be an integer of at least 0 and at most \d+$") as raised:
            ask(**(sizes | {name: value}))
        assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"rows": 9000}, "rows 9000: must be at most context 8192, whose last positions they are"),
        ({"query_heads": 23}, "query_heads 23: must be a multiple of kv_heads 2, whose groups share a KV head"),
        ({"kv_heads": 0}, "query_heads 24: must be a multiple of kv_heads 0, whose groups share a KV head"),
    ],
)
def test_sizes_that_do_not_go_together_are_named_as_the_caller_knows_them(
    sizes: dict[str, int], said: str, dispatcher: Dispatcher
) -> None:
    """No option of the command line, which the program did not write."""
    with pytest.raises(BadInput) as raised:
        dispatcher.choose(**({"rows": 1, "candidates": 512, "device": "cpu"} | sizes))  # type: ignore[arg-type]
    assert str(raised.value) == said


def test_sizes_of_numpy_are_sizes(dispatcher: Dispatcher) -> None:
    needed = dispatcher.workspace_bytes(rows=np.int64(8), candidates=np.int32(512), device="cpu")  # type: ignore[arg-type]
    assert needed == dispatcher.workspace_bytes(rows=8, candidates=512, device="cpu")
    assert type(needed) is int
    assert dispatcher.choose(rows=4, candidates=512, context=0, device="cpu").kernel == "none"


@pytest.mark.parametrize("device", ["tpu", "", "CUDA", "cuda:0", None, 0, ["cpu"], np.zeros(2)])
def test_a_device_that_is_none_is_not_taken_for_a_gpu(device: Any, dispatcher: Dispatcher) -> None:
    for ask in (dispatcher.choose, dispatcher.workspace_bytes):
        with pytest.raises(BadInput, match=r"^device .*: must be cuda or cpu$"):
            ask(rows=1, candidates=512, device=device)


def test_an_l2_mode_that_is_none() -> None:
    for l2 in (None, "x" * 9999, ["cold"], np.zeros(2)):
        with pytest.raises(BadInput, match=r"^l2 .{1,60}: must be one of"):
            Dispatcher(l2=l2)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", [lambda: None, lambda: (0,), lambda: (0, "7"), lambda: 7, 7])
def test_a_damaged_stream_is_bad_input(protocol: Any) -> None:
    with pytest.raises(BadInput, match=r"^stream: "):
        stream_pointer(SimpleNamespace(__cuda_stream__=protocol))


def test_a_map_name_that_no_file_can_have_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsa_bench.dispatch.tuned._said", set())
    with pytest.warns(MapWarning, match=r"^a\\x00b: cannot be read") as caught:
        chosen = Dispatcher(splits="a\0b").choose(rows=1, candidates=512, device="cpu")
    assert len(caught) == 1
    assert chosen.basis == "rule"
    with pytest.raises(BadInput, match=r"^a\\x00b: "):
        Dispatcher(splits="a\0b", strict=True)


def test_warnings_and_explanations_are_printable_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from dataclasses import replace

    monkeypatch.setattr("dsa_bench.dispatch.tuned._said", set())
    made = splits_map()
    path = tmp_path / "a\x1b.json"
    write_map(path, replace(made, device=replace(made.device, name="H\x1b[31m\n200" + "x" * 9999)))
    dispatcher = Dispatcher({"ep.cuda.dsa_decode_int8_tc": "1"}, path)
    with pytest.warns(MapWarning, match=r"device name is H\\x1b\[31m\\n200x+\.\.\. in the map") as caught:
        chosen = dispatcher.choose(rows=1, candidates=512, device="cpu")
    assert str(caught[0].message).isprintable()
    assert all(line.isprintable() for line in chosen.explain())
