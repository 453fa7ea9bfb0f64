"""The codec's contract on chosen values: types, copies, alignment, errors, and what other Arrow readers see."""

import builtins
import copy
import enum
import pickle
import sys
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

import millrace
from millrace.elements import layout
from millrace.elements.codec import decode, encode, row_layout
from millrace.elements.named import named_by
from millrace.elements.row_access import maker as rows_maker
from millrace.elements.sampled_checksum import sampled_checksum
from millrace.errors import CodecError

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024  # what users write


def joined(elements: list[Any]) -> bytearray:
    return bytearray(b"".join(encode(elements)))


def there_and_back(elements: list[Any]) -> list[Any]:
    return decode(joined(elements))


def address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if expected.dtype == np.longdouble:  # has bytes that mean nothing
            assert (actual == expected).all()
        else:
            assert actual.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


ALIGNED = np.dtype([("a", "u1"), ("b", "f8"), ("c", "i2", (2, 3))], align=True)

ARRAYS = {
    "bool": np.array([True, False]),
    "float16": np.arange(3, dtype=np.float16),
    "complex64": np.array([1 + 2j], np.complex64),
    "longdouble": np.arange(3, dtype=np.longdouble),
    "big_endian": np.arange(5, dtype=">i4"),
    "text": np.array([["ab", "ü"], ["", "long text"]]),
    "bytes": np.array([b"ab", b"c"]),
    "datetime": np.array(["2020-02-03", "NaT"], "M8[D]"),
    "datetime_25s": np.array([1, 2]).astype("m8[25s]"),
    "void": np.zeros(2, "V7"),
    "structured": np.array([(1, [1.5, 2.5], "x")], [("a", ">i2"), ("b", "f4", (2,)), ("c", "U3")]),
    "aligned": np.frombuffer(bytes(range(ALIGNED.itemsize)) * 2, ALIGNED),
    "nested": np.zeros(2, [("a", [("b", "M8[ns]"), ("c", ml_dtypes.bfloat16)])]),
    "titles": np.zeros(2, {"names": ["a"], "formats": ["i4"], "titles": ["the a"], "offsets": [4], "itemsize": 12}),
    "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
    "float8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    "int4": np.arange(4).astype(ml_dtypes.int4),
    "0d": np.array(3.5),
    "0d_structured": np.zeros((), [("a", "i4")]),
    "empty": np.zeros((0, 3, 2), np.float32),
    "empty_inside": np.zeros((2, 0, 3), np.float32),
    "no_bytes": np.zeros(3, "V0"),
    "no_text": np.ndarray((2,), "U0"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str):
    array = ARRAYS[name]
    assert_same(there_and_back([array]), [array])
    assert_same(there_and_back([{"x": array, "y": 1}] * 3), [{"x": array, "y": 1}] * 3)
    if array.ndim:
        ragged = [array, np.concatenate([array, array]), array[:0]]
        assert_same(there_and_back(ragged), ragged)


@pytest.mark.parametrize("size", [4, 100])
def test_arrays_that_do_not_lie_in_order_are_copied_to_c_order(size: int):
    whole = np.arange(size * size).reshape(size, size)
    for array in (np.asfortranarray(whole), whole[::2, ::-1], whole.T, np.broadcast_to(whole[0], (size, size))):
        (back,) = there_and_back([array])
        assert back.flags.c_contiguous
        assert_same(back, array)
        assert_same(there_and_back([array, array]), [array, array])


SCALARS = [
    *(0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**300, -(10**300)),
    *(True, False, 0.0, -0.0, float("inf"), 1e-310, 1j, complex(-0.0, 3)),
    *(None, "", "abc", "\0", "ü\N{GRINNING FACE}", "\udc80 loose", b"", b"\0\xff\0", (), [], {}, ((),), [[]], {"": {}}),
    *(np.float32(1.5), np.int8(-3), np.bool_(True), np.float64(2), np.complex64(1j), np.longdouble("0.1")),
    *(np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00", "ns"), np.datetime64("NaT"), np.timedelta64(3, "W")),
    *(np.str_("a\0b"), np.str_(""), np.bytes_(b"ab"), np.bytes_(b""), np.void(b"abc"), np.void(b"")),
    *(ml_dtypes.bfloat16(3), np.array((1, 2.0), [("a", "i4"), ("b", ">f8")])[()]),
]


@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_values_come_back_as_what_they_were(value: Any):
    for element in (value, {"a": [value, (value,)]}):
        assert_same(there_and_back([element]), [element])
        assert_same(there_and_back([element] * 3), [element] * 3)


def test_not_a_number_stays_itself():
    (value,) = there_and_back([float("nan")])
    assert type(value) is float
    assert value != value  # noqa: PLR0124  # the definition


def test_everything_in_one_message_in_order():
    arrays = list(ARRAYS.values())
    mixed = [*SCALARS, *arrays, *({"x": value} for value in SCALARS), *({"x": [array]} for array in arrays)]
    assert_same(there_and_back(mixed), mixed)
    assert_same(there_and_back(mixed[::-1]), mixed[::-1])
    alternating = [{"label": None if at % 3 else at, "x": np.zeros(at % 2)} for at in range(50)]
    assert_same(there_and_back(alternating), alternating)


def test_keys_keep_their_order_and_type():
    elements = [{"b": 1, "a": 2}, {"a": 1, "b": 2}, {1: 0}, {"1": 0}, {1: 0, "1": 2, -(2**63): 3}]
    assert_same(there_and_back(elements), elements)


def test_more_kinds_than_a_union_holds():
    elements = [{f"key{at}": at} for at in range(700)]
    assert_same(there_and_back(elements), elements)


def test_many_elements_are_one_buffer_per_leaf():
    elements = [{"id": at, "x": np.full(40, at, np.float32), "y": "name"} for at in range(1000)]
    assert len(encode(elements)) < 10
    assert sum(map(len, encode(elements))) < 1000 * (8 + 160 + 4 + 8) + 2000


def test_subclasses_come_back_as_the_plain_type():
    class Level(enum.IntEnum):
        HIGH = 3

    elements = [OrderedDict(b=1, a=2), Level.HIGH, np.zeros(2).view(np.matrix)]
    assert_same(there_and_back(elements), [{"b": 1, "a": 2}, 3, np.zeros((1, 2))])


class Box(NamedTuple):
    corner: Any
    name: str = ""


@pytest.mark.parametrize("count", [1, 3])
def test_namedtuples_keep_their_names_and_their_fields(count):
    elements = [Box(Point(at, 0.5), "b") for at in range(count)]
    back = there_and_back(elements)
    assert back == elements
    assert {type(each).__name__ for each in back} == {"Box"}
    assert [(each.corner.x, each.corner.y, each.name) for each in back] == [(at, 0.5, "b") for at in range(count)]
    for again in (pickle.loads(pickle.dumps(back)), copy.deepcopy(back)):
        assert again == back
        assert {type(each) for each in again} == {type(back[0])}
    assert sampled_checksum(back[0]) != sampled_checksum(Box(Point(7, 0.5), "b"))


def test_namedtuples_of_numbers_alone():
    message = np.frombuffer(joined([Point(at, at / 2) for at in range(5)]), np.uint8)
    assert [each.y for each in decode(message)] == [at / 2 for at in range(5)]
    rows = row_layout(message)
    assert rows is not None
    leaves = (message[leaf.start + 3 * leaf.nbytes :][: leaf.nbytes] for leaf in rows.leaves)
    assert rows_maker(rows.root)(leaves).y == 1.5


def test_what_is_no_namedtuple_that_can_be_rebuilt_is_a_tuple():
    class Odd(tuple[Any, ...]):
        __slots__ = ()
        _fields = ("x y",)

    assert_same(there_and_back([Odd((1,))]), [(1,)])


@pytest.mark.parametrize(
    "keys", [("P", "x"), ("P", "x", "x"), ("P", "x", "y; z"), ("P", "x", "_y"), ("", "x", "y"), ()]
)
def test_what_a_message_says_of_a_namedtuple_is_checked(keys):
    with pytest.raises(ValueError, match=r"."):
        named_by(keys, 2)


def test_any_sequence_of_elements():
    assert there_and_back([]) == []
    assert decode(b"".join(encode((1, 2)))) == [1, 2]
    assert decode(b"".join(encode(range(3)))) == [0, 1, 2]


# -- array-likes -------------------------------------------------------------------------------------------------------


def test_torch_tensors_become_arrays_that_torch_takes_back():
    tensors = [torch.arange(6).reshape(2, 3), torch.ones(3, 2).T]
    back = there_and_back(tensors)
    assert_same(back, [tensor.numpy(force=True).copy(order="C") for tensor in tensors])
    again = torch.from_numpy(back[0])
    again += 1
    assert back[0][0, 0] == 1


def test_arraylikes_that_refuse():
    with pytest.raises(CodecError, match=r'\["x"\] is of type torch.Tensor, which numpy can\'t read .*grad.*\.map\('):
        encode([{"x": torch.ones(2, requires_grad=True)}])


# -- copies, writability, alignment ------------------------------------------------------------------------------------


def test_a_large_array_is_neither_copied_by_encode_nor_by_decode():
    image = np.zeros((32, 224, 112, 3), np.float32)  # 9.6 MB
    pieces = encode([{"image": image, "label": np.arange(32)}])
    views = [np.frombuffer(piece, np.uint8) for piece in pieces]
    assert [len(view) for view in views if address(view) == address(image)] == [image.nbytes]
    assert sum(map(len, pieces)) < image.nbytes + 2000

    message = joined([{"image": image, "label": np.arange(32)}])
    start = address(np.frombuffer(message, np.uint8))
    (element,) = decode(message)
    assert start < address(element["image"]) < start + len(message) - image.nbytes
    assert start < address(element["label"]) < start + len(message)


def test_large_arrays_of_several_elements_and_large_bytes_are_not_copied():
    arrays = [np.zeros(100_000), np.ones(200_000)]
    blob = bytes(100_000)
    for elements, wanted in (
        (arrays, {*map(address, arrays)}),
        ([blob], {address(np.frombuffer(blob, np.uint8))}),
        ([{"x": arrays[0], "y": blob}], {address(arrays[0]), address(np.frombuffer(blob, np.uint8))}),
    ):
        assert wanted <= {address(np.frombuffer(piece, np.uint8)) for piece in encode(elements)}


def test_arrays_are_writable_if_and_only_if_the_buffer_is():
    element = {"x": np.arange(5), "y": [np.arange(3.0)], "z": np.array(1)}
    message = joined([element, {"x": np.arange(2), "y": [np.arange(3.0)], "z": np.array(2)}])
    for buffer, writable in (
        (message, True),
        (memoryview(message), True),
        (np.frombuffer(message, np.uint8), True),
        (bytes(message), False),
        (memoryview(message).toreadonly(), False),
        (memoryview(bytes(message)), False),
    ):
        for back in decode(buffer):
            arrays = [back["x"], back["y"][0], back["z"]]
            assert [array.flags.writeable for array in arrays] == [writable] * 3
    back = decode(message)[0]
    back["x"][:] = 7
    assert_same(decode(message)[0]["x"], np.full(5, 7))


def test_each_array_of_an_element_starts_at_a_multiple_of_64_bytes():
    element = {
        "a": np.zeros(3, np.uint8),
        "b": "x" * 13,
        "c": [np.zeros((2, 5)), 3, np.zeros(1, "U3")],
        "d": np.array(1),
    }
    for first in (element, {**element, "more" * 30: np.zeros(7, np.int16)}):
        message = joined([first])
        start = address(np.frombuffer(message, np.uint8))
        (back,) = decode(message)
        arrays = [back["a"], *back["c"][::2], back["d"]]
        assert [(address(array) - start) % 64 for array in arrays] == [0, 0, 0, 0]


def test_a_buffer_may_lie_anywhere_and_go_on_after_the_message():
    element = {"x": np.arange(5), "y": "text"}
    for shift in range(9):
        buffer = bytearray(shift) + joined([element]) + b"more"
        assert_same(decode(memoryview(buffer)[shift:]), [element])


def test_arrays_keep_the_buffer_alive():
    (array,) = there_and_back([np.arange(100_000)])
    (row,) = there_and_back([np.arange(5)])
    assert array.sum() == 99_999 * 50_000
    assert row.tolist() == [0, 1, 2, 3, 4]


# -- what other readers see --------------------------------------------------------------------------------------------


def test_arrow_reads_records_as_columns():
    elements = [
        {"id": at, "x": np.full(2, at, np.float32), "y": str(at), "z": {"a": None, "b": [at / 2]}} for at in range(3)
    ]
    table = pa.ipc.open_stream(joined(elements)).read_all()
    table.validate(full=True)
    assert table.column_names == ["id", "x", "y", "z"]
    assert table["x"].type == pa.list_(pa.float32(), 2)
    assert table.to_pylist() == [
        {"id": at, "x": [at, at], "y": str(at), "z": {"a": None, "b": {"0": at / 2}}} for at in range(3)
    ]


def test_arrow_reads_unions_and_ragged_arrays():
    elements = [1, "a", None, np.arange(3), 2, np.arange(1), np.zeros((1, 2)), np.zeros((2, 1))]
    table = pa.ipc.open_stream(joined(elements)).read_all()
    table.validate(full=True)
    *plain, one, other = table["element"].to_pylist()
    assert plain == [1, "a", None, [0, 1, 2], 2, [0]]
    assert one == {"values": [0, 0], "shape": [1, 2]}
    assert other == {"values": [0, 0], "shape": [2, 1]}


def test_arrow_reads_all_of_it():
    arrays = list(ARRAYS.values())
    for elements in (
        [],
        [None] * 10_000,
        SCALARS,
        arrays,
        [{"x": each} for each in arrays],
        *([each] * 2 for each in arrays),
    ):
        table = pa.ipc.open_stream(joined(elements)).read_all()
        table.validate(full=True)
        assert table.num_rows == len(elements)


# -- refusals ----------------------------------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    element: Any = 1
    for _ in range(levels):
        element = [element]
    return element


def containing_itself() -> list[Any]:
    element: list[Any] = []
    element.append(element)
    return element


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"image": [np.array([None])]}, r'\["image"\]\[0\] can\'t become bytes: .*dtype object.*astype.*tolist'),
        (np.zeros(2, [("a", "O")]), "the element can't become bytes"),
        ({"t": np.array(["a"], np.dtypes.StringDType())}, r'\["t"\] can\'t become bytes: .*StringDType.*astype'),
        ({"s": {1, 2}}, r'\["s"\] is of type set, which has no form as bytes; make it a numpy array, .* in \.map\('),
        ((bytearray(3),), r"\[0\] is of type bytearray"),
        ({"o": object()}, r'\["o"\] is of type object, which'),
        (object(), "the element is of type object, which"),
        ({"m": np.ma.masked_array([1, 2], [True, False])}, r'\["m"\] is a masked array.*filled'),
        ({"a": {(1, 2): 3}}, r'\["a"\] has the key \(1, 2\); keys of dicts must be str or int'),
        ({True: 3}, "the element has the key True"),
        ({2**63: 3}, r"has the key 9223372036854775808"),
        ({"\ud800": 3}, r"has the key"),
        (nested(70), r"\[0\]\[0\]\[0\]\[0\]\.\.\. is nested too deeply.*flatten it"),
        (containing_itself(), r"nested too deeply"),
    ],
)
def test_what_cannot_become_bytes_is_named(element: Any, message: str):
    with pytest.raises(CodecError, match=message):
        encode([element])
    with pytest.raises(CodecError, match=message):
        encode([1, element, element])


