"""Elements as JAX arrays."""

import gc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import millrace as mr


def test_arrays_and_numbers_become_arrays_the_rest_stays():
    element = {
        "a": np.arange(3, dtype=np.int32),
        "n": 3,
        "t": (0.5, [True]),
        "s": "text",
        "b": b"x",
        "none": None,
        "u": np.array(["p"]),
        "d": np.zeros(1, "M8[s]"),
        "v": np.zeros(2, "V3"),
        "td": np.zeros(1, "m8[ms]"),
        "long": np.zeros(1, np.longdouble),
    }
    (found,) = mr.Dataset.from_list([element]).jax()
    assert all(isinstance(found[key], jax.Array) for key in "an")
    assert found["a"].tolist() == [0, 1, 2]
    assert found["a"].dtype == jnp.int32
    assert isinstance(found["t"], tuple)
    assert found["t"][1][0].dtype == jnp.bool_
    assert list(found) == list(element)
    for key in ("s", "b", "none", "u", "d", "v", "td", "long"):
        assert found[key] is element[key]


@pytest.mark.parametrize("dtype", [">f4", "<f2", "u1", "c8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_dtypes(dtype):
    array = np.arange(3).astype(dtype)
    (found,) = mr.Dataset.from_list([array]).jax()
    assert isinstance(found, jax.Array)
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(np.asarray(found), array.astype(found.dtype))


def test_read_only_and_negative_strides():
    array = np.arange(3)[::-1]
    array.flags.writeable = False
    (found,) = mr.Dataset.from_list([array]).jax()
    assert found.tolist() == [2, 1, 0]


def test_device_and_sharding():
    device = jax.devices()[0]
    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data"))
    dataset = mr.Dataset.range(8).map(lambda i: (np.full(2, i), "name")).batch(4)
    for wanted in (device, sharding):
        for numbers, _ in dataset.jax(wanted):
            assert numbers.devices() == {device}
            assert wanted is device or numbers.sharding == sharding


def test_a_step_over_two_epochs():
    dataset = mr.Dataset.range(64).map(np.float32).shuffle(64, seed=1).batch(16).jax()
    step = jax.jit(lambda total, batch: total + batch.sum())
    for _ in range(2):
        total = jnp.zeros(())
        for batch in dataset:
            total = step(total, batch)
        assert float(total) == sum(range(64))
    assert len(dataset) == 4


def test_arrays_outlive_the_service():
    with (
        mr.LocalService(max_workers=1) as service,
        mr.Dataset.range(64)
        .map(lambda i: np.full(1024, i, np.float32))
        .batch(8)
        .distribute(service.address, deterministic=True) as distributed,
    ):
        kept = list(distributed.jax())
    gc.collect()
    np.testing.assert_array_equal(np.concatenate(kept)[:, 7], np.arange(64))


def test_numpy_makes_scalars_of_numbers():
    (found,) = mr.Dataset.from_list([{"i": 1, "f": 0.5, "b": True, "s": "x", "a": np.zeros(2)}]).numpy()
    assert [type(found[key]) for key in "ifbs"] == [np.int64, np.float64, np.bool_, str]
    assert found["a"].shape == (2,)
    assert len(mr.Dataset.range(3).numpy()) == 3
