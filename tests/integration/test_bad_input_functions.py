"""User functions that fail, or give what cannot be used: what is said, in process and by a service, which goes on."""

import io
import os
import re
import sys
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image

import millrace as mr
from millrace.display import status

pytestmark = pytest.mark.timeout(60)
HERE = "test_bad_input_functions.py"


@pytest.fixture(scope="module")
def service():
    with mr.LocalService(max_workers=1) as service:
        yield service


@pytest.fixture
def far(service):
    """Reads a whole epoch on a service, which must be as good as new afterwards."""

    def read(dataset):
        with dataset.distribute(service.address) as there:
            return list(there)

    yield read
    assert sorted(read(mr.Dataset.range(10))) == list(range(10))


@pytest.fixture(params=["in process", "on a service"])
def read(request, far):
    return list if request.param == "in process" else far


def decode(file):
    return np.asarray(Image.open(io.BytesIO(file["bytes"])).convert("RGB"))


def invert(x):
    return 100 // (x - 5)


def told(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


# -- one element fails -------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """Six JPEG files, the fifth cut off in the middle."""
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    for number in range(6):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG")
        content = buffer.getvalue()
        (tmp_path / f"{number}.jpg").write_bytes(content[: len(content) // 2] if number == 4 else content)
    return tmp_path


def test_a_truncated_picture_names_file_operator_and_the_users_line(read, pictures):
    with pytest.raises(mr.ElementError) as caught:
        read(mr.Dataset.from_files(f"{pictures}/*.jpg").map(decode).batch(2))
    error = caught.value
    assert error.operator == "map(decode)"
    assert error.where == f"{pictures}/4.jpg"
    assert str(error).startswith(f"map(decode) failed on {pictures}/4.jpg: OSError: image file is truncated")
    first = error.user_traceback.splitlines()[1]
    assert re.search(rf'File ".*{HERE}", line \d+, in decode', first), "the user's frames and no others"
    assert "np.asarray(Image.open(" in error.user_traceback
    assert error.user_traceback in str(error)


def test_a_truncated_picture_in_a_shard_names_shard_and_record(read, pictures, tmp_path):
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as archive:
        for number in range(6):
            archive.add(pictures / f"{number}.jpg", f"{number}.jpg")

    def decode_sample(sample):
        return decode({"bytes": sample["jpg"]})

    with pytest.raises(mr.ElementError, match=r"^map\(decode_sample\) failed on ") as caught:
        read(mr.Dataset.from_webdataset(str(shard)).map(decode_sample))
    assert caught.value.where == f"{shard}, record 4"


def test_other_jobs_go_on_when_one_fails(service, pictures):
    with mr.Dataset.range(3000).batch(10).distribute(service.address) as good:
        batches = iter(good)
        first = next(batches)
        bad = mr.Dataset.from_files(f"{pictures}/*.jpg").map(decode)
        with bad.distribute(service.address, job_name="bad") as there:
            with pytest.raises(mr.ElementError):
                list(there)
            with pytest.raises(mr.ElementError):  # and it stays failed
                list(there)
            over = [job for job in service.status()["finished"] if job["name"] == "bad"]
            assert {job["failure"].split(" on ")[0] for job in over} == {"map(decode) failed"}
        assert sorted(np.concatenate([first, *batches]).tolist()) == list(range(3000))
    with mr.Dataset.range(5).distribute(service.address, job_name="bad") as again:
        assert sorted(again) == list(range(5))


def test_an_error_in_an_epoch_that_nobody_reads_is_nobodys(service):
    """The next epoch is prepared while this one is read."""

    def fails_in_the_second(x, rng):
        if rng.integers(1 << 62) not in first:
            raise ValueError("another epoch")
        return x

    first = set(mr.Dataset.range(4).map(lambda x, rng: int(rng.integers(1 << 62))).with_options(seed=3))
    pipeline = mr.Dataset.range(4).map(fails_in_the_second).with_options(seed=3)
    for _ in range(3):
        with pipeline.distribute(service.address) as there:
            assert sorted(there) == [0, 1, 2, 3]
    with pipeline.distribute(service.address) as there:
        list(there)
        with pytest.raises(mr.ElementError, match="another epoch"):
            list(there)


def leave(x):
    sys.exit("enough")


def stop(x):
    raise StopIteration(x)


def leave_a_generator(x):
    raise GeneratorExit


@pytest.mark.parametrize(
    ("function", "said"),
    [(leave, "SystemExit: enough"), (stop, "StopIteration: 0"), (leave_a_generator, "GeneratorExit")],
    ids=["SystemExit", "StopIteration", "GeneratorExit"],
)
def test_whatever_a_function_raises_is_an_error_of_the_element(function, said, read):
    with pytest.raises(mr.ElementError) as caught:
        read(mr.Dataset.range(3).map(function))
    assert f"map({function.__name__}) failed on item 0: {said}" in str(caught.value)
    assert re.search(rf'File ".*{HERE}", line \d+, in {function.__name__}', caught.value.user_traceback)
    assert sorted(read(mr.Dataset.range(3).map(function).with_options(on_error="skip"))) == []


def test_ctrl_c_passes_through_in_process_and_is_an_error_on_a_worker(far):
    def interrupt(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(mr.Dataset.range(3).map(interrupt).with_options(on_error="skip"))
    with pytest.raises(mr.ElementError, match=r"map\(.*interrupt\) failed on item 0: KeyboardInterrupt"):
        far(mr.Dataset.range(3).map(interrupt))


def test_a_message_of_any_size_arrives(far):
    def complain(x):
        raise ValueError("x" * (20 << 20))

    with pytest.raises(mr.ElementError, match=r"complain\) failed on item 0: ValueError: xxx") as caught:
        far(mr.Dataset.range(1).map(complain))
    assert "characters left out" in str(caught.value)
    assert len(str(caught.value)) < 1 << 20


def test_an_error_that_is_no_string_arrives(far):
    class OddError(Exception):
        def __init__(self, lock):
            super().__init__(lock, object())

    def complain(x):
        raise OddError(threading.Lock())

    with pytest.raises(mr.ElementError, match=r"complain\) failed on item 0: OddError: \(<unlocked _thread\.lock"):
        far(mr.Dataset.range(1).map(complain))


def statuses(service):
    """What the service says, again and again: a worker's word may be on its way while its elements are read."""
    return (service.status() for _ in range(2000))


def job_of(status, name):
    return next(job for job in status["jobs"] if job["name"] == name)


# -- on_error ----------------------------------------------------------------------------------------------------------


def test_skipped_elements_are_counted_and_shown(service, capsys):
    pipeline = mr.Dataset.range(40).map(lambda x: 1 // (x % 10 - 5)).with_options(on_error="skip")
    with iter(pipeline) as here:
        assert len(list(here)) == 36
        assert here.skipped == 4
    with pipeline.distribute(service.address, job_name="holes", tasks=4) as there:
        epoch = iter(there)
        assert len(list(epoch)) == 36
        assert epoch.skipped == 4
        shown = next(shown for shown in statuses(service) if job_of(shown, "holes")["skipped"] >= 4)
        status.show(shown)
        assert re.search(r"holes .*\(\d+ elements skipped\)", capsys.readouterr().out)


def test_skipping_leaves_the_batches_full(read):
    batches = read(mr.Dataset.range(20).map(invert).batch(4).with_options(on_error="skip"))
    assert sorted(map(len, batches)) == [3, 4, 4, 4, 4]


def test_a_function_replaces_the_element(read):
    def instead(error):
        assert error.operator == "map(invert)"
        return ["instead", error.where]

    got = read(mr.Dataset.range(8).map(invert).with_options(on_error=instead))
    assert [each for each in got if isinstance(each, list)] == [["instead", "item 5"]]
    assert len(got) == 8


def test_a_function_that_fails_in_turn_is_named(read):
    def instead(error):
        raise RuntimeError("neither")

    with pytest.raises(mr.ElementError, match=r"^on_error=.*instead failed on item 5: RuntimeError: neither"):
        read(mr.Dataset.range(8).map(invert).with_options(on_error=instead))


def test_raise_is_the_default_and_can_be_said(read):
    for pipeline in (mr.Dataset.range(8).map(invert), mr.Dataset.range(8).map(invert).with_options(on_error="raise")):
        with pytest.raises(mr.ElementError, match=r"^map\(invert\) failed on item 5: ZeroDivisionError"):
            read(pipeline)
    with pytest.raises(mr.PipelineError, match=r'on_error is "raise", "skip" or a function, not .ignore.'):
        mr.Dataset.range(1).with_options(on_error="ignore")


@pytest.mark.parametrize(
    "operator", ["filter", "flat_map", "group_by_window", "bucket_by_sequence_length", "map_style"]
)
def test_functions_of_other_operators_are_named_and_skipped_alike(operator, read):
    class Items:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return invert(index)

    source = mr.Dataset.range(8)
    pipeline = {
        "filter": lambda: source.filter(lambda x: invert(x) < 1000),
        "flat_map": lambda: source.flat_map(lambda x: [invert(x)]),
        "group_by_window": lambda: source.group_by_window(lambda x: invert(x) * 0, lambda key, window: window, 100),
        "bucket_by_sequence_length": lambda: source.bucket_by_sequence_length(lambda x: abs(invert(x)), [999], [1, 1]),
        "map_style": lambda: mr.Dataset.from_map_style(Items()),
    }[operator]()
    with pytest.raises(mr.ElementError, match="ZeroDivisionError") as caught:
        read(pipeline)
    assert caught.value.where == "item 5"
    assert "in invert" in caught.value.user_traceback
    assert len(read(pipeline.with_options(on_error="skip"))) == 7


# -- what comes back is no good ----------------------------------------------------------------------------------------


def test_ragged_shapes_say_what_to_use(read):
    with pytest.raises(mr.PipelineError, match=r"^batch\(\): ragged shapes: \(0,\) .* \(1,\) .*Use padded_batch\(\)"):
        read(mr.Dataset.range(8).map(np.zeros).batch(4))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, r"the predicate returned None, not True or False\. Did it forget to return\?"),
        (np.array([True, False]), r"returned array\(.*not True or False\. Compare arrays with \.any\(\) or \.all\(\)"),
        ("yes", r"returned 'yes' \(str\), not True or False\. Wrap it in bool\(\)"),
    ],
    ids=["None", "array", "str"],
)
def test_a_predicate_that_returns_something_else(returned, said, read):
    def keep(x):
        return returned

    with pytest.raises(mr.PipelineError, match=rf"^filter\(.*keep\): .*{said}"):
        read(mr.Dataset.range(3).filter(keep))


def test_a_flat_map_that_returns_something_else(read):
    with pytest.raises(mr.PipelineError, match=r"^flat_map\(.*\) must return a dataset or .*iterate over, not int"):
        read(mr.Dataset.range(3).flat_map(lambda x: x))


class Thing:
    pass


@pytest.mark.parametrize(
    ("element", "path", "remedy"),
    [
        ({"a": np.array([1, None], dtype=object)}, '["a"]', "in .map(...), give it a dtype of fixed size"),
        ({"b": [1, {2}]}, '["b"][1]', "is of type set, which has no form as bytes; make it a numpy array"),
        ((1, Thing()), "[1]", "Thing, which has no form as bytes; make it a numpy array"),
    ],
    ids=["objects", "set", "class"],
)
def test_elements_that_cannot_travel_say_where_and_whose_they_are(element, path, remedy, far):
    def make(x):
        return element

    with pytest.raises(mr.CodecError) as caught:
        far(mr.Dataset.range(3).map(make).prefetch())
    assert re.match(r"an element that map\(.*make\) gives cannot be sent: ", str(caught.value))
    assert path in str(caught.value)
    assert remedy in str(caught.value)


def test_printing_in_a_worker_does_no_harm(far, capfd):
    def loud(x):
        print(f"out {x}")
        print(f"err {x}", file=sys.stderr)
        return x

    assert sorted(far(mr.Dataset.range(50).map(loud))) == list(range(50))


def test_asking_in_a_worker_is_an_error(far):
    with pytest.raises(mr.ElementError, match="EOFError: EOF when reading a line"):
        pytest.fail(f"it was answered: {far(mr.Dataset.range(3).map(lambda x: input()))}")


def test_forking_in_a_worker_does_no_harm(far):
    """gRPC would have each fork wait for its threads, and children for locks that these held."""

    def forks(x):
        from grpc._cython import cygrpc

        child = os.fork()
        if not child:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), cygrpc.is_fork_support_enabled()

    assert set(far(mr.Dataset.range(20).map(forks))) == {(7, False)}


def test_notes_of_an_error_travel(far):
    """Data that is missing below a function's own dataset."""
    pipeline = mr.Dataset.from_list(["/nowhere/a"]).flat_map(mr.Dataset.from_files)
    with pytest.raises(mr.SourceNotFoundError, match=r"/nowhere/a does not exist") as caught:
        far(pipeline)
    assert re.search(r"in flat_map\(.*\) of item 0", told(caught.value))
