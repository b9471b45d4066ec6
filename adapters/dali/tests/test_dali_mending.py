"""What images that cannot be decoded cost beside themselves: nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from dali_helpers import define_raw, flat
from nvidia.dali import fn, pipeline_def
from pcr_set_helpers import noise_jpeg, write_set

from tensorcom import Connection, JpegError, SourceError
from tensorcom.testing.loopback import LoopbackServer
from tensorcom_dali import (
    Loader,
    PcrSource,
    StreamSource,
    external_source,
    plain_pipeline,
    train_pipeline,
    val_pipeline,
)

PER_RECORD, RECORDS, WAIT_S = 6, 4, 30
FRAMEWORKS = ["numpy", "torch", "jax"]


def change(root: Path, sample: int, what: str) -> None:
    """Damage an image: its frame header, which only DALI sees, or its first bytes."""
    path = root / f"PCR_{sample // PER_RECORD}.pcr"
    data = bytearray(path.read_bytes())
    start = -1
    for _ in range(sample % PER_RECORD + 1):
        start = data.index(b"\xff\xd8", start + 1)
    if what == "header":
        place = data.index(b"\xff\xc2", start)
        data[place + 2 : place + 10] = bytes(8)
    else:
        data[start : start + 8] = b"\x89PNG\r\n\x1a\n"
    path.write_bytes(data)


@pytest.fixture
def make(tmp_path):
    """Return a function that makes loaders of sets in which some images are damaged."""
    made = []

    def make(bad: dict[int, str], pipeline=train_pipeline, *, options=None, **arguments) -> Loader:
        root = tmp_path / str(len(made))
        write_set(root, [PER_RECORD] * RECORDS, noise_jpeg)
        # From the last to the first of each record: the search goes by start markers.
        for sample in sorted(bad, reverse=True):
            change(root, sample, bad[sample])
        source = PcrSource(root, **{"batch_size": 4, "shuffle": False, **arguments})
        given = {"size": 32, "dtype": "uint8", "layout": "NHWC"}
        made.append(Loader(source, pipeline, **(given if options is None else options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def events(batches, most: int | None = None) -> list:
    """Return of each batch labels and images, or the text of its error."""
    found: list = []
    iterator = iter(batches)
    while len(found) != most:
        try:
            images, labels = next(iterator)
        except StopIteration:
            break
        except JpegError as exc:
            found.append(str(exc).split(":")[0])
        else:
            pixels = [np.asarray(image).tobytes() for image in images]
            found.append((np.asarray(labels).tolist(), pixels))
    return found


def labels_of(found: list) -> list:
    return [item if isinstance(item, str) else item[0] for item in found]


NAMED = [
    [0, 1, 2, 3],
    "PCR_0.pcr image 5",
    "PCR_1.pcr image 2",
    [12, 13, 14, 15],
    [16, 17, 18, 19],
    "PCR_3.pcr image 2",
]
MARKERS = {5: "start", 8: "start", 9: "header", 20: "start", 21: "start", 22: "start", 23: "start"}


@pytest.mark.parametrize("to", FRAMEWORKS)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_an_image_without_its_markers_costs_its_own_batch_only(make, to, depth) -> None:
    one = make(MARKERS).to(to)
    one._options["prefetch_queue_depth"] = depth
    for epoch in range(3):
        assert labels_of(events(one, 3 if epoch == 1 else None)) == NAMED[: 3 if epoch == 1 else 6]


def test_that_is_so_for_pipelines_that_decode_nothing(make) -> None:
    one = make(MARKERS, define_raw, options={})
    # Damage that only a decoder sees is none here.
    expected = [*NAMED[:2], "PCR_1.pcr image 2", *NAMED[3:]]
    assert labels_of(events(one)) == labels_of(events(one)) == expected


def test_a_source_that_is_iterated_goes_on_after_the_error(make) -> None:
    one = make(MARKERS)
    assert labels_of(events(one.source)) == NAMED
    assert one.source.epoch == 1


def test_a_raw_pipeline_raises_the_error_that_names_the_image(make) -> None:
    pipeline = define_raw(make({1: "start"}).source)
    with pytest.raises(JpegError, match=r"PCR_0\.pcr image 1: \d+ bytes that are no JPEG"):
        pipeline.run()


def test_a_state_after_such_an_error_goes_on_after_its_batch(make) -> None:
    one = make(MARKERS)
    found = events(one, 2)
    one.load_state_dict(json.loads(json.dumps(one.state_dict())))
    found += events(one)
    assert labels_of(found) == NAMED


# -- pixels ----------------------------------------------------------------------------------------

HEADERS = dict.fromkeys((0, 5, 6, 9, 12, 13, 14, 15, 20), "header")


def differ(first: list, second: list) -> list[bool]:
    return [a[1] != b[1] for a, b in zip(first, second, strict=True)]


@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_batches_that_are_made_again_are_the_same_in_each_run(make, options) -> None:
    given = {"size": 32, "dtype": "uint8", "layout": "NHWC", **options}
    runs = []
    for threads in (1, 3):
        one = make(HEADERS, options={**given, "num_threads": threads}, on_error="skip")
        runs.append(events(one) + events(one))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_batches_that_are_made_again_have_crops_of_their_own(make, tmp_path, options) -> None:
    # The same image in each place: what differs is the crop.
    root = write_set(tmp_path / "same", [PER_RECORD] * 2, lambda sample: noise_jpeg(0))
    for sample in (0, 4, 8):
        change(root, sample, "header")
    source = PcrSource(root, batch_size=4, shuffle=False, on_error="skip")
    with Loader(source, train_pipeline, size=32, dtype="uint8", **options) as one:
        batches = [pixels for _, pixels in events(one) + events(one)]
    assert [len(pixels) for pixels in batches] == [3] * 6
    first = [pixels[0] for pixels in batches]
    assert len(set(first)) == 6


@pytest.mark.parametrize("to", FRAMEWORKS)
@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_checkpoint_after_damage_gives_the_very_images_of_the_rest(make, to, on_error) -> None:
    bad = {**HEADERS, 20: "start"}
    options = {"size": 32, "dtype": "uint8", "checkpoints": True, "to": to}
    whole = make(bad, options=options, on_error=on_error)
    expected = events(whole) + events(whole)
    for batches in range(1, 6):
        one = make(bad, options=options, on_error=on_error)
        found = events(one, batches)
        state = json.loads(json.dumps(one.state_dict()))
        again = make(bad, options=options, on_error=on_error)
        again.load_state_dict(state)
        assert again.state_dict() == state
        found += events(again) + events(again)
        assert found == expected, batches


def test_checkpoints_change_nothing_for_later_epochs_and_breaks(make) -> None:
    options = {"size": 32, "dtype": "uint8", "checkpoints": True}
    one = make({**HEADERS, 23: "header"}, val_pipeline, options=options, on_error="skip")
    whole = labels_of(events(one))
    assert sorted(flat(whole)) == sorted(set(range(24)) - {*HEADERS, 23})
    for batches in (1, 2, 4, 5):
        assert labels_of(events(one, batches)) == whole[:batches]
        assert labels_of(events(one)) == whole
    assert one.epoch == 9


# -- streams ---------------------------------------------------------------------------------------


def numbered(numbers) -> list:
    return [[np.full((4, 2 + number, 3, 1), number, np.uint8)] for number in numbers]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("to", ["torch", "jax"])
def test_no_message_is_lost_where_the_framework_is_changed(to, depth) -> None:
    with (
        LoopbackServer(numbered(range(9))) as server,
        StreamSource(server.url, timeout_s=WAIT_S) as source,
        Loader(source, plain_pipeline, prefetch_queue_depth=depth) as loader,
    ):
        batches = iter(loader)
        found = [int(next(batches)[0].flat[0]) for _ in range(2)]
        loader.to(to)
        with pytest.raises(SourceError, match="this one is over"):
            next(batches)
        for (images,) in loader:
            assert not isinstance(images, np.ndarray)
            found.append(int(np.asarray(images).flat[0]))
    assert found == list(range(9))


def test_lengths_hold_where_the_framework_is_changed() -> None:
    with (
        LoopbackServer(numbered(range(40))) as server,
        StreamSource(server.url, timeout_s=WAIT_S, length=5) as source,
        Loader(source, plain_pipeline, prefetch_queue_depth=3) as loader,
    ):
        next(iter(loader))
        found = [
            [int(np.asarray(array).flat[0]) for (array,) in loader.to(to)]
            for to in ("torch", "numpy", "jax")
        ]
    assert found == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]


def test_after_the_end_comes_what_the_next_server_sends() -> None:
    url = "zrpush://127.0.0.1:0"
    source: StreamSource | None = None
    for numbers in ([0, 1], [2], [3, 4, 5]):
        with Connection(url) as server:
            url = server.urls[0]
            if source is None:
                source = StreamSource(url.replace("zrpush", "zrpull"), timeout_s=WAIT_S)
                loader = Loader(source, plain_pipeline)
            thread = threading.Thread(
                target=server.serve, args=(numbered(numbers),), kwargs={"end": "stream"}
            )
            thread.start()
            assert [int(array.flat[0]) for (array,) in loader] == numbers
            thread.join(WAIT_S)
    loader.close()


def test_the_end_of_a_stream_is_not_lost_either() -> None:
    with (
        LoopbackServer(numbered(range(2))) as server,
        StreamSource(server.url, timeout_s=WAIT_S, length=2) as source,
        Loader(source, plain_pipeline, prefetch_queue_depth=4) as loader,
    ):
        # All of it was received, and its end too, when the second one is asked for.
        source.length = None
        batches = iter(loader)
        found = [int(next(batches)[0].flat[0]) for _ in range(2)]
        loader.to("torch")
        assert list(loader) == []
    assert found == [0, 1]


@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_a_message_that_a_pipeline_cannot_take_costs_no_other(to) -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def define(source):
        (images,) = external_source(source)
        return fn.crop(images, crop=[3, 3])  # fails for messages 0

    sent = [*numbered([1, 2, 3]), *numbered([0]), *numbered([4, 5, 6])]
    with (
        LoopbackServer(sent) as server,
        StreamSource(server.url, layout=("NHWC", "NHWC"), timeout_s=WAIT_S) as source,
        Loader(source, define, to=to) as loader,
    ):
        found = []
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="crop"):
            for (images,) in batches:
                found.append(int(np.asarray(images).flat[0]))
        assert list(batches) == [], "DALI's pipeline is lost, and the iteration with it"
        found += [int(np.asarray(images).flat[0]) for (images,) in loader]
    assert found == [1, 2, 3, 4, 5, 6]
