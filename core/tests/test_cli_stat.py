"""`tensorstat`: figures against numpy's, over every kind of tensor, and their two forms."""

from __future__ import annotations

import json
import threading

import ml_dtypes
import numpy as np
import pytest

from tensorcom import Connection, Message
from tensorcom.cli import stat
from tensorcom.cli.figures import Histogram, Moments, Numbers, Tensor, Texts


@pytest.fixture
def serve(tmp_path):
    """Start a sender in a thread; stop it after the test."""
    stop = threading.Event()
    running = []

    def start(source, *, end="stream", **options):
        tx = Connection(f"zrpush+ipc://{tmp_path}/{len(running)}", **options)
        thread = threading.Thread(
            target=tx.serve, args=(source,), kwargs={"end": end, "stop": stop}
        )
        thread.start()
        running.append((tx, thread))
        return f"zrpull+ipc://{tmp_path}/{len(running) - 1}"

    yield start
    stop.set()
    for tx, thread in running:
        thread.join()
        tx.close(flush=False)


def summary(capsys, *argv):
    assert stat.main(["--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def random_of(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if np.dtype(dtype).kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return rng.normal(3, 2, shape).astype(dtype)


DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


# -- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_figures_are_those_of_numpy(dtype):
    arrays = [random_of(dtype, (40, 7, 5), seed) for seed in range(3)]
    numbers = Numbers()
    for array in arrays:
        numbers.add(array)
    whole = np.concatenate(arrays)
    whole = (np.abs(whole) if whole.dtype.kind == "c" else whole).astype(np.float64)
    moments = numbers.moments
    assert moments.count[0] == whole.size
    assert moments.low[0] == whole.min()
    assert moments.high[0] == whole.max()
    assert moments.mean[0] == pytest.approx(whole.mean(), rel=1e-12)
    assert moments.deviation[0] == pytest.approx(whole.std(), rel=1e-12)
    bars = numbers.histogram.bars(20)
    assert sum(count for _, _, count in bars) == whole.size
    assert len(bars) <= 20


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32", "bfloat16"])
def test_figures_of_channels(dtype, layout):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    array = random_of(dtype, (5, 20, 21, 3))
    numbers = Numbers(layout)
    sent = array if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(array, -1, 1))
    numbers.add(sent[:2])
    numbers.add(sent[2:])
    whole = array.astype(np.float64)
    assert numbers.channels.mean == pytest.approx(whole.mean((0, 1, 2)), rel=1e-12)
    assert numbers.channels.deviation == pytest.approx(whole.std((0, 1, 2)), rel=1e-12)
    assert list(numbers.channels.low) == list(whole.min((0, 1, 2)))
    assert list(numbers.channels.high) == list(whole.max((0, 1, 2)))


def test_nan_and_inf_are_counted_and_left_out():
    numbers = Numbers()
    numbers.add(np.array([1.0, np.nan, 3.0, np.inf, -np.inf, np.nan], np.float32))
    numbers.add(np.array([np.nan], np.float32))
    moments = numbers.moments
    assert (moments.nan, moments.inf) == (3, 2)
    assert (moments.count[0], moments.mean[0], moments.low[0], moments.high[0]) == (2, 2, 1, 3)
    assert sum(count for _, _, count in numbers.histogram.bars(4)) == 2


def test_deviation_far_from_zero_keeps_its_digits():
    moments = Moments()
    values = 1e9 + np.random.default_rng(1).normal(size=(1000, 1))
    for start in range(0, 1000, 10):
        moments.add(values[start : start + 10])
    assert moments.deviation[0] == pytest.approx(values.std(), rel=1e-9)


def test_large_arrays_are_taken_in_pieces():
    array = random_of("float32", (3, 1200, 1200))
    numbers = Numbers()
    numbers.add(array)
    assert numbers.moments.mean[0] == pytest.approx(array.astype(np.float64).mean(), rel=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3, 3, 3), (4, 0)])