def test_nesting_up_to_the_limit():
    deep = nested(55)
    assert there_and_back([deep]) == [deep]
    pa.ipc.open_stream(joined([deep])).read_all().validate(full=True)


def test_missing_ml_dtypes_is_named(monkeypatch: pytest.MonkeyPatch):
    message = joined([np.zeros(2, ml_dtypes.bfloat16)])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(CodecError, match="dtype bfloat16; to read them, pip install ml_dtypes"):
        decode(message)


def test_ml_dtypes_too_old_is_named():
    message = joined([np.zeros(2, ml_dtypes.bfloat16)]).replace(b"bfloat16", b"bfloat99")
    with pytest.raises(CodecError, match="no dtype bfloat99"):
        decode(message)


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch):
    message = joined([1])
    assert decode(message.replace(b"[1,1,[", b"[1,1,[")) == [1]
    with pytest.raises(CodecError, match="format 2, and this millrace reads format 1: run the same version"):
        decode(message.replace(b"[1,1,[", b"[2,1,["))
    with pytest.raises(CodecError, match="format 2"):
        decode(message.replace(b'[1,1,["fixed"', b'[2,1,["newer"'))


def test_streams_of_other_programs_are_named():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"a": [1]}))
    with pytest.raises(CodecError, match="written by another program"):
        decode(sink.getvalue().to_pybytes())


