"""Arguments that are integers or shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pcr_set_helpers import write_set

from tensorcom import Connection, ZmqUrlError
from tensorcom.arguments import (
    check_integers,
    check_reader_options,
    check_share,
    environment_share,
)
from tensorcom.converters import check_layout
from tensorcom.pcr import PcrReader, PcrSource, PcrWriter, convert
from tensorcom.pipeline import Stream
from tensorcom.zmq_url import parse_url, receiving_urls, share_urls

if TYPE_CHECKING:
    from pathlib import Path

NO_INTEGERS = [2.5, 2.0, True, "2", np.float32(2), np.array(2), [2]]
NO_SHARES: list[Any] = [(2, 2), (3, 2), (-1, 2), (0, 0), (0.0, 1), (False, True)]
NO_SHARES += [(1,), (0, 1, 2), 1, None, "01"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("gray"), [3, 2])


@pytest.mark.parametrize("value", [1, 7, np.int64(1), np.uint8(7)])
def test_integers_of_all_sorts_pass(value: Any) -> None:
    check_integers(1, n=value)


@pytest.mark.parametrize("value", NO_INTEGERS)
def test_what_is_no_integer_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match="^size=.*, expected an integer$"):
        check_integers(1, n=1, size=value)
    with pytest.raises(ValueError, match="^size=.*, expected an integer or None$"):
        check_integers(1, size=value, optional=True)


def test_bounds() -> None:
    check_integers(None, n=-5)
    check_integers(3, n=None, optional=True)
    with pytest.raises(ValueError, match="^n=2, expected at least 3$"):
        check_integers(3, m=3, n=2)
    with pytest.raises(ValueError, match="^n=None, expected an integer$"):
        check_integers(3, n=None)


def test_shares() -> None:
    assert check_share("shard", (0, 1)) == (0, 1)
    assert check_share("shard", [np.int64(3), 4]) == (3, 4)
    assert all(type(part) is int for part in check_share("shard", (np.int64(3), np.int8(4))))


@pytest.mark.parametrize("share", NO_SHARES)
def test_what_is_no_share_is_named(share: Any) -> None:
    with pytest.raises(ValueError, match="^part=.*, expected a number from 0 and the count"):
        check_share("part", share)


@pytest.mark.parametrize("share", NO_SHARES)
def test_streams_and_records_refuse_what_is_no_share(share: Any, root: Path) -> None:
    with pytest.raises(ValueError, match="shard="):
        share_urls([parse_url("zsub://127.0.0.1:7880")], share)
    if share is not None:
        with pytest.raises(ValueError, match="split="):
            Connection("zsub://127.0.0.1:7880", split=share, lazy=True)
    for name in ("shard", "worker"):
        with pytest.raises(ValueError, match=f"{name}="):
            PcrSource(root, batch_size=1, **{name: share})


@pytest.mark.parametrize("name", ["batch_size", "buffer", "seed", "prefetch", "threads", "size"])
@pytest.mark.parametrize("value", [2.5, True, -1])
def test_records_refuse_what_is_no_count(name: str, value: Any, root: Path) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}, expected"):
        PcrSource(root, **{"batch_size": 1, name: value})


def test_unknown_options_of_records_are_named(root: Path) -> None:
    with PcrReader(root) as reader, pytest.raises(TypeError, match="retires: no option"):
        PcrSource(reader, batch_size=1, retires=3)
    with pytest.raises(TypeError, match="retires"):
        PcrSource(root, batch_size=1, retires=3)


def test_steps_and_conversion_refuse_what_is_no_count(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n=2.5, expected an integer"):
        Stream(list, batched=True).rebatch(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="buffer=2.5, expected an integer"):
        Stream(list, batched=True).shuffled(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="images_per_record=True, expected an integer"):
        PcrWriter(tmp_path / "set", images_per_record=True)
    with pytest.raises(ValueError, match="workers=1.5, expected an integer"):
        convert([], tmp_path / "set", workers=1.5)  # type: ignore[arg-type]
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    "layout", [3, "NHWC", ("NHWC",), ("NHWC", "CHWN"), ("NHWC", "NCHW", "NCHW")]
)
def test_what_is_no_pair_of_layouts_is_named(layout: Any) -> None:
    check_layout(("NHWC", "NCHW"))
    with pytest.raises(ValueError, match=r"^layout=.*: expected \(sent, wanted\) out of"):
        check_layout(layout)


def test_the_share_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert environment_share() is None
    monkeypatch.setenv("RANK", "2")
    assert environment_share() is None
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert environment_share() == (2, 3)
    for rank in ("3", "-1", "one", "1.0"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=f"^RANK='{rank}' and WORLD_SIZE='3' in the environ"):
            environment_share()


def test_options_without_effect_on_a_reader_are_named() -> None:
    check_reader_options(["total", "hwm", "report"])
    with pytest.raises(TypeError, match="^epoch, topic: no option of a data set, which has length"):
        check_reader_options({"topic": "a", "hwm": 3, "epoch": 4})
    with pytest.raises(TypeError, match="^device: no option"):
        check_reader_options(["device"], refused=["device"])


def test_urls_of_a_reader_receive() -> None:
    found = receiving_urls("zsub://127.0.0.1:788{0..2}")
    assert [url.address for url in found] == [f"127.0.0.1:788{n}" for n in range(3)]
    with pytest.raises(ZmqUrlError, match="zpub sends; a data set receives") as caught:
        receiving_urls(["zsub://127.0.0.1:7880", "zpub://127.0.0.1:7881"])
    assert caught.value.url == "zpub://127.0.0.1:7881"