def test_small_and_empty_arrays(shape):
    tensor = Tensor("NHWC")
    tensor.add(np.ones(shape, np.float32), "x")
    assert tensor.numbers.moments.count[0] == np.ones(shape).size
    assert len(tensor.numbers.histogram.bars(5)) == min(np.ones(shape).size, 1)


# -- histogram --------------------------------------------------------------------------------


def test_few_integers_have_a_bar_each():
    histogram = Histogram(integer=True)
    histogram.add(np.array([2.0, 2.0, 5.0]))
    histogram.add(np.array([3.0, 2.0]))
    assert histogram.bars(20) == [(2, 2, 3), (3, 3, 1), (4, 4, 0), (5, 5, 1)]


def test_integers_below_the_first_ones_keep_their_bars():
    histogram = Histogram(integer=True)
    histogram.add(np.arange(100.0, 110.0))
    histogram.add(np.arange(0.0, 10.0))
    assert histogram.bars(11) == [
        *((float(i * 10), float(i * 10 + 10), 10 if i in (0, 10) else 0) for i in range(11))
    ]


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6, 1e30, 1e300])
def test_the_range_grows_in_both_directions(spread):
    histogram = Histogram(integer=False)
    values = np.random.default_rng(2).normal(0, 1, 3000)
    values[1000:] *= spread
    for start in range(0, 3000, 500):
        histogram.add(values[start : start + 500])
    bars = histogram.bars(10)
    assert sum(count for _, _, count in bars) == 3000
    assert all(low < high for low, high, _ in bars)
    assert [bar[1] for bar in bars[:-1]] == [bar[0] for bar in bars[1:]]
    for low, high, count in bars:
        assert count == ((values >= low) & (values < high)).sum()


@pytest.mark.parametrize("integer", [True, False])
def test_a_constant_is_one_bar_and_may_change_later(integer):
    histogram = Histogram(integer=integer)
    histogram.add(np.full(5, 7.0))
    histogram.add(np.full(5, 7.0))
    assert histogram.bars(20) == [(7, 7, 10)]
    histogram.add(np.array([9.0]))
    bars = histogram.bars(2)
    assert [count for _, _, count in bars] == [10, 1]


def test_extreme_floats_do_not_overflow():
    histogram = Histogram(integer=False)
    histogram.add(np.array([-1.7e308, 0.0, 1.7e308]))
    histogram.add(np.array([5e-324]))
    assert sum(count for _, _, count in histogram.bars(10)) == 4


# -- texts ------------------------------------------------------------------------------------


def test_texts():
    texts = Texts()
    texts.add(np.array([b"cat", b"dog", b"cat", b""], "S8"))
    texts.add(np.array([[b"mouse"]], "S5"))
    assert (texts.count, texts.unique, texts.full) == (5, 4, False)
    assert (texts.shortest, texts.longest, texts.total_length) == (0, 5, 14)
    assert texts.common(1) == [("cat", 2)]


def test_unique_texts_are_bounded(monkeypatch):
    monkeypatch.setattr("tensorcom.cli.figures.MAX_TEXTS", 3)
    texts = Texts()
    texts.add(np.array([b"a", b"b", b"c", b"d"]))
    texts.add(np.array([b"a", b"e"]))
    assert (texts.unique, texts.full, texts.count) == (3, True, 6)
    assert texts.common(1) == [("a", 2)]


# -- the command ------------------------------------------------------------------------------