def forged(rows: int, root: layout.Node, body: bytes = bytes(64)) -> bytes:
    """A message whose header says what it likes."""
    fields = pa.schema([], metadata={layout.KEY: layout.encode_header(layout.Header(layout.VERSION, rows, root))})
    schema = fields.serialize().to_pybytes()
    return bytes(schema) + layout.batch_message(rows, [], [], len(body), len(schema)) + body + layout.END


FIXED, RAGGED, UNION, RECORD = layout.Fixed, layout.Ragged, layout.Union, layout.Record
TEXT_INSIDE = np.dtype([("a", "i4"), ("b", [("c", "U1", (2,))])])
INT64S = np.array([0, 2**62, -(2**62), 2**62, 0, 0, 0, 0]).tobytes()


@pytest.mark.parametrize(
    ("rows", "root", "body"),
    [
        (10**15, layout.Nothing(), bytes(64)),
        (-1, layout.Nothing(), bytes(64)),
        (10**15, FIXED("array", "<f4", (0,)), bytes(64)),
        (10**15, FIXED("int", "<i8", ()), bytes(64)),
        (400, RECORD("tuple", (), (layout.Nothing(),) * 400), bytes(64)),
        (1, FIXED("array", "<f4", (2**40, 2**40)), bytes(64)),
        (1, FIXED("array", "<f4", (-1, -1)), bytes(64)),
        (1, FIXED("array", "<f4", (1,) * 70), bytes(64)),
        (1, FIXED("array", "|O8", (1,)), bytes(64)),
        (1, FIXED("array", "O", (1,)), bytes(64)),
        (1, FIXED("array", {"names": ["a"], "formats": ["|O"], "offsets": [0]}, (1,)), bytes(64)),
        (1, FIXED("array", {"ml_dtypes": "__doc__"}, (1,)), bytes(64)),
        (1, FIXED("array", {"ml_dtypes": "np"}, (1,)), bytes(64)),
        (1, FIXED("array", {"base": "<f4", "shape": [-3]}, (1,)), bytes(64)),
        (1, FIXED("array", {"base": "<f4", "shape": [2**31]}, (2**62,)), bytes(64)),
        (1, FIXED("array", "<U9999999999", (1,)), bytes(64)),
        (1, FIXED("array", 3, (1,)), bytes(64)),
        (1, FIXED("array", [], (1,)), bytes(64)),
        (1, FIXED("scalar", "<U1", ()), b"\xff" * 64),
        (2, FIXED("array", ">U1", (2,)), b"\0\x11\0\0" * 16),
        (2, FIXED("array", layout.describe_dtype(TEXT_INSIDE), (2,)), b"\0\0\x11\0" * 32),
        (3, layout.Blobs("bytes"), INT64S),
        (3, RAGGED("|u1", 1), INT64S),
        (1, RAGGED("|u1", 2), np.array([0, 6, *[0] * 14, -1, 6, *[0] * 6]).tobytes()),
        (1, RAGGED("|u1", 2), np.array([0, 6, *[0] * 14, 2, 2, *[0] * 6]).tobytes()),
        (1, RAGGED("|u1", -1), bytes(256)),
        (1, layout.Blobs("str"), np.array([0, 1, *[0] * 6, 255]).tobytes()),
        (1, UNION((layout.Nothing(),)), b"\x01" + bytes(127)),
        (1, UNION(()), bytes(128)),
        (1, RECORD("dict", ("a",), ()), bytes(64)),
        (1, RECORD("dict", (), (layout.Nothing(),)), bytes(64)),
    ],
)
def test_headers_that_lie_are_refused(rows: int, root: layout.Node, body: bytes):
    with pytest.raises(CodecError):
        decode(forged(rows, root, body))


