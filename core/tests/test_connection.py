"""Connection: what each of its arguments and methods does."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from connection_helpers import LONG_S, batch, numbers

from tensorcom import (
    Connection,
    Message,
    MessageError,
    Meta,
    ReceiveTimeoutError,
    SendTimeoutError,
    TenbinError,
    tenbin,
)

# -- arguments ---------------------------------------------------------------------------------


def test_the_original_arguments_keep_their_order(connect) -> None:
    arguments = ["zpull://127.0.0.1:0", 7, 100, False, ["x"], None, True, False]
    arguments += [None, False, None, 50, 10, True]
    connection = Connection(*arguments)
    try:
        assert len(connection) == connection.epoch == 7
        assert (connection.total, connection.multipart, connection.infos) == (100, False, ["x"])
        assert (connection.allow64, connection.raw, connection.batch_count) == (True, False, False)
        assert (connection.report, connection.noexpand) == (50, True)
        assert connection.stats.horizon == 10
    finally:
        connection.close()


def test_epoch_is_the_length_of_each_iteration(connected) -> None:
    sender, reader = connected(epoch=3)
    for number in range(6):
        sender.send(batch(number))
    assert len(reader) == 3
    assert numbers(reader) == [0, 1, 2]
    assert numbers(reader.items()) == [3, 4, 5]


def test_without_an_epoch_there_is_no_length(connected) -> None:
    _, reader = connected()
    with pytest.raises(TypeError, match="length of this stream is unknown"):
        len(reader)


@pytest.mark.parametrize(
    ("total", "batch_count", "received"), [(8, True, 2), (10, True, 3), (2, False, 2), (0, True, 0)]
)
def test_total_ends_all_iterations(connected, total, batch_count, received) -> None:
    sender, reader = connected(total=total, batch_count=batch_count)
    for number in range(5):
        sender.send(batch(number))
    assert numbers(reader) == list(range(received))
    assert numbers(reader) == []


@pytest.mark.parametrize("multipart", [True, False])
def test_multipart_sends_a_frame_per_array_and_either_is_read(connected, multipart) -> None:
    sender, reader = connected(send_multipart=multipart, raw=True)
    sender.send(batch(1))
    assert len(reader.recv()) == (5 if multipart else 1)
    reader.raw = False
    sender.send(batch(1))
    assert numbers([reader.recv()]) == [1]


def test_infos_are_written_and_required(connected) -> None:
    sender, reader = connected(send_infos=["image", "label"], infos=["image", "label"])
    sender.send(batch(1))
    assert list(reader.recv_message().infos) == ["image", "label"]
    sender.send(Message(batch(2), ["image", "cls"]))
    with pytest.raises(MessageError, match=r"infos \['image', 'cls'\], expected"):
        reader.recv()
    sender.send(batch(3))
    assert numbers([reader.recv()]) == [3]


@pytest.mark.parametrize("dtype", ["f8", "i8", "u8", "c16"])
def test_allow64(connected, dtype) -> None:
    sender, reader = connected()
    array = np.zeros(2, dtype)
    with pytest.raises(TenbinError, match="needs allow64=True"):
        sender.send([np.zeros(1, "f4"), array])
    sender.send([array], True)
    sender.allow64 = True
    sender.send([array])
    for _ in range(2):
        assert reader.recv()[0].dtype == dtype


def test_raw_gives_the_frames(connected) -> None:
    sender, reader = connected(raw=True, epoch=1)
    sender.send(batch(1))
    sender.send(batch(2))
    frames = reader.recv()
    assert bytes(frames[0])[:2] == b"u1"
    assert np.array_equal(tenbin.decode_list(frames[:4])[0], batch(1)[0])
    (frames,) = reader
    assert np.array_equal(tenbin.decode_list(frames[:4])[1], batch(2)[1])
    assert reader.stats.count == 2


def test_batch_transforms_then_layout_then_converters(connected) -> None:
    steps = []

    def note(name):
        return lambda array: steps.append((name, array.shape)) or array

    sender, reader = connected(
        batch_transforms=[note("first"), None],
        layout=("NHWC", "NCHW"),
        converters=[note("last"), lambda labels: labels + 1],
    )
    sender.send(batch(1))
    images, labels = reader.recv()
    assert images.shape == (4, 1, 2, 3)
    assert labels.tolist() == [2] * 4
    assert steps == [("first", (4, 2, 3, 1)), ("last", (4, 1, 2, 3))]


def test_one_transform_or_converter_serves_all_arrays(connected) -> None:
    sender, reader = connected(batch_transforms=lambda a: a + 1, converters=lambda a: a * 2)
    sender.send(batch(1))
    assert [int(array.flat[0]) for array in reader.recv()] == [4, 4]


def test_converters_by_name(connected) -> None:
    sender, reader = connected(converters="numpy")
    sender.send(batch(1))
    assert all(isinstance(array, np.ndarray) for array in reader.recv())
    with pytest.raises(ValueError, match="converters='jax' is not one of numpy, torch, torch_cuda"):
        Connection(converters="jax")


def test_layout_is_stated_and_checked(connected) -> None:
    with pytest.raises(ValueError, match="layout"):
        Connection(layout=("NHWC", "HWC"))
    with pytest.raises(ValueError, match="layout"):
        Connection(layout="NCHW")
    sender, reader = connected(layout=("NHWC", "NCHW"))
    sender.send([np.zeros((4, 3), "f4")])
    with pytest.raises(ValueError, match="needs 4 axes"):
        reader.recv()


def test_report_logs_the_rates(connected, caplog) -> None:
    sender, reader = connected(epoch=4, report=8)
    for number in range(8):
        sender.send(batch(number))
    with caplog.at_level(logging.INFO, "tensorcom.connection"):
        list(reader)
        assert [record.getMessage().split(":")[0] for record in caplog.records] == ["8", "16"]
        assert "messages/s" in caplog.text
        caplog.clear()
        list(reader.items(report=4))
        assert len(caplog.records) == 4
        caplog.clear()
        sender.serve([batch(1)] * 3, report=4)
        assert len(caplog.records) == 3


def test_stats_count_what_came(connected) -> None:
    sender, reader = connected(stats_horizon=5)
    for number in range(3):
        sender.send(batch(number))
        reader.recv()
    assert (reader.stats.count, reader.stats.samples) == (3, 12)
    assert (reader.stats.total, sender.stats.total) == (3 * 40, 3 * 40)
    assert reader.stats.recent.maxlen == 5
    (source,) = reader.stats.sources.values()
    assert (source.messages, source.gaps, source.missed, source.duplicates) == (3, 0, 0, 0)
    assert set(source.stage_s) == {"received"}


def test_noexpand_takes_braces_literally(connect, tmp_path) -> None:
    reader = connect(f"zpull+ipc://{tmp_path}/{{a,b}}", noexpand=True)
    assert len(reader.urls) == 1
    assert (tmp_path / "{a,b}").exists()
    assert len(connect(f"zpull+ipc://{tmp_path}/{{a,b}}").urls) == 2


def test_topic_of_a_connection_a_message_and_a_url(connect) -> None:
    sender = connect("zpub://127.0.0.1:0", topic="first")
    reader = connect(sender.urls[0].replace("zpub", "zsub"))
    assert sender.wait_for_peers()
    sender.send(batch(0))
    sender.send(batch(1), topic="second")
    sender.send(Message(batch(2), topic=b"third"))
    sender.send(Message(batch(3), topic=b"third"), topic=b"")
    assert [reader.recv_message().topic for _ in range(4)] == [b"first", b"second", b"third", b""]
    fixed = connect("zpub://127.0.0.1:0#url")
    reader = connect(fixed.urls[0].replace("zpub", "zsub"))
    assert fixed.wait_for_peers()
    fixed.send(batch(0))
    assert reader.recv_message().topic == b"url"
    with pytest.raises(MessageError, match="reads as a tensor frame"):
        fixed.send(batch(0), topic=b"~TenBin~")


def test_on_bad_message(connected) -> None:
    with pytest.raises(ValueError, match="on_bad_message='ignore' is not one of"):
        Connection(on_bad_message="ignore")
    for policy in ("raise", "skip"):
        sender, reader = connected(on_bad_message=policy)
        sender._transport.send([b"junk"], timeout_s=LONG_S)
        sender.send(batch(1))
        if policy == "raise":
            with pytest.raises(MessageError):
                reader.recv()
        assert numbers([reader.recv()]) == [1]
        assert reader.stats.bad == 1


def test_send_meta_can_be_left_out(connected) -> None:
    sender, reader = connected(send_send_meta=False, epoch=2)
    sender.send(batch(0))
    sender.send(Message(batch(1), meta=Meta(epoch=3)))
    assert reader.recv_message().meta == Meta()
    assert reader.recv_message().meta == Meta(epoch=3)
    sender.send(batch(2))
    sender.send(batch(3))
    assert numbers(reader) == [2, 3]  # streams without meta iterate too
    assert reader.stats.count == 4
    assert reader.stats.sources == {}


def test_the_meta_that_is_sent(connected) -> None:
    sender, reader = connected()
    sender.send(batch(0), meta=Meta(epoch=2, index=5, times={"read": 1.0}, extra={"host": "a"}))
    sender.send(batch(1))
    first, second = reader.recv_message().meta, reader.recv_message().meta
    assert (first.epoch, first.index, first.seq, first.samples) == (2, 5, 0, 4)
    assert (second.epoch, second.seq) == (None, 1)
    assert first.extra == {"host": "a"}
    assert set(first.times) == {"read", "sent"}
    assert first.source == second.source


def test_what_was_not_sent_gets_no_number(connect) -> None:
    sender = connect("zrpush://127.0.0.1:0")
    with pytest.raises(SendTimeoutError):
        sender.send(batch(0), timeout_s=0)
    reader = connect(sender.urls[0].replace("zrpush", "zrpull"))
    sender.send(batch(1))
    assert reader.recv_message().meta.seq == 0


def test_a_sent_array_may_change_at_once_unless_copy_is_off(connect) -> None:
    sender = connect("zpush+inproc://late")  # nothing leaves before there is a reader
    array = np.zeros(100_000, "u1")
    sender.send([array])
    sender.send([array], copy=False)
    array += 1
    reader = connect("zpull+inproc://late")
    assert [int(reader.recv()[0][0]) for _ in range(2)] == [0, 1]


def test_split_takes_each_nth_message(connect) -> None:
    sender = connect("zpub://127.0.0.1:0")
    url = sender.urls[0].replace("zpub", "zsub")
    readers = [connect(url, epoch=5, split=(i, 2)) for i in range(2)]
    assert sender.wait_for_peers(2)
    for number in range(10):
        sender.send(batch(number))
    assert [numbers(reader) for reader in readers] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert readers[0].stats.gaps == 0


def test_a_split_without_numbers_is_an_error(connect) -> None:
    sender = connect("zpub://127.0.0.1:0", send_meta=False)
    reader = connect(sender.urls[0].replace("zpub", "zsub"), split=(0, 2))
    assert sender.wait_for_peers()
    sender.send(batch(0))
    with pytest.raises(MessageError, match="cannot split this publisher"):
        reader.recv()


def test_lazy_opens_at_first_use(connect, tmp_path) -> None:
    reader = connect(f"zpull+ipc://{tmp_path}/a", lazy=True)
    assert not (tmp_path / "a").exists()
    reader.open()
    assert (tmp_path / "a").exists()


def test_options_and_unknown_arguments(connect) -> None:
    reader = connect("zpull://127.0.0.1:0?timeout_s=0", hwm_bytes=1000)
    with pytest.raises(ReceiveTimeoutError):
        reader.recv()
    with pytest.raises(TypeError, match="colour"):
        Connection(colour="red")
    with pytest.raises(ValueError, match="hwm=0"):
        Connection("zpull://127.0.0.1:0", hwm=0)