def test_json_of_a_stream(serve, capsys):
    def source():
        for n in (4, 6, 2):
            images = np.arange(n * 12, dtype=np.uint8).reshape(n, 2, 2, 3)
            yield Message([images, np.arange(n, dtype="i4"), np.full(n, b"x")], ["image", "y", "s"])

    got = summary(capsys, "-c", "3", "--channels", "NHWC", serve(source()))
    assert (got["batches"], got["samples"], got["bad"]) == (3, 12, 0)
    image, label, text = got["tensors"]
    assert image["infos"] == ["image"]
    assert image["dtypes"] == ["uint8"]
    assert (image["shape_min"], image["shape_max"]) == ([2, 2, 2, 3], [6, 2, 2, 3])
    assert (image["min"], image["max"], image["count"]) == (0, 71, 144)
    assert [channel["min"] for channel in image["channels"]] == [0, 1, 2]
    assert label["histogram"][0] == {"from": 0, "to": 0, "count": 3}
    assert "channels" not in label
    assert text["dtypes"] == ["S1"]
    assert text["texts"]["unique"] == 1
    assert text["texts"]["common"] == [{"text": "x", "count": 12}]
    assert "mean" not in text


def test_stops_after_count(serve, capsys):
    def source():
        while True:
            yield [np.zeros((2, 2), np.float32)]

    assert summary(capsys, "-c", "7", serve(source()))["batches"] == 7


def test_a_short_stream_is_summarized_with_a_note(serve, capsys):
    url = serve([np.ones((1, 1), np.float32)] for _ in range(3))
    assert stat.main(["--json", url]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["batches"] == 3
    assert captured.err == "tensorstat: the stream ended after 3 batches\n"


def test_a_stream_without_batches_fails(serve, capsys):
    assert stat.main([serve(iter(()))]) == 1
    assert capsys.readouterr().err == "tensorstat: error: the stream ended without a batch\n"


def test_json_has_no_nan(serve, capsys):
    url = serve([np.full((1, 2), np.nan, np.float32)] for _ in range(1))
    tensor = summary(capsys, "-c", "1", url)["tensors"][0]
    assert tensor["mean"] is None
    assert tensor["min"] is None
    assert tensor["nan"] == 2
    assert tensor["histogram"] == []


def test_bins_are_at_most_as_many(serve, capsys):
    url = serve([np.linspace(0, 1, 1000, dtype=np.float32)] for _ in range(1))
    bars = summary(capsys, "-c", "1", "--bins", "5", url)["tensors"][0]["histogram"]
    assert len(bars) == 5
    assert all(150 <= bar["count"] <= 250 for bar in bars)


def test_text_form(serve, capsys):
    def source():
        for n in (3, 5):
            images = np.zeros((n, 2, 2, 3), np.float32)
            images[0, 0, 0, 0] = np.nan
            yield Message([images, np.array([b"a[b]"] * n)], ["image", "name"])

    assert stat.main(["-c", "2", "--channels", "NHWC", serve(source())]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 batches, 8 samples, 0 bad messages\n")
    row = next(line.split() for line in text.splitlines() if "float32" in line)
    assert row == ["0", "image", "float32", "(N=3…5,", "2,", "2,", "3)", *["0"] * 4, "2", "0"]
    assert "tensor 0 channel" in text
    assert "█" in text
    assert "tensor 1: 8 texts, 1 different, 4 to 4 bytes long (mean 4.0)" in text
    assert "8 × 'a[b]'" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_wrong_channels_are_named(serve, capsys):
    def source():
        for size in (3, 4):
            yield [np.zeros((1, size, 5, 3), np.float32)]

    assert stat.main(["-c", "2", "--channels", "NCHW", serve(source())]) == 2
    assert capsys.readouterr().err == (
        "tensorstat: error: 4 channels after 3; is --channels NCHW right?\n"
    )


def test_batches_with_more_tensors_later(serve, capsys):
    def source():
        yield [np.zeros((1, 1), np.float32)]
        yield [np.zeros((1, 1), np.float32), np.zeros((1, 2, 3), np.int32)]

    first, second = summary(capsys, "-c", "2", serve(source()))["tensors"]
    assert (first["batches"], second["batches"]) == (2, 1)
    assert second["shape_max"] == [1, 2, 3]