NONE = layout.Nothing()
AMPLIFIED = [
    RECORD("dict", (), ()),
    RECORD("list", (), ()),
    RECORD("dict", ("a",), (NONE,)),
    RECORD("tuple", (), (RECORD("dict", (), ()), RECORD("list", (), ()))),
    FIXED("array", "<f4", (0,)),
    FIXED("scalar", "|V0", ()),
]


@pytest.mark.parametrize("root", AMPLIFIED)
def test_few_bytes_do_not_become_millions_of_objects(root: layout.Node):
    """262 KB became 2,097,152 dicts."""
    most = layout.FREE_BYTES + (1 << 18) * layout.BYTES_PER_BYTE
    rows = most // layout.row_bytes(root)
    with pytest.raises(CodecError, match=r"more than 262144 bytes warrant|don't fit"):
        decode(forged(4 * rows, root, bytes(1 << 18)))


@pytest.mark.parametrize("rows", [1000, 1 << 17])
@pytest.mark.parametrize("element", [{}, [], None, {"flag": True}, {"a": {"b": {"c": False}}}, (None, None)])
def test_honest_messages_are_as_large_as_what_they_become_warrants(rows: int, element: Any):
    assert decode(joined([element] * rows)) == [element] * rows


@pytest.mark.parametrize(
    "element",
    [
        *({str(key): None for key in range(count)} for count in (0, 1, 5, 6, 10, 11, 21, 22, 42, 43, 85, 86, 1000)),
        *([None] * count for count in (0, 1, 5, 100)),
        *((None,) * count for count in (0, 1, 5, 100)),
        *(1000, 1.5, 1j, "", "x", b"", b"x", 1 << 70, np.str_("x"), np.bytes_(b"x"), np.float32(1)),
        *(np.zeros(shape, "u1") for shape in ((0,), (1,), (1, 1))),
    ],
)
def test_what_a_value_takes_is_not_more_than_is_counted(element: Any):
    node = layout.decode_header(header_of(joined([element]))).root
    (made,) = decode(joined([element]))
    assert sys.getsizeof(made) + 8 <= layout.row_bytes(node)


def header_of(message: bytearray) -> bytes:
    metadata = pa.ipc.open_stream(message).schema.metadata
    return bytes(metadata[layout.KEY])


def test_the_forger_can_write():
    assert decode(forged(2, FIXED("int", "<i8", ()))) == [0, 0]
    (array,) = decode(forged(1, RAGGED("|u1", 2), np.array([0, 6, *[0] * 14, 2, 3, *[0] * 6]).tobytes() + bytes(64)))
    assert array.shape == (2, 3)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "[1]", '[1,1,["fixed"]]', "[1,1," + '["union",[' * 5000, "\\xff", '{"a":1}']
)
def test_metadata_that_makes_no_sense(text: str):
    schema = pa.schema([], metadata={layout.KEY: text.encode()}).serialize().to_pybytes()
    with pytest.raises(CodecError):
        decode(schema + layout.batch_message(1, [], [], 64, len(schema)) + bytes(64) + layout.END)


def test_messages_in_the_wrong_place_are_refused():
    batch = layout.batch_message(1, [], [], 64, 0) + bytes(64)
    schema = layout.schema_message(layout.encode_header(layout.Header(layout.VERSION, 1, layout.Nothing())))
    for data in (batch, batch + batch, schema + schema, schema, schema + layout.END, layout.END):
        with pytest.raises(CodecError):
            decode(data + layout.END)


def test_sizes_that_lie_allocate_nothing():
    before = pa.default_memory_pool().max_memory() or 0
    message = joined([np.zeros(10)])
    for head in (b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x00\x00\x00\x40", b"\xff\xff\xff\x7f"):
        with pytest.raises(CodecError):
            decode(head + message)
        with pytest.raises(CodecError):
            decode(head + message[len(head) :])
    assert (pa.default_memory_pool().max_memory() or 0) - before < 2**20


def test_nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        assert "pickle" not in name
        return real(name, *args, **kwargs)

    message = joined([*SCALARS, *ARRAYS.values()])
    monkeypatch.setattr(builtins, "__import__", importing)
    assert len(decode(message)) == len(SCALARS) + len(ARRAYS)


def test_the_error_is_of_the_family():
    with pytest.raises(millrace.errors.MillraceError, match="not a whole message"):
        decode(b"")


class Picture:
    """As those of Pillow, which say where their memory is and no more."""

    def __init__(self, values):
        self.values = np.asarray(values)

    @property
    def __array_interface__(self):
        return self.values.__array_interface__


def test_what_says_where_its_memory_is_is_an_array():
    found = decode(b"".join(encode([{"x": Picture([[1, 2]])}, {"x": Picture([[3, 4]])}])))
    assert [each["x"].tolist() for each in found] == [[[1, 2]], [[3, 4]]]
